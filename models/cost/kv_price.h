// What a KV format costs: bytes of a KV entry with its scales, of a page, and how fast kernels read it.
//
// The byte layouts are engine/base/kv_format.h; here they become what memory and cost models work with.

#ifndef KVTWIN_MODELS_COST_KV_PRICE_H_
#define KVTWIN_MODELS_COST_KV_PRICE_H_

#include <cstdint>

#include "engine/base/kv_format.h"
#include "models/catalog/llm.h"

namespace kvtwin {

// K and V of one KV entry of one KV head, its fraction of scales and zeros included. 128-wide heads, groups
// of 32: bf16 512, fp8 256, int4 160, int2 96, fp4 144.
double kv_entry_bytes(Format format, const PageShape& shape);

// The same KV entry as LlmSpec::kv describes it, so that memory_model and the cost models price it. Exact but
// for int2 with heads narrower than the group, whose keys come out up to 17 % too large.
TensorFormat kv_tensor_format(Format format, const PageShape& shape);

// A page of all layers and of the KV heads of one GPU.
uint64_t pool_page_bytes(const LlmSpec& llm, uint32_t tp, Format format, const PageShape& shape);

// KV entries per byte against bf16 when a fraction `fraction_int2` of them is int2 and the rest int4.
double mixed_capacity(double fraction_int2, const PageShape& shape);

// How much of the read rate that bf16 attention reaches a kernel reaches that unpacks this format while it
// reads. From kernels on an H200 at 32 requests x 32k tokens (measured anchors, docs/design/kernels.md#fp8,
// #int2-int4): fraction of the read ceiling over bf16's 98 %. Elsewhere an assumption.
double read_rate_factor(NumberFormat format);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_KV_PRICE_H_
