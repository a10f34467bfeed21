// The small kernels of a forward pass on CUDA compared with their definitions: odd widths, one row, many,
// ties, NaN.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "engine/base/prng.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_rows.h"
#include "kernels/bench/decode_problem.cuh"
#include "kernels/cache_ops/qkv_append.h"
#include "kernels/cache_ops/rope_append.h"
#include "kernels/common/kv_block.cuh"
#include "kernels/common/small_floats.h"
#include "kernels/dense/argmax.h"
#include "kernels/dense/dense_cuda.h"
#include "kernels/dense/rms_norm.h"
#include "kernels/dense/silu_mul.h"
#include "tests/support/gpu_main.h"

namespace kvtwin::test {
namespace {

using Bf16 = __nv_bfloat16;

// One rounding to bf16 of the fp32 result, and a margin for another order of sums.
constexpr float kRounding = 1.0f / 256 + 1e-5f;

struct Numbers {
  std::vector<float> dequantized;  // exact in bf16
  std::vector<Bf16> narrow;
};

Numbers numbers(uint64_t seed, size_t count, float scale = 1) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0, scale);
  Numbers out;
  for (size_t i = 0; i < count; ++i) {
    out.narrow.push_back(__float2bfloat16_rn(normal(random)));
    out.dequantized.push_back(__bfloat162float(out.narrow.back()));
  }
  return out;
}

// The largest |a - b| / (|b| + floor).
float distance(const std::vector<Bf16>& a, const std::vector<float>& b, float floor = 0.05f) {
  REQUIRE(a.size() == b.size());
  float worst = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    const float one = std::fabs(__bfloat162float(a[i]) - b[i]) / (std::fabs(b[i]) + floor);
    if (!(one <= worst)) worst = one;  // NaN is retained
  }
  return worst;
}

template <typename T>
DeviceArray<T> poisoned(size_t count) {
  DeviceArray<T> out(count);
  KVT_CUDA(cudaMemset(out.get(), 0xff, out.bytes()));
  return out;
}

void done() { KVT_CUDA(cudaDeviceSynchronize()); }

TEST_CASE("rms_norm on CUDA equals its definition, rows picked or not") {
  for (const uint32_t width : {1u, 40u, 511u, 513u, 4096u, 8192u, 8196u}) {
    for (const uint32_t rows : {1u, 7u, 300u}) {
      CAPTURE(width);
      CAPTURE(rows);
      const Numbers x = numbers(width + rows, size_t{rows} * width, 3), weight = numbers(5, width);
      const DeviceArray<float> on_x(x.dequantized), on_weight(weight.dequantized);
      auto out = poisoned<Bf16>(size_t{rows} * width);
      std::vector<float> expected(size_t{rows} * width);
      kernels::rms_norm_ref(x.dequantized.data(), weight.dequantized.data(), 1e-5f, rows, width,
                            expected.data());
      KVT_CUDA(rms_norm({on_x.get(), nullptr, on_weight.get(), 1e-5f, rows, width, out.get()}, nullptr));
      CHECK(distance(out.read(), expected) < kRounding);
      const std::vector<uint32_t> pick = {rows - 1, 0};
      const DeviceArray<uint32_t> on_pick(pick);
      auto picked = poisoned<Bf16>(2 * size_t{width});
      KVT_CUDA(
          rms_norm({on_x.get(), on_pick.get(), on_weight.get(), 1e-5f, 2, width, picked.get()}, nullptr));
      std::vector<float> of_picked(expected.end() - width, expected.end());
      of_picked.insert(of_picked.end(), expected.begin(), expected.begin() + width);
      CHECK(distance(picked.read(), of_picked) < kRounding);
    }
  }
}

