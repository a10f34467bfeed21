// Names that users wrote before the vocabulary followed the field's (CHANGELOG has the table): scenario
// fields and their values, flags, columns, files. No old name is accepted; wherever an unknown name is
// reported, `name_now` names its successor. tests/tidy holds this table against
// tests/tidy/retired_identifiers.tsv.

#ifndef KVTWIN_ENGINE_BASE_RETIRED_NAMES_H_
#define KVTWIN_ENGINE_BASE_RETIRED_NAMES_H_

#include <string>
#include <string_view>
#include <vector>

namespace kvtwin {

struct RetiredName {
  std::string_view old;
  std::string_view now;
};

inline constexpr RetiredName kRetiredNames[] = {@TABLE @};

// The name among `known` that `word` was replaced by; empty: `word` is not retired, or its successor is not
// in `known`.
inline std::string_view name_now(std::string_view word, const std::vector<std::string>& known) {
  for (const RetiredName& name : kRetiredNames) {
    if (name.old != word) continue;
    for (const std::string& one : known) {
      if (one == name.now) return name.now;
    }
  }
  return {};
}

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_BASE_RETIRED_NAMES_H_
