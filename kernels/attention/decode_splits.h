// Decode attention with externally supplied splits, to compare partitioning policies
// (docs/design/methods/tangram.md#partitions, kernels/grids/partition.h) with the plan of attention_decode.
// The kernel and the merge are the same, but each split is a CTA of its own, in as many waves as needed: the
// launch structure of kernels without a persistent grid. Bound: that of attention_decode.h.

#ifndef KVTWIN_KERNELS_ATTENTION_DECODE_SPLITS_H_
#define KVTWIN_KERNELS_ATTENTION_DECODE_SPLITS_H_

#include "kernels/attention/attention_decode.h"

namespace kvtwin {

// KV entries [begin, end) of a sequence. Both are multiples of 16, except the end of the sequence.
struct DecodeSplit {
  uint32_t sequence = 0;
  uint32_t begin = 0;
  uint32_t end = 0;
};

// In the functions below, shape.ctas is the number of splits. Pages of one token are not supported.
size_t decode_splits_bytes(const DecodeShape& shape);  // bytes of args.plan
// `pieces`: splits in device memory, ascending by (sequence, begin). They tile every sequence; a sequence
// without KV entries has one empty split.
cudaError_t plan_decode_splits(const DecodeShape& shape, const DecodeArgs& args, const DecodeSplit* pieces,
                               cudaStream_t stream);
// REQUIRES: planned for these splits.
cudaError_t attention_decode_splits(const DecodeShape& shape, const DecodeArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_ATTENTION_DECODE_SPLITS_H_
