#include <algorithm>
#include <numeric>
#include <vector>

#include "engine/base/check.h"
#include "kernels/common/exact_exp.h"
#include "kernels/dense/argmax.h"
#include "kernels/dense/sample.h"
#include "kernels/select/select.h"

namespace kvtwin::kernels {
namespace {

// floor(a b / 2^64).
uint64_t high_product(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((Wide{a} * b) >> 64);
}

}  // namespace

uint32_t sample_ref(const SampleSpec& spec, const float* logits, uint32_t count, uint64_t draw) {
  KVT_CHECK(count > 0 && count <= 1u << 18);
  const uint32_t best = argmax_ref(logits, count);
  std::vector<uint64_t> weights(count);
  for (uint32_t i = 0; i < count; ++i) {
    const float x = (logits[i] - logits[best]) * spec.inverse_temperature;
    weights[i] = static_cast<uint64_t>(exact_exp(x) * 1073741824.0f);
  }
  std::vector<uint32_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return order_key(logits[a], 0) > order_key(logits[b], 0); });
  if (spec.top_k > 0 && spec.top_k < count) order.resize(spec.top_k);
  uint64_t total = 0;
  for (const uint32_t i : order) total += weights[i];
  if (total == 0) return best;
  if (spec.top_p_q32 > 0) {
    const uint64_t enough = std::max<uint64_t>(1, high_product(total, uint64_t{spec.top_p_q32} << 32));
    uint64_t sum = 0;
    size_t retained = 0;
    while (sum < enough) sum += weights[order[retained++]];
    order.resize(retained);
    total = sum;
  }
  std::sort(order.begin(), order.end());
  const uint64_t at = high_product(draw, total);
  uint64_t sum = 0;
  for (const uint32_t i : order) {
    sum += weights[i];
    if (sum > at) return i;
  }
  KVT_CHECK(!"a draw beyond the sum");
  return best;
}

}  // namespace kvtwin::kernels
