// The cost of a KV format: bytes of a KV entry with its scales, bytes of a page, and the read rate of
// kernels. engine/base/kv_format.h defines the layouts; here they become numbers for memory and cost models.

#ifndef KVTWIN_MODELS_COST_KV_PRICE_H_
#define KVTWIN_MODELS_COST_KV_PRICE_H_

#include <cstdint>

#include "engine/base/kv_format.h"
#include "models/catalog/llm.h"

namespace kvtwin {

// K and V of one KV entry of one KV head, with its fraction of scales and zeros. Heads of 128 and groups of
// 32: bf16 512, fp8 256, int4 160, int2 96, fp4 144 bytes.
double kv_entry_bytes(Format format, const PageShape& shape);

// The same entry as LlmSpec::kv describes it, for memory_model and the cost models. Exact, except for int2
// with heads smaller than the group, whose keys come out up to 17 % too large.
TensorFormat kv_tensor_format(Format format, const PageShape& shape);

// A page of all layers and of the KV heads of one GPU.
uint64_t pool_page_bytes(const LlmSpec& llm, uint32_t tp, Format format, const PageShape& shape);

// The read rate of a kernel that unpacks this format while it reads, relative to that of bf16 attention. From
// kernels on an H200 at 32 requests x 32k tokens (docs/design/kernels.md#fp8, #int2-int4): fraction of the
// read ceiling over bf16's 98 %. On other devices an assumption.
double read_rate_factor(NumberFormat format);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_KV_PRICE_H_
