// How attention work is divided among CTAs: the choices of axis `partition`. kernels/grids/partition.h plans.

#ifndef KVTWIN_ENGINE_BASE_PARTITION_KIND_H_
#define KVTWIN_ENGINE_BASE_PARTITION_KIND_H_

#include <cstdint>

namespace kvtwin {

enum class PartitionKind : uint8_t { kUniform, kFlashDecoding, kFlashInfer, kStreamK, kAotFractions };

// Whether a planner lists the splits of each step. Otherwise the attention kernel divides the work itself,
// equally.
constexpr bool lists_splits(PartitionKind kind) {
  return kind != PartitionKind::kUniform && kind != PartitionKind::kStreamK;
}

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_BASE_PARTITION_KIND_H_
