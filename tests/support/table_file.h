// Decision tables in files, *.table: readable pages of the policy's behaviour (table.h says what the words of
// a row mean). Beside comments (#), a file has
//
//   config NAME = BASE field=value ...   a configuration; table, host and resident are those of
//   policy_configs.h rows NAME                            the indented rows that follow may begin cases
//   == TITLE                             a case, of the indented rows that follow
//   on CONFIG field=value ...            its configuration; otherwise `table`
//   after NAME                           it begins with those rows
//   pauses FIRST TIMES TOOL SECONDS      a row: session 9 runs TOOL TIMES times, for SECONDS each; its
//   requests
//                                        are numbered from FIRST on
//
// Fields are those of CoreConfig, its policies and its budget by name. page_tokens sets unit_tokens too;
// heads=2: one layer, a group for each head; trigger, and soft=N or repeats=N (passes of N probe tokens) give
// a scorer that only tests have.

#ifndef KVTWIN_TESTS_SUPPORT_TABLE_FILE_H_
#define KVTWIN_TESTS_SUPPORT_TABLE_FILE_H_

#include <cstddef>
#include <string>

namespace kvtwin::testing {

// Checks every table of `folder`, which is relative to the source tree. Returns the number of cases.
size_t check_table_files(const std::string& folder);

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_TABLE_FILE_H_
