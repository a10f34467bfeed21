#include "engine/cpu/captured_pass.h"

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "kernels/attention/attention.h"
#include "kernels/cache_ops/rope_append.h"

namespace kvtwin::cpu {
namespace {

constexpr uint32_t kPiece = 256;  // rows per forward pass: bounds its memory

}  // namespace

CapturedPass::CapturedPass(Forward* forward, uint32_t tokens_max, bool keep_hidden)
    : forward_(forward), tokens_max_(tokens_max), keep_hidden_(keep_hidden), layers_(forward->llm().layers) {
  KVT_CHECK(tokens_max > 0);
  const uint64_t row = uint64_t{tokens_max} * llm().head_dim;
  for (Layer& layer : layers_) {
    layer.q.resize(row * llm().query_heads);
    layer.k.resize(row * llm().kv_heads);
    layer.v.resize(row * llm().kv_heads);
    if (keep_hidden) layer.hidden.resize(uint64_t{tokens_max} * llm().hidden);
  }
}

void CapturedPass::extend(std::span<const uint32_t> tokens) {
  KVT_CHECK(tokens.size() <= tokens_max_ - tokens_);
  std::vector<float> no_logits;
  while (!tokens.empty()) {
    adding_ = static_cast<uint32_t>(std::min<size_t>(tokens.size(), kPiece));
    forward_->run(tokens.first(adding_), {}, this, &no_logits);
    tokens_ += adding_;
    tokens = tokens.subspan(adding_);
  }
}

void CapturedPass::extend_rows(const std::vector<float>& rows) {
  KVT_CHECK(rows.size() % llm().hidden == 0);
  adding_ = static_cast<uint32_t>(rows.size() / llm().hidden);
  KVT_CHECK(adding_ <= tokens_max_ - tokens_);
  forward_->pass(rows, this);
  tokens_ += adding_;
}

void CapturedPass::hidden(uint32_t layer, const float* x) {
  if (!keep_hidden_) return;
  float* const to = layers_[layer].hidden.data() + uint64_t{tokens_} * llm().hidden;
  std::copy(x, x + uint64_t{adding_} * llm().hidden, to);
}

void CapturedPass::truncate(uint32_t tokens) {
  KVT_CHECK(tokens <= tokens_);
  tokens_ = tokens;
}

void CapturedPass::attend(uint32_t index, float* q, float* k, const float* v, float* out) {
  Layer& layer = layers_[index];
  // All rows are on one page.
  const kernels::KvPages page{layer.k.data(), layer.v.data(), 0, tokens_max_, llm().kv_heads, llm().head_dim};
  const kernels::ReadRun all{0, 0, tokens_max_};
  std::vector<kernels::AppendRow> appends;
  std::vector<kernels::AttentionRow> reads;
  for (uint32_t r = 0; r < adding_; ++r) {
    appends.push_back({tokens_ + r, 0, tokens_ + r});
    reads.push_back({{&all, 1}, tokens_ + r + 1});
  }
  const kernels::RopeTable rope{forward_->rope().inverse, forward_->rope().scale};
  kernels::rope_append_ref(rope, appends, llm().query_heads, q, k, v, page);
  const uint32_t dim = llm().head_dim;
  for (uint32_t r = 0; r < adding_; ++r) {
    for (uint32_t j = 0; j < llm().query_heads; ++j) {
      const float* const row = q + (uint64_t{r} * llm().query_heads + j) * dim;
      std::copy(row, row + dim, layer.q.data() + (uint64_t{j} * tokens_max_ + tokens_ + r) * dim);
    }
  }
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  kernels::attention_ref(page, {0, llm().kv_heads}, llm().query_heads, scale, q, reads, out, nullptr);
}

kernels::HeadsView CapturedPass::view(const std::vector<float>& rows, uint32_t heads, uint32_t first,
                                      uint32_t count) const {
  KVT_CHECK(first <= tokens_ && count <= tokens_ - first);
  const size_t dim = llm().head_dim;
  return {rows.data() + first * dim, heads, count, llm().head_dim, size_t{tokens_max_} * dim, dim, {}};
}

kernels::HeadsView CapturedPass::q(uint32_t layer, uint32_t first, uint32_t count) const {
  return view(layers_[layer].q, llm().query_heads, first, count);
}
kernels::HeadsView CapturedPass::k(uint32_t layer, uint32_t first, uint32_t count) const {
  return view(layers_[layer].k, llm().kv_heads, first, count);
}
kernels::HeadsView CapturedPass::v(uint32_t layer, uint32_t first, uint32_t count) const {
  return view(layers_[layer].v, llm().kv_heads, first, count);
}

kernels::HeadsView CapturedPass::hidden_rows(uint32_t layer, uint32_t first, uint32_t count) const {
  KVT_CHECK(keep_hidden_ && first <= tokens_ && count <= tokens_ - first);
  const size_t width = llm().hidden;
  return {
      layers_[layer].hidden.data() + first * width, 1, count, llm().hidden, width * tokens_max_, width, {}};
}

}  // namespace kvtwin::cpu
