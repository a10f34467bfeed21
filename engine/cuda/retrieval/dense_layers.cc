#include "engine/cuda/retrieval/dense_layers.h"

#include <utility>

#include "engine/base/check.h"

namespace kvtwin::cuda {

Result<DenseLayers> DenseLayers::make(const LlmSpec* llm, uint32_t page_tokens, uint32_t pages,
                                      uint32_t rows) {
  DenseLayers out;
  out.page_tokens_ = page_tokens, out.kv_heads_ = llm->kv_heads;
  Result<RowAttention> attention = RowAttention::make(llm, {page_tokens, llm->kv_heads, pages, rows});
  if (!attention) return tl::unexpected<Error>(attention.error());
  out.attention_ = std::move(*attention);
  Result<RowsUpload> upload = RowsUpload::make(uint64_t{1} << 20);
  if (!upload) return tl::unexpected<Error>(upload.error());
  out.upload_ = std::move(*upload);
  return out;
}

void DenseLayers::add(std::span<const uint32_t> pages, uint32_t context, uint32_t tokens, uint32_t dropped) {
  const uint32_t end = context + tokens, used = div_ceil(end, page_tokens_);
  KVT_CHECK(used <= pages.size());
  const auto first = static_cast<uint32_t>(rows_.positions.size());
  for (uint32_t kv_entry = context; kv_entry < end; ++kv_entry) {
    rows_.positions.push_back(kv_entry + dropped);
    rows_.slots.push_back({pages[kv_entry / page_tokens_] * kv_heads_, kv_entry % page_tokens_});
  }
  const auto table = static_cast<uint32_t>(rows_.pages.size());
  rows_.pages.insert(rows_.pages.end(), pages.begin(), pages.begin() + used);
  attention_.add(first, table, context, tokens, &rows_);
}

void DenseLayers::plan(const __nv_bfloat16* pool, cudaStream_t stream) {
  attention_.plan(on_device_, pool, stream);
}

bool DenseLayers::repeats(StepGraphKey* graph_key) const {
  graph_key->add(on_device_);
  return on_device_.chunks_count == 0 && on_device_.other_rows == 0;
}

}  // namespace kvtwin::cuda
