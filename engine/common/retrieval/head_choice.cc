#include "engine/common/retrieval/head_choice.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/common/retrieval/page_pooling.h"
#include "kernels/select/select.h"

namespace kvtwin::cpu {
namespace {

uint32_t count_near_top(const std::vector<float>& scores) {
  const float top = *std::max_element(scores.begin(), scores.end());
  return static_cast<uint32_t>(
      std::count_if(scores.begin(), scores.end(), [&](float s) { return s > top - kNearTop; }));
}

}  // namespace

HeadChoice choose_pages(const RetrievalSpec& spec, const LlmSpec& llm, uint32_t count,
                        const PageCandidates& from, const float* q, uint64_t* nan) {
  std::vector<uint32_t> candidates;
  std::vector<kernels::PageVectors> vectors;
  for (uint32_t page = from.first; page < from.end; ++page) {
    if (std::binary_search(from.stays.begin(), from.stays.end(), page)) continue;
    candidates.push_back(page);
    vectors.push_back(from.vectors(page));
  }
  const float scale =
      spec.scale == ScoreScale::kOne ? 1.0f : 1.0f / std::sqrt(static_cast<float>(llm.head_dim));
  std::vector<float> scores(candidates.size());
  kernels::score_pages_ref(pooling_of(spec.pooling), scale, q, llm.query_heads / llm.kv_heads, llm.head_dim,
                           vectors, scores.data());
  HeadChoice out;
  out.scores.assign(from.end - from.first, -std::numeric_limits<float>::infinity());
  for (size_t i = 0; i < candidates.size(); ++i) out.scores[candidates[i] - from.first] = scores[i];
  for (const uint32_t i : kernels::select_rows(scores, {}, count, nan)) out.chosen.push_back(candidates[i]);
  return out;
}

std::vector<std::vector<uint32_t>> choose_tokens(const RetrievalSpec& spec, const LlmSpec& llm,
                                                 const PartialKeys& partial, const float* q, uint32_t first,
                                                 uint32_t end, uint32_t most) {
  const uint32_t dim = llm.head_dim, columns = partial.columns(), group = llm.query_heads / llm.kv_heads;
  std::vector<float> attention_scores(uint64_t{llm.query_heads} * columns);
  for (uint32_t j = 0; j < llm.query_heads; ++j)
    partial.project(j / group, q + uint64_t{j} * dim, attention_scores.data() + uint64_t{j} * columns);
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  // A token is treated as a page of one token, so that its score is its product with the query.
  std::vector<std::vector<float>> scores(llm.kv_heads, std::vector<float>(end - first));
  std::vector<kernels::PageVectors> keys(end - first);
  uint64_t near = 0;
  for (uint32_t h = 0; h < llm.kv_heads; ++h) {
    for (uint32_t t = first; t < end; ++t) keys[t - first] = {partial.key(t, h), partial.key(t, h)};
    const float* const heads = attention_scores.data() + uint64_t{h} * group * columns;
    for (uint32_t g = 0; g < group; ++g) {
      kernels::score_pages_ref(kernels::PagePooling::kMeanQk, 1, heads + uint64_t{g} * columns, 1, columns,
                               keys, scores[h].data());
      for (float& s : scores[h]) s *= scale;
      near += count_near_top(scores[h]);
    }
    kernels::score_pages_ref(pooling_of(spec.pooling), scale, heads, group, columns, keys, scores[h].data());
  }
  const auto count = static_cast<uint32_t>(std::clamp<uint64_t>(near / llm.query_heads, 1, most));
  std::vector<std::vector<uint32_t>> out(llm.kv_heads);
  for (uint32_t h = 0; h < llm.kv_heads; ++h) {
    out[h] = kernels::select_rows(scores[h], {}, count);
    for (uint32_t& token : out[h]) token += first;
  }
  return out;
}

HeadResidentPages outgrown_head(const ResidentShape& shape, std::vector<uint32_t> extra) {
  HeadResidentPages out;
  out.extra = out.extra_slots = std::move(extra);
  for (uint32_t page = shape.sinks; page < shape.sinks + shape.selectable + shape.extra; ++page) {
    if (!std::binary_search(out.extra.begin(), out.extra.end(), page)) out.slots.push_back(page);
  }
  out.held = out.slots;
  return out;
}

}  // namespace kvtwin::cpu
