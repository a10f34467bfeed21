#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "engine/base/check.h"
#include "kernels/attention/attention.h"
#include "kernels/common/exact_exp_lanes.h"
#include "kernels/common/wide.h"

namespace kvtwin::kernels {
namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

using Half = float __attribute__((vector_size(kLanes / 2 * sizeof(float))));

template <uint32_t kWidth>
[[gnu::always_inline]] inline void fold(const Lanes<kWidth>& lanes, Half* half) {
  if constexpr (kWidth == kLanes / 2) {
    *half = lanes.part[0] + lanes.part[1];
  } else {
    Half low, high;
    std::memcpy(&low, &lanes, sizeof low);
    std::memcpy(&high, reinterpret_cast<const char*>(&lanes) + sizeof low, sizeof high);
    *half = low + high;
  }
}

// The sums of eight vectors at once, each in the order of sum_lanes(), independent of the other seven.
[[gnu::always_inline]] inline void sum_eight(const Half* v, Half* sums) {
  Half fours[4], twos[2];
  for (uint32_t i = 0; i < 4; ++i) {
    const Half a = v[2 * i], b = v[2 * i + 1];
    fours[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11) +
               __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  }
  for (uint32_t i = 0; i < 2; ++i) {
    const Half a = fours[2 * i], b = fours[2 * i + 1];
    twos[i] = __builtin_shufflevector(a, b, 0, 1, 4, 5, 8, 9, 12, 13) +
              __builtin_shufflevector(a, b, 2, 3, 6, 7, 10, 11, 14, 15);
  }
  *sums = __builtin_shufflevector(twos[0], twos[1], 0, 2, 4, 6, 8, 10, 12, 14) +
          __builtin_shufflevector(twos[0], twos[1], 1, 3, 5, 7, 9, 11, 13, 15);
}

// scores[g][t] = scale * (q[g] . k[t]) for `count` consecutive keys, with the bits of dot().
struct ScoreRun {
  static constexpr uint32_t kKeys = 8;

  // folded[j] <- the lanes of q . key j, folded once. kSome keys at a time fit in registers.
  template <uint32_t kWidth, uint32_t kSome>
  [[gnu::always_inline]] static void some(const float* query, const float* keys, uint32_t dim, Half* folded) {
    Lanes<kWidth> acc[kSome]{}, x, y;
    for (uint32_t i = 0; i < dim; i += kLanes) {
      load_lanes(query + i, &x);
      for (uint32_t j = 0; j < kSome; ++j) {
        load_lanes(keys + uint64_t{j} * dim + i, &y);
        add_product(x, y, &acc[j]);
      }
    }
// Without unrolling GCC keeps them in memory.
#pragma GCC unroll 8
    for (uint32_t j = 0; j < kSome; ++j) fold(acc[j], &folded[j]);
  }

  template <uint32_t kWidth>
  [[gnu::always_inline]] static void eight(const float* query, const float* keys, uint32_t dim, Half* sums) {
    Half folded[kKeys];
    constexpr uint32_t kSome = kWidth < kLanes ? 4 : kKeys;
    for (uint32_t j = 0; j < kKeys; j += kSome)
      some<kWidth, kSome>(query, keys + uint64_t{j} * dim, dim, folded + j);
    sum_eight(folded, sums);
  }

