// Lists of operations that the CUDA engine started, compared with those that are possible, and with the
// committed ones (tests/support/step_lists.h).

#ifndef KVTWIN_TESTS_UNIT_CUDA_ENGINE_ISSUED_LISTS_H_
#define KVTWIN_TESTS_UNIT_CUDA_ENGINE_ISSUED_LISTS_H_

#include <doctest/doctest.h>

#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "tests/support/source_dir.h"
#include "tests/support/step_lists.h"

namespace kvtwin::testing {

using ListTexts = std::set<std::string>;

inline std::string committed_list(const std::string& name) {
  std::ostringstream out;
  out << std::ifstream(source_dir() + "/tests/golden/operations/" + name + ".txt").rdbuf();
  return out.str();
}

// Only `possible` lists were found, and all committed ones whose names start with `method`.
inline void check_lists(const ListTexts& found, const ListTexts& possible, const std::string& method) {
  MESSAGE(method << ": " << found.size() << " different lists");
  for (const std::string& one : found) CHECK_MESSAGE(possible.contains(one), method << " starts\n" << one);
  for (const NamedList& list : named_lists()) {
    if (list.name.starts_with(method)) CHECK_MESSAGE(found.contains(committed_list(list.name)), list.name);
  }
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_CUDA_ENGINE_ISSUED_LISTS_H_