TEST_CASE("silu_mul, embed and add_bias on CUDA equal their definitions") {
  for (const uint32_t width : {2u, 56u, 1022u, 14336u}) {
    for (const uint32_t rows : {1u, 5u}) {
      CAPTURE(width);
      const Numbers both = numbers(width, size_t{rows} * 2 * width, 3);
      const DeviceArray<Bf16> on_device(both.narrow);
      auto out = poisoned<Bf16>(size_t{rows} * width);
      KVT_CUDA(silu_mul({on_device.get(), rows, width, out.get()}, nullptr));
      std::vector<float> expected(size_t{rows} * width);
      for (uint32_t r = 0; r < rows; ++r) {
        const float* const gate = both.dequantized.data() + size_t{r} * 2 * width;
        kernels::silu_mul_ref(gate, gate + width, width, expected.data() + size_t{r} * width);
      }
      CHECK(distance(out.read(), expected) < kRounding);

      auto x = poisoned<float>(3 * size_t{width});
      const DeviceArray<uint32_t> tokens(std::vector<uint32_t>{1, 0, 1});
      KVT_CUDA(embed({on_device.get(), tokens.get(), 3, width, x.get()}, nullptr));
      const DeviceArray<float> bias(std::vector<float>(width, 0.5f));
      KVT_CUDA(add_bias({bias.get(), 3, width, x.get()}, nullptr));
      const std::vector<float> got = x.read();
      bool same = true;
      for (size_t i = 0; i < got.size(); ++i)
        same &= got[i] == both.dequantized[(i / width == 1 ? 0 : width) + i % width] + 0.5f;
      CHECK(same);
    }
  }
}

TEST_CASE("argmax on CUDA: the first of equal ones; NaN is ignored; without numbers it is the first") {
  const float nan = std::nanf(""), low = -INFINITY;
  for (const uint32_t count : {1u, 2u, 511u, 512u, 513u, 4096u, 5000u, 128256u}) {
    CAPTURE(count);
    std::vector<float> logits(6 * size_t{count});
    std::mt19937 random(count);
    for (float& x : logits) x = static_cast<float>(static_cast<int>(random() % 50)) - 60;  // many ties
    for (uint32_t i = 0; i < count; ++i) logits[i] = nan, logits[count + i] = low;
    if (count > 2) logits[2 * size_t{count}] = nan, logits[3 * size_t{count} - 1] = 1e30f;
    const DeviceArray<float> on_device(logits);
    auto out = poisoned<uint32_t>(6);
    KVT_CUDA(argmax({on_device.get(), 6, count, out.get()}, nullptr));
    std::vector<uint32_t> expected;
    for (size_t r = 0; r < 6; ++r) expected.push_back(kernels::argmax_ref(logits.data() + r * count, count));
    CHECK(out.read() == expected);
  }
}

