// Plans decode attention for all layers of a step in one launch, one CTA per layer. Used where heads of
// different layers read different KV entries (methods that drop KV entries). Plans: attention_decode.h.

#ifndef KVTWIN_KERNELS_ATTENTION_DECODE_PLAN_LAYERS_H_
#define KVTWIN_KERNELS_ATTENTION_DECODE_PLAN_LAYERS_H_

#include "kernels/attention/attention_decode.h"

namespace kvtwin {

// The sequences of layer l start at args.table + l * shape.sequences; its plan is at args.plan + l * stride.
// REQUIRES: stride is a multiple of 16 and at least decode_plan_bytes(shape).
cudaError_t plan_decode_layers(const DecodeShape& shape, const DecodeArgs& args, uint32_t layers,
                               size_t stride, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_ATTENTION_DECODE_PLAN_LAYERS_H_
