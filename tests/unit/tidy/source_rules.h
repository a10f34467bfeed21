// Rules about the source that a compiler cannot check, as functions from a file's text to findings. Each
// finding reads `path:line: problem`.

#ifndef KVTWIN_TESTS_UNIT_TIDY_SOURCE_RULES_H_
#define KVTWIN_TESTS_UNIT_TIDY_SOURCE_RULES_H_

#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace kvtwin::tidy {

struct SourceFile {
  std::string path;  // from the project's root, with slashes
  std::string text;
};
using Findings = std::vector<std::string>;

// All files under `folders` of the project's root with one of these extensions (or names), sorted by path.
// Build output and installed npm packages are skipped.
std::vector<SourceFile> read_sources(const std::vector<std::string>& folders,
                                     const std::vector<std::string>& extensions);

// The text with comments and the contents of string and character literals blanked out; line breaks stay.
std::string code_only(const std::string& text);

Findings check_includes(const SourceFile& file);  // the dependency table
// Folders that include one another in a cycle: "a -> b -> a".
Findings check_folder_cycles(const std::vector<SourceFile>& files);
Findings check_policy_words(const SourceFile& file);  // the policy: no clock, random, thread, backend, float
// The scheduler: no test of the way KV is laid out, and no name of a method. `methods`: their names.
Findings check_scheduler_words(const SourceFile& file, const std::vector<std::string>& methods);
struct MethodName {
  std::string axis, name;
};
// Names that have no other meaning.
std::vector<std::string> unmistakable(const std::vector<MethodName>& methods);
// No comparison with a method's name outside engine/methods.
Findings check_method_names(const SourceFile& file, const std::vector<MethodName>& methods);
// The files in which `name` (in lower case) occurs in any case, outside comments.
std::vector<std::string> files_naming(const std::vector<SourceFile>& files, const std::string& name);
// Data members of `struct NAME` in the text; 0: there is no such struct.
int count_fields(const std::string& text, const std::string& name);
Findings check_lengths(const SourceFile& file);  // file <= 500 lines, function <= 70, line <= 110
Findings check_guard(const SourceFile& file);    // a header's guard is its path
Findings check_own_header_first(const SourceFile& file, bool has_header);
Findings check_left_overs(const SourceFile& file);  // notes to self, paths of other machines

// Old identifiers and their successors, from lines of `old<TAB>new`.
using RetiredNames = std::map<std::string, std::string>;
RetiredNames read_retired(const std::string& text);
Findings check_retired(const SourceFile& file, const RetiredNames& names);  // none of them, as a whole word

}  // namespace kvtwin::tidy

#endif  // KVTWIN_TESTS_UNIT_TIDY_SOURCE_RULES_H_
