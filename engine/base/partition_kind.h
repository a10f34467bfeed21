// How attention work is divided among CTAs: the choices of axis `partition`. kernels/grids/partition.h plans.

#ifndef KVTWIN_ENGINE_BASE_PARTITION_KIND_H_
#define KVTWIN_ENGINE_BASE_PARTITION_KIND_H_

#include <cstdint>

namespace kvtwin {

enum class PartitionKind : uint8_t { kUniform, kFlashDecoding, kFlashInfer, kStreamK, kAotFractions };

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_BASE_PARTITION_KIND_H_
