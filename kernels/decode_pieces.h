// Decode attention cut by somebody else: to compare ways of cutting (METHODS 2.9, engine/policy/partition.h)
// with the one that attention_decode has. The same kernel, the same merging; but each piece is a CTA of its
// own, in as many waves as there are, as kernels without a persistent grid have it. Floor:
// attention_decode.h's.

#ifndef KVTWIN_KERNELS_DECODE_PIECES_H_
#define KVTWIN_KERNELS_DECODE_PIECES_H_

#include "kernels/attention_decode.h"

namespace kvtwin {

// Cells [begin, end) of a sequence; both multiples of 16, but for its end.
struct DecodePiece {
  uint32_t sequence = 0;
  uint32_t begin = 0;
  uint32_t end = 0;
};

// Below, shape.ctas is the number of pieces. No page size 1.
size_t decode_pieces_bytes(const DecodeShape& shape);  // of args.plan
// `pieces`: on the device, ascending by (sequence, begin); they tile every sequence, and a sequence without
// cells has one without cells.
cudaError_t plan_decode_pieces(const DecodeShape& shape, const DecodeArgs& args, const DecodePiece* pieces,
                               cudaStream_t stream);
// REQUIRES: planned for these pieces.
cudaError_t attention_decode_pieces(const DecodeShape& shape, const DecodeArgs& args, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_DECODE_PIECES_H_