TEST_CASE("draw_weights: the bytes drawn on the host") {
  // The formula of models/weights/weights.cc, written again.
  const auto drawn = [](uint64_t key, uint64_t i, float mean, float gain) {
    const uint64_t bits = mix64(key + i * 0x9e3779b97f4a7c15u);
    const int64_t sum =
        static_cast<int64_t>((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48)) -
        131'070;
    volatile float noise = static_cast<float>(sum) * 2.642882e-5f;
    volatile float scaled = gain * noise;
    return kernels::to_bf16(mean + scaled);
  };
  auto out = poisoned<Bf16>(100'003);
  KVT_CUDA(draw_weights({0x1234567890abcdefu, 1, 0.37f, 100'003, out.get()}, nullptr));
  const std::vector<Bf16> got = out.read();
  bool same = true;
  for (size_t i = 0; i < got.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, &got[i], 2);
    same &= bits == drawn(0x1234567890abcdefu, i, 1, 0.37f);
  }
  CHECK(same);
}

// Pages on the host in the device's layout, with NaN where nothing was written.
struct Pages {
  KvBlockShape block;
  uint32_t heads = 0;
  std::vector<Bf16> narrow;
  std::vector<float> dequantized;

  Pages(KvBlockShape shape, uint32_t kv_heads, uint32_t pages)
      : block(shape),
        heads(kv_heads),
        dequantized(size_t{pages} * kv_heads * shape.numbers(), std::nanf("")) {}

  // In the layout of kv_pages.h: all keys of a page, then all values.
  kernels::KvPages view() {
    const size_t part = size_t{heads} * block.page_tokens * block.head_dim;
    return {dequantized.data(), dequantized.data() + part, 2 * part, block.page_tokens, heads,
            block.head_dim};
  }
  // Converts these pages into blocks.
  void low_bit_all() {
    kernels::KvPages from = view();
    narrow.resize(dequantized.size());
    for (size_t page = 0; page < dequantized.size() / from.page_stride; ++page) {
      for (uint32_t h = 0; h < heads; ++h) {
        Bf16* const to = narrow.data() + (page * heads + h) * block.numbers();
        for (uint32_t s = 0; s < block.page_tokens; ++s) {
          for (uint32_t c = 0; c < block.head_dim; ++c) {
            const size_t at = from.at(static_cast<uint32_t>(page), h, s) + c;
            to[block.at(s, c)] = __float2bfloat16_rn(from.keys[at]);
            to[size_t{block.page_tokens} * block.head_dim + block.at(s, c)] =
                __float2bfloat16_rn(from.values[at]);
          }
        }
      }
    }
  }
};

TEST_CASE("qkv_append on CUDA: norms, rotation, and every number in its place") {
  for (const uint32_t dim : {16u, 64u, 128u, 256u}) {
    for (const uint32_t page : {1u, 5u, 16u, 64u}) {
      for (const bool normed : {false, true}) {
        CAPTURE(dim);
        CAPTURE(page);
        const uint32_t rows = 37, q_heads = 6, kv_heads = 2, pages = 80;
        std::vector<AppendSlot> slots;
        std::vector<uint32_t> positions;
        std::vector<kernels::AppendRow> appends;
        for (uint32_t r = 0; r < rows; ++r) {
          const uint32_t at = (r / page * 7 + 3) % pages;
          positions.push_back(r * 3001);
          slots.push_back({at * kv_heads, r % page});
          appends.push_back({positions.back(), at, r % page});
        }
        std::vector<float> inverse;
        for (uint32_t i = 0; i < dim / 2; ++i)
          inverse.push_back(std::pow(1e4f, -2.0f * static_cast<float>(i) / static_cast<float>(dim)));
        const uint32_t heads = q_heads + 2 * kv_heads;
        const Numbers qkv = numbers(dim + page, size_t{rows} * heads * dim), gain = numbers(3, dim);
        std::vector<float> q, k, v;
        for (uint32_t r = 0; r < rows; ++r) {
          const float* row = qkv.dequantized.data() + size_t{r} * heads * dim;
          q.insert(q.end(), row, row + q_heads * dim), row += q_heads * dim;
          k.insert(k.end(), row, row + kv_heads * dim), row += kv_heads * dim;
          v.insert(v.end(), row, row + kv_heads * dim);
        }
        if (normed) {
          kernels::rms_norm_ref(q.data(), gain.dequantized.data(), 1e-6f, rows * q_heads, dim, q.data());
          kernels::rms_norm_ref(k.data(), gain.dequantized.data(), 1e-6f, rows * kv_heads, dim, k.data());
        }
        Pages expected({page, dim}, kv_heads, pages);
        kernels::rope_append_ref({inverse, 1.25f}, appends, q_heads, q.data(), k.data(), v.data(),
                                 expected.view());
        expected.low_bit_all();
        const DeviceArray<Bf16> on_qkv(qkv.narrow);
        const DeviceArray<AppendSlot> on_slots(slots);
        const DeviceArray<uint32_t> on_positions(positions);
        const DeviceArray<float> on_inverse(inverse);
        const DeviceArray<Bf16> on_gain(gain.narrow);
        auto on_q = poisoned<Bf16>(q.size()), pool = poisoned<Bf16>(expected.narrow.size());
        RopeAppendArgs args{.qkv = on_qkv.get(), .positions = on_positions.get(), .slots = on_slots.get()};
        args.inv_freq = on_inverse.get(), args.rope_scale = 1.25f, args.eps = 1e-6f;
        args.q_norm = args.k_norm = normed ? on_gain.get() : nullptr;
        args.rows = rows, args.query_heads = q_heads, args.kv_heads = kv_heads;
        args.head_dim = dim, args.page_tokens = page, args.q_stride = q_heads * dim;
        args.q = on_q.get(), args.pool = pool.get();
        KVT_CUDA(qkv_append(args, nullptr));
        CHECK(distance(on_q.read(), q) < kRounding);
        const std::vector<Bf16> got = pool.read();
        float worst = 0;
        bool same_nan = true;
        for (size_t i = 0; i < got.size(); ++i) {
          const float a = __bfloat162float(got[i]), b = __bfloat162float(expected.narrow[i]);
          same_nan &= std::isnan(a) == std::isnan(b);
          if (!std::isnan(b)) worst = std::max(worst, std::fabs(a - b) / (std::fabs(b) + 0.05f));
        }
        CHECK(same_nan);
        CHECK(worst < 2 * kRounding);  // two roundings may differ in direction
      }
    }
  }
}

TEST_CASE("attention_rows on CUDA equals attention_ref: groups, head sizes, pages, ragged rows") {
  for (const uint32_t dim : {16u, 64u, 128u, 256u}) {
    for (const uint32_t group : {1u, 3u, 4u, 8u}) {
      for (const uint32_t page : {1u, 5u, 16u, 64u}) {
        CAPTURE(dim);
        CAPTURE(group);
        CAPTURE(page);
        const uint32_t kv_heads = 2, q_heads = group * kv_heads;
        const std::vector<uint32_t> lengths = {1, 0, 31, 32, 33, 127, 128, 129, 300};
        Pages pages({page, dim}, kv_heads, 1200);
        std::mt19937_64 random(dim * 100 + group * 10 + page);
        std::vector<uint32_t> order(1200), table;
        for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
        std::shuffle(order.begin(), order.end(), random);
        std::vector<QueryRow> list;
        std::vector<std::vector<kernels::ReadRun>> runs;
        for (const uint32_t kv_entries : lengths) {
          const auto row = static_cast<uint32_t>(lengths.size() - 1 - list.size());  // in another order
          list.push_back({row, static_cast<uint32_t>(table.size()), kv_entries});
          runs.emplace_back();
          for (uint32_t first = 0; first < kv_entries; first += page) {
            table.push_back(order[table.size()]);
            runs.back().push_back({table.back(), 0, page});
            for (uint32_t s = 0; s < page && first + s < kv_entries; ++s) {
              for (uint32_t h = 0; h < kv_heads; ++h) {
                const kernels::KvPages view = pages.view();
                const size_t at = view.at(table.back(), h, s);
                const Numbers kv_entry = numbers(random(), 2 * dim);
                std::copy_n(kv_entry.dequantized.begin(), dim, view.keys + at);
                std::copy_n(kv_entry.dequantized.begin() + dim, dim, view.values + at);
              }
            }
          }
        }
        pages.low_bit_all();
        const Numbers q = numbers(9, lengths.size() * q_heads * dim);
        std::vector<kernels::AttentionRow> rows(lengths.size());
        for (size_t i = 0; i < list.size(); ++i) rows[list[i].row] = {runs[i], list[i].kv_entries};
        std::vector<float> expected(q.dequantized.size());
        const float scale = 1 / std::sqrt(static_cast<float>(dim));
        kernels::attention_ref(pages.view(), {0, kv_heads}, q_heads, scale, q.dequantized.data(), rows,
                               expected.data(), nullptr);
        const DeviceArray<Bf16> pool(pages.narrow), on_q(q.narrow);
        const DeviceArray<uint32_t> on_table(table);
        const DeviceArray<QueryRow> on_list(list);
        auto out = poisoned<Bf16>(q.dequantized.size());
        KVT_CUDA(attention_rows({pool.get(), on_table.get(), on_list.get(), on_q.get(), out.get(), scale,
                                 static_cast<uint32_t>(list.size()), q_heads, kv_heads, dim, page},
                                nullptr));
        CHECK(distance(out.read(), expected) < kRounding);
      }
    }
  }
}

TEST_CASE("impossible shapes are refused") {
  CHECK(attention_rows({.query_heads = 9, .kv_heads = 1, .head_dim = 64, .page_tokens = 16}, nullptr) ==
        cudaErrorInvalidValue);
  CHECK(attention_rows({.query_heads = 8, .kv_heads = 1, .head_dim = 80, .page_tokens = 16}, nullptr) ==
        cudaErrorInvalidValue);
  CHECK(qkv_append({.query_heads = 8, .kv_heads = 1, .head_dim = 12, .page_tokens = 16}, nullptr) ==
        cudaErrorInvalidValue);
  CHECK(silu_mul({.rows = 1, .width = 3}, nullptr) == cudaErrorInvalidValue);
  CHECK(argmax({.rows = 1, .count = 0}, nullptr) == cudaErrorInvalidValue);
  done();
}

}  // namespace
}  // namespace kvtwin::test

int main(int argc, char** argv) { return kvtwin::testing::run_on_gpu(argc, argv, kvtwin::test::gpus()); }
