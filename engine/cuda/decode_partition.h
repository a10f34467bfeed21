// DecodePartition divides the decodes of each layer into splits, one CTA each (decode_splits.h), as the
// policy's partition says (kernels/grids/partition.h). Where the partition lists no splits, the kernel
// divides the work itself (attention_decode.h), and there is no DecodePartition.
//
// Rows are planned with the lengths that they have. What AOT's offline part knows of a row is its head's
// fraction of the tokens that compressions of the request have ranked. Tokens since then count once they
// matter (docs/design/methods/tangram.md#aot, point 5).

#ifndef KVTWIN_ENGINE_CUDA_DECODE_PARTITION_H_
#define KVTWIN_ENGINE_CUDA_DECODE_PARTITION_H_

#include <cstdint>
#include <vector>

#include "engine/common/request_table.h"
#include "engine/cuda/device/device_lists.h"
#include "engine/methods/config.h"
#include "kernels/attention/decode_splits.h"
#include "kernels/grids/partition.h"

namespace kvtwin::cuda {

class DecodePartition {
 public:
  // `planned`: AOT's fractions of ranked tokens, by layer * kv_heads + head; empty: equal ones. `grid`: the
  // CTAs that run at once.
  DecodePartition(const PolicySet& set, const GroupMap& groups, const PartitionSpec& spec,
                  std::vector<uint64_t> planned, const Grid& grid);

  // ---- a step's lists, layer by layer
  void clear();
  // Adds a decode of the layer: all KV heads of a request in order, request by request. `ranked`: tokens of
  // the request that compressions have ranked, of `tokens`.
  void add(uint32_t head, uint32_t kv_entries, uint32_t ranked, uint32_t tokens);
  void end_layer();
  void add_to(DeviceLists* lists) { at_ = lists->add(splits_); }

  // The splits of a layer, on the device.
  struct Splits {
    const DecodeSplit* list = nullptr;
    uint32_t count = 0;
  };
  Splits of_layer(uint32_t layer, const DeviceLists& lists) const {
    return {lists.at(at_) + layers_[layer].first, layers_[layer].count};
  }
  uint32_t splits_max() const;  // of a layer
  const std::vector<DecodeSplit>& splits() const { return splits_; }

 private:
  struct Part {
    uint32_t first = 0, count = 0;
  };
  // AOT: tokens of a row's request.
  struct Tokens {
    uint32_t head = 0, ranked = 0, tail = 0;
  };

  const PartitionKind kind_;
  const PartitionSpec spec_;
  const Grid grid_;
  const uint32_t kv_heads_;
  const std::vector<uint64_t> planned_;  // by head; empty: equal
  std::vector<uint32_t> members_;        // by head: of its group, in its layer
  std::vector<SplitRow> rows_;           // of the layer at hand
  std::vector<Tokens> tokens_;           // of these
  std::vector<SplitItem> items_;         // scratch
  std::vector<Part> layers_;
  std::vector<DecodeSplit> splits_;
  ListAt<DecodeSplit> at_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_DECODE_PARTITION_H_
