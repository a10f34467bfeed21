// Rules about the source itself that a compiler cannot check, as functions from a file's text to what
// is wrong with it. Each finding reads `path:line: what`.

#ifndef KVTWIN_TESTS_UNIT_TIDY_SOURCE_RULES_H_
#define KVTWIN_TESTS_UNIT_TIDY_SOURCE_RULES_H_

#include <map>
#include <string>
#include <vector>

namespace kvtwin::tidy {

struct SourceFile {
  std::string path;  // from the project's root, with slashes
  std::string text;
};
using Findings = std::vector<std::string>;

// All files under `folders` of the project's root with one of these extensions (or names), in order
// of path. Build output and what npm installs are passed over.
std::vector<SourceFile> read_sources(const std::vector<std::string>& folders,
                                     const std::vector<std::string>& extensions);

// The text with comments and the insides of string and character literals blanked out; line breaks stay.
std::string code_only(const std::string& text);

Findings check_includes(const SourceFile& file);  // the dependency table
// Folders that include one another in a circle: "a -> b -> a".
Findings check_folder_cycles(const std::vector<SourceFile>& files);
Findings check_policy_words(const SourceFile& file);  // the policy: no clock, chance, thread, backend, float
Findings check_lengths(const SourceFile& file);       // file <= 500 lines, function <= 70, line <= 110
Findings check_guard(const SourceFile& file);         // a header's guard is its path
Findings check_own_header_first(const SourceFile& file, bool has_header);
Findings check_left_overs(const SourceFile& file);  // notes to self, other machines' paths

// Old identifiers and their successors, from lines of `old<TAB>new`.
using RetiredNames = std::map<std::string, std::string>;
RetiredNames read_retired(const std::string& text);
Findings check_retired(const SourceFile& file, const RetiredNames& names);  // none of them, as a whole word

}  // namespace kvtwin::tidy

#endif  // KVTWIN_TESTS_UNIT_TIDY_SOURCE_RULES_H_
