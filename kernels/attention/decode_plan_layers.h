// Plans of decode attention for all layers of a step in one launch, where heads of different layers read
// different KV entries (methods that drop KV entries): a CTA a layer. What one plan is: attention_decode.h.

#ifndef KVTWIN_KERNELS_ATTENTION_DECODE_PLAN_LAYERS_H_
#define KVTWIN_KERNELS_ATTENTION_DECODE_PLAN_LAYERS_H_

#include "kernels/attention/attention_decode.h"

namespace kvtwin {

// Layer l's sequences are shape.sequences from args.table + l * shape.sequences on, and its plan lies at
// args.plan + l * stride. REQUIRES: stride is a multiple of 16, and at least decode_plan_bytes(shape).
cudaError_t plan_decode_layers(const DecodeShape& shape, const DecodeArgs& args, uint32_t layers,
                               size_t stride, cudaStream_t stream);

}  // namespace kvtwin

#endif  // KVTWIN_KERNELS_ATTENTION_DECODE_PLAN_LAYERS_H_
