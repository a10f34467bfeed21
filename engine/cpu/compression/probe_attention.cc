#include "engine/cpu/compression/probe_attention.h"

#include <algorithm>
#include <cmath>

#include "kernels/attention/attention.h"
#include "kernels/cache_ops/rope_append.h"

namespace kvtwin::cpu {

void ProbeAttention::attend(uint32_t layer, float* q, float* k, const float* v, float* out) {
  const uint32_t dim = llm_.head_dim, group = llm_.query_heads / llm_.kv_heads;
  const uint32_t first = kv_entries_.next_phase();
  const kernels::RopeTable rope{rope_.inverse, rope_.scale};
  for (uint32_t r = 0; r < rows_; ++r) {
    kernels::rope_ref(rope, first + r, llm_.query_heads, dim, q + uint64_t{r} * llm_.query_heads * dim);
    kernels::rope_ref(rope, first + r, llm_.kv_heads, dim, k + uint64_t{r} * llm_.kv_heads * dim);
  }
  probes_[layer].queries.assign(q, q + uint64_t{rows_} * llm_.query_heads * dim);
  probes_[layer].keys.assign(k, k + uint64_t{rows_} * llm_.kv_heads * dim);
  probes_[layer].rows = rows_;
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  const size_t width = size_t{group} * dim, all = size_t{llm_.query_heads} * dim;
  std::vector<float> head_q(rows_ * width), head_out(rows_ * width);
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    const uint32_t head = layer * llm_.kv_heads + h, kv_entries = kv_entries_.kv_entries(head);
    std::vector<kernels::ReadRun> runs;
    kv_entries_.reads(store_.shape().groups.group_of(head), kv_entries, &runs);
    std::vector<kernels::AttentionRow> reads;
    for (uint32_t r = 0; r < rows_; ++r) {
      const uint64_t at = (uint64_t{r} * llm_.kv_heads + h) * dim;
      store_.write(head, store_.staged(head, r), k + at, v + at);
      append_place(store_.staged(head, r), &runs);
      std::copy_n(q + r * all + h * width, width, head_q.data() + r * width);
    }
    for (uint32_t r = 0; r < rows_; ++r) reads.push_back({runs, kv_entries + r + 1});
    kernels::attention_ref(store_.pages(head), {0, 1}, group, scale, head_q.data(), reads, head_out.data(),
                           nullptr);
    for (uint32_t r = 0; r < rows_; ++r) {
      std::copy_n(head_out.data() + r * width, width, out + r * all + h * width);
    }
  }
}

}  // namespace kvtwin::cpu
