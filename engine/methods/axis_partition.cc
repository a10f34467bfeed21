// How attention work is divided among CTAs. The policy has no part in it but the name
// (kernels/grids/partition.h).

#include "engine/methods/axis_factories.h"
#include "engine/methods/axis_rows.h"

namespace kvtwin {
namespace {

struct PartitionRow {
  PolicyInfo info;
  PartitionKind traits;
};

constexpr PartitionRow kPartitions[] = {
    {{"partition", "uniform", "All heads of a layer are cut into the same number of splits."},
     PartitionKind::kUniform},
    {{"partition", "flash_decoding",
      "FlashAttention's rule: as many splits, the same for all, as fill whole waves of blocks."},
     PartitionKind::kFlashDecoding},
    {{"partition", "flashinfer",
      "The CPU searches the smallest chunk that fits the grid, per layer and step; its time is charged."},
     PartitionKind::kFlashInfer},
    {{"partition", "stream_k", "The device gives each block an equal fraction of all work, by prefix sums."},
     PartitionKind::kStreamK},
    {{"partition", "aot",
      "Splits from calibrated budgets, fixed offline and scaled by each request's length; no planning at run "
      "time."},
     PartitionKind::kAotFractions},
};

}  // namespace

void append_partitions(std::vector<PolicyInfo>* out) { append_rows(kPartitions, out); }
PartitionKind partition_kind(std::string_view name) { return row_of(kPartitions, name).traits; }

}  // namespace kvtwin
