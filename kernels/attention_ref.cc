#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "engine/base/check.h"
#include "kernels/attention.h"
#include "kernels/exact_exp.h"
#include "kernels/wide.h"

namespace kvtwin::kernels {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

// scores[g][t] = scale * q[g] . k[t] for `count` keys in a row.
KVTWIN_WIDE void score_run(const float* q, const float* keys, uint32_t heads, uint32_t count, uint32_t dim,
                           float scale, uint64_t stride, float* scores) {
  for (uint32_t g = 0; g < heads; ++g) {
    for (uint32_t t = 0; t < count; ++t) {
      scores[g * stride + t] = scale * dot(q + uint64_t{g} * dim, keys + uint64_t{t} * dim, dim);
    }
  }
}

// scores -> exp(scores - largest), which is returned with their sum.
struct Softmax {
  float largest = kNothing;
  float sum = 0;
};
KVTWIN_WIDE void exponentiate(float* scores, uint32_t count, Softmax* softmax) {
  float largest = kNothing;
  for (uint32_t t = 0; t < count; ++t) largest = scores[t] > largest ? scores[t] : largest;
  for (uint32_t t = 0; t < count; ++t) scores[t] = exact_exp(scores[t] - largest);
  Lanes sum{}, some;
  uint32_t t = 0;
  for (; t + kLanes <= count; t += kLanes) {
    load_lanes(scores + t, &some);
    sum += some;
  }
  load_some_lanes(scores + t, count - t, &some);
  sum += some;
  *softmax = {largest, sum_lanes(sum)};
}

// out[g] += sum of p[g][t] * v[t], in the order of t.
KVTWIN_WIDE void weigh_run(const float* p, const float* values, uint32_t heads, uint32_t count, uint32_t dim,
                           uint64_t stride, float* out) {
  for (uint32_t g = 0; g < heads; ++g) {
    const float* const weight = p + g * stride;
    float* const sum = out + uint64_t{g} * dim;
    uint32_t i = 0;
    for (; i + kLanes <= dim; i += kLanes) {
      Lanes acc, v;
      load_lanes(sum + i, &acc);
      for (uint32_t t = 0; t < count; ++t) {
        load_lanes(values + uint64_t{t} * dim + i, &v);
        acc += weight[t] * v;
      }
      store_lanes(acc, sum + i);
    }
    for (; i < dim; ++i) {
      for (uint32_t t = 0; t < count; ++t) sum[i] += weight[t] * values[uint64_t{t} * dim + i];
    }
  }
}

}  // namespace

void attention_ref(const KvPages& kv, HeadRange heads, uint32_t query_heads, float scale, const float* q,
                   std::span<const AttentionRow> rows, float* out, float* lse) {
  KVT_CHECK(query_heads % kv.kv_heads == 0);
  KVT_CHECK(heads.first + heads.count <= kv.kv_heads);
  const uint32_t group = query_heads / kv.kv_heads, dim = kv.head_dim;
  std::vector<float> scores;
  for (uint64_t r = 0; r < rows.size(); ++r) {
    const uint64_t cells = rows[r].cells;
    scores.resize(group * cells);
    for (uint32_t h = heads.first; h < heads.first + heads.count; ++h) {
      const uint64_t row_head = r * query_heads + uint64_t{h} * group;
      const float* const query = q + row_head * dim;
      float* const result = out + row_head * dim;
      std::fill_n(result, uint64_t{group} * dim, 0.0f);
      uint64_t at = 0;
      for (const ReadRun& run : rows[r].reads) {
        const auto count = static_cast<uint32_t>(std::min<uint64_t>(run.count, cells - at));
        score_run(query, kv.keys + kv.at(run.page, h, run.first), group, count, dim, scale, cells,
                  scores.data() + at);
        at += count;
        if (at == cells) break;
      }
      KVT_CHECK(at == cells);
      Softmax softmax[64];
      KVT_CHECK(group <= 64);
      for (uint32_t g = 0; g < group; ++g)
        exponentiate(scores.data() + g * cells, static_cast<uint32_t>(cells), &softmax[g]);
      at = 0;
      for (const ReadRun& run : rows[r].reads) {
        const auto count = static_cast<uint32_t>(std::min<uint64_t>(run.count, cells - at));
        weigh_run(scores.data() + at, kv.values + kv.at(run.page, h, run.first), group, count, dim, cells,
                  result);
        at += count;
        if (at == cells) break;
      }
      for (uint32_t g = 0; g < group; ++g) {
        if (cells > 0) {
          for (uint32_t i = 0; i < dim; ++i) result[uint64_t{g} * dim + i] /= softmax[g].sum;
        }
        if (lse != nullptr)
          lse[row_head + g] = cells > 0 ? softmax[g].largest + std::log(softmax[g].sum) : kNothing;
      }
    }
  }
}

void merge_attention_ref(std::span<const PartialAttention> parts, uint64_t rows_heads, uint32_t head_dim,
                         float* out, float* lse) {
  for (uint64_t i = 0; i < rows_heads; ++i) {
    float largest = kNothing;
    for (const PartialAttention& part : parts) largest = std::max(largest, part.lse[i]);
    std::fill_n(out + i * head_dim, head_dim, 0.0f);
    if (lse != nullptr) lse[i] = kNothing;
    if (largest == kNothing) continue;
    float sum = 0;
    for (const PartialAttention& part : parts) {
      if (part.lse[i] == kNothing) continue;
      const float weight = exact_exp(part.lse[i] - largest);
      sum += weight;
      for (uint32_t d = 0; d < head_dim; ++d) out[i * head_dim + d] += weight * part.out[i * head_dim + d];
    }
    for (uint32_t d = 0; d < head_dim; ++d) out[i * head_dim + d] /= sum;
    if (lse != nullptr) lse[i] = largest + std::log(sum);
  }
}

}  // namespace kvtwin::kernels
