// The rows of an axis: the traits of a name, and the names for the registry.

#ifndef KVTWIN_ENGINE_METHODS_AXIS_ROWS_H_
#define KVTWIN_ENGINE_METHODS_AXIS_ROWS_H_

#include <cstddef>
#include <string_view>
#include <vector>

#include "engine/methods/traits.h"

namespace kvtwin {

// The row of this name; else the first one, the axis's identity.
template <typename Row, size_t kCount>
constexpr const Row& row_of(const Row (&rows)[kCount], std::string_view name) {
  for (const Row& row : rows) {
    if (row.info.name == name) return row;
  }
  return rows[0];
}

template <typename Row, size_t kCount>
void append_rows(const Row (&rows)[kCount], std::vector<PolicyInfo>* out) {
  for (const Row& row : rows) out->push_back(row.info);
}

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_AXIS_ROWS_H_