  template <uint32_t kWidth>
  [[gnu::always_inline]] static void run(const float* q, const float* keys, uint32_t heads, uint32_t count,
                                         uint32_t dim, float scale, uint64_t stride, float* scores) {
    for (uint32_t g = 0; g < heads; ++g) {
      const float* const query = q + uint64_t{g} * dim;
      float* const to = scores + g * stride;
      uint32_t t = 0;
      for (; dim % kLanes == 0 && t + kKeys <= count; t += kKeys) {
        Half sums;
        eight<kWidth>(query, keys + uint64_t{t} * dim, dim, &sums);
        sums *= scale;
        std::memcpy(to + t, &sums, sizeof sums);
      }
      for (; t < count; ++t) to[t] = scale * dot<kWidth>(query, keys + uint64_t{t} * dim, dim);
    }
  }
};

// scores -> exp(scores - largest); *softmax gets the largest score and the sum.
struct Softmax {
  float largest = kNothing;
  float sum = 0;
};
struct Exponentiate {
  template <uint32_t kWidth>
  [[gnu::always_inline]] static void run(float* scores, uint32_t count, Softmax* softmax) {
    Register<kWidth> largest = Register<kWidth>{} + kNothing, few;
    uint32_t t = 0;
    for (; t + kWidth <= count; t += kWidth) {
      std::memcpy(&few, scores + t, sizeof few);
      largest = few > largest ? few : largest;
    }
    float top[kWidth], most = kNothing;
    std::memcpy(top, &largest, sizeof top);
    for (const float x : top) most = x > most ? x : most;
    for (; t < count; ++t) most = scores[t] > most ? scores[t] : most;
    exact_exp_all<kWidth>(most, count, scores);
    Lanes<kWidth> sum{}, some;
    for (t = 0; t + kLanes <= count; t += kLanes) {
      load_lanes(scores + t, &some);
      add(some, &sum);
    }
    load_some_lanes(scores + t, count - t, &some);
    add(some, &sum);
    *softmax = {most, sum_lanes(sum)};
  }
};

// sum[i] += sum over t of weight[t] * values[t][i], i below kSixteens * 16. Each element is summed in order
// of t; several vectors at a time hide the latency of additions.
template <uint32_t kWidth, uint32_t kSixteens>
[[gnu::always_inline]] inline void weigh(const float* weight, const float* values, uint32_t count,
                                         uint32_t dim, float* sum) {
  Lanes<kWidth> acc[kSixteens], v;
  for (uint32_t j = 0; j < kSixteens; ++j) load_lanes(sum + j * kLanes, &acc[j]);
  for (uint32_t t = 0; t < count; ++t) {
    for (uint32_t j = 0; j < kSixteens; ++j) {
      load_lanes(values + uint64_t{t} * dim + j * kLanes, &v);
      add_product(weight[t], v, &acc[j]);
    }
  }
  for (uint32_t j = 0; j < kSixteens; ++j) store_lanes(acc[j], sum + j * kLanes);
}

// out[g] += sum over t of p[g][t] * v[t].
struct WeighRun {
  template <uint32_t kWidth>
  [[gnu::always_inline]] static void run(const float* p, const float* values, uint32_t heads, uint32_t count,
                                         uint32_t dim, uint64_t stride, float* out) {
    for (uint32_t g = 0; g < heads; ++g) {
      const float* const weight = p + g * stride;
      float* const sum = out + uint64_t{g} * dim;
      uint32_t i = 0;
      for (; i + 4 * kLanes <= dim; i += 4 * kLanes)
        weigh<kWidth, 4>(weight, values + i, count, dim, sum + i);
      for (; i + kLanes <= dim; i += kLanes) weigh<kWidth, 1>(weight, values + i, count, dim, sum + i);
      for (; i < dim; ++i) {
        for (uint32_t t = 0; t < count; ++t) sum[i] += weight[t] * values[uint64_t{t} * dim + i];
      }
    }
  }
};

}  // namespace

void attention_ref(const KvPages& kv, HeadRange heads, uint32_t query_heads, float scale, const float* q,
                   std::span<const AttentionRow> rows, float* out, float* lse) {
  KVT_CHECK(query_heads % kv.kv_heads == 0);
  KVT_CHECK(heads.first + heads.count <= kv.kv_heads);
  const uint32_t group = query_heads / kv.kv_heads, dim = kv.head_dim;
  std::vector<float> scores;
  for (uint64_t r = 0; r < rows.size(); ++r) {
    const uint64_t kv_entries = rows[r].kv_entries;
    scores.resize(group * kv_entries);
    for (uint32_t h = heads.first; h < heads.first + heads.count; ++h) {
      const uint64_t row_head = r * query_heads + uint64_t{h} * group;
      const float* const query = q + row_head * dim;
      float* const result = out + row_head * dim;
      std::fill_n(result, uint64_t{group} * dim, 0.0f);
      uint64_t at = 0;
      for (const ReadRun& run : rows[r].reads) {
        const auto count = static_cast<uint32_t>(std::min<uint64_t>(run.count, kv_entries - at));
        widest<ScoreRun>(query, kv.keys + kv.at(run.page, h, run.first), group, count, dim, scale, kv_entries,
                         scores.data() + at);
        at += count;
        if (at == kv_entries) break;
      }
      KVT_CHECK(at == kv_entries);
      Softmax softmax[64];
      KVT_CHECK(group <= 64);
      for (uint32_t g = 0; g < group; ++g)
        widest<Exponentiate>(scores.data() + g * kv_entries, static_cast<uint32_t>(kv_entries), &softmax[g]);
      at = 0;
      for (const ReadRun& run : rows[r].reads) {
        const auto count = static_cast<uint32_t>(std::min<uint64_t>(run.count, kv_entries - at));
        widest<WeighRun>(scores.data() + at, kv.values + kv.at(run.page, h, run.first), group, count, dim,
                         kv_entries, result);
        at += count;
        if (at == kv_entries) break;
      }
      for (uint32_t g = 0; g < group; ++g) {
        if (kv_entries > 0) {
          for (uint32_t i = 0; i < dim; ++i) result[uint64_t{g} * dim + i] /= softmax[g].sum;
        }
        if (lse != nullptr)
          lse[row_head + g] = kv_entries > 0 ? softmax[g].largest + std::log(softmax[g].sum) : kNothing;
      }
    }
  }
}

}  // namespace kvtwin::kernels
