// Decode attention over splits that the caller made: to compare ways of cutting
// (docs/design/methods/tangram.md#partitions, engine/methods/partition.h) with the one that attention_decode
// has. The same kernel, the same merging; but each piece is a CTA of its own, in as many waves as there are,
// as kernels without a persistent grid have it. Floor: attention_decode.h's.

#ifndef KVTWIN_KERNELS_ATTENTION_DECODE_SPLITS_H_
#define KVTWIN_KERNELS_ATTENTION_DECODE_SPLITS_H_

#include "kernels/attention/attention_decode.h"

namespace kvtwin {

// KV entries [begin, end) of a sequence; both multiples of 16, but for its end.
struct DecodeSplit {
  uint32_t sequence = 0;
  uint32_t begin = 0;
  uint32_t end = 0;
};

// Below, shape.ctas is the number of pieces. No page size 1.
size_t decode_splits_bytes(const DecodeShape& shape);  // of args.plan
// `pieces`: on the device, ascending by (sequence, begin); they tile every sequence, and a sequence without
// KV entries has one without KV entries.
cudaError_t plan_decode_splits(const DecodeShape& shape, const DecodeArgs& args, const DecodeSplit* pieces,
                               cudaStream_t stream);
// REQUIRES: planned for these pieces.
cudaError_t attention_decode_splits(const DecodeShape& shape, const DecodeArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_ATTENTION_DECODE_SPLITS_H_
