// The retrieval methods by name, for tests that need a method's kind and its defaults.

#ifndef KVTWIN_TESTS_SUPPORT_RETRIEVAL_NAMES_H_
#define KVTWIN_TESTS_SUPPORT_RETRIEVAL_NAMES_H_

#include <string>
#include <string_view>

#include "engine/methods/traits.h"

namespace kvtwin::testing {

struct RetrievalName {
  std::string_view name;

  operator RetrievalKind() const { return retrieval_traits(name).kind; }  // NOLINT: it stands for its kind
  operator std::string_view() const { return name; }                      // NOLINT: and for its name
  std::string text() const { return std::string(name); }
  friend constexpr bool operator==(const RetrievalName&, const RetrievalName&) = default;
};

inline constexpr RetrievalName kReadAll{"all"}, kQuest{"quest"}, kArkvale{"arkvale"}, kShadowkv{"shadowkv"},
    kInfinigen{"infinigen"}, kFreekv{"freekv"};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_RETRIEVAL_NAMES_H_
