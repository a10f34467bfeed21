// Matrix product, norm, activation, rotation and sampling against loops in double precision.

#include <doctest/doctest.h>

#include <limits>

#include "kernels/cache_ops/rope_append.h"
#include "kernels/common/exact_exp_lanes.h"
#include "kernels/dense/argmax.h"
#include "kernels/dense/gemm.h"
#include "kernels/dense/rms_norm.h"
#include "kernels/dense/silu_mul.h"
#include "tests/unit/kernels/floats.h"

using namespace kvtwin;
using namespace kvtwin::kernels;
using namespace kvtwin::testing;

namespace {

PackedMatrix packed(const std::vector<float>& w, uint32_t out, uint32_t in) {
  PackedMatrix matrix;
  pack_begin(out, in, &matrix);
  // In two parts where the matrix is large enough.
  const uint32_t first = out > 16 ? 16 : out;
  pack_rows(w.data(), 0, first, &matrix);
  if (out > first) pack_rows(w.data() + size_t{first} * in, first, out - first, &matrix);
  return matrix;
}

}  // namespace

TEST_CASE("gemm: equals sums in double, at every edge of its tiles") {
  for (const uint32_t out : {1u, 15u, 16u, 17u, 48u, 100u}) {
    for (const uint32_t in : {1u, 7u, 48u, 333u}) {
      for (const uint32_t rows : {1u, 2u, 3u, 4u, 5u, 6u, 7u, 13u}) {
        CAPTURE(out);
        CAPTURE(in);
        CAPTURE(rows);
        const auto w = random_floats(1, size_t{out} * in), x = random_floats(2, size_t{rows} * in);
        const auto bias = random_floats(3, out);
        std::vector<double> expected(size_t{rows} * out);
        for (uint32_t r = 0; r < rows; ++r) {
          for (uint32_t n = 0; n < out; ++n) {
            double sum = bias[n];
            for (uint32_t k = 0; k < in; ++k) sum += double{x[r * in + k]} * double{w[n * in + k]};
            expected[r * out + n] = sum;
          }
        }
        std::vector<float> y(size_t{rows} * out, NAN);
        gemm_ref(packed(w, out, in), bias.data(), x.data(), rows, y.data());
        CHECK(distance(y, expected) < 2e-5);
      }
    }
  }
}

TEST_CASE("gemm: a row's bits do not depend on the other rows") {
  const uint32_t out = 75, in = 129, rows = 23;
  const auto w = random_floats(4, size_t{out} * in), x = random_floats(5, size_t{rows} * in);
  const PackedMatrix matrix = packed(w, out, in);
  std::vector<float> all(size_t{rows} * out);
  gemm_ref(matrix, nullptr, x.data(), rows, all.data());
  for (uint32_t first = 0; first < rows; ++first) {
    for (const uint32_t some : {1u, 2u, 5u, 8u}) {
      const uint32_t count = std::min(some, rows - first);
      std::vector<float> part(size_t{count} * out);
      gemm_ref(matrix, nullptr, x.data() + size_t{first} * in, count, part.data());
      CHECK(std::equal(part.begin(), part.end(), all.begin() + first * out));
    }
  }
}

// Verified equal with GCC and clang, for SSE2, AVX2 with and without FMA, and AVX-512.
TEST_CASE("dense kernels: the same bits on every machine") {
  uint64_t bits = 0;
  for (const uint32_t in : {7u, 48u, 333u}) {
    const auto w = random_floats(1, size_t{100} * in), x = random_floats(2, size_t{13} * in);
    std::vector<float> y(13 * 100);
    gemm_ref(packed(w, 100, in), nullptr, x.data(), 13, y.data());
    bits = bits_of(y, bits);
  }
  const auto gate = random_floats(6, 1000, 20), up = random_floats(7, 1000);
  std::vector<float> out(1000);
  silu_mul_ref(gate.data(), up.data(), 1000, out.data());
  bits = bits_of(out, bits);
  rms_norm_ref(gate.data(), up.data(), 1e-5f, 10, 100, out.data());
  CHECK(bits_of(out, bits) == 1704655928938348692u);
}

TEST_CASE("lanes: the bits do not depend on the number of lanes in a register") {
  const auto a = random_floats(10, 100), b = random_floats(11, 100);
  for (uint32_t count = 0; count <= 100; ++count) {
    CAPTURE(count);
    float lanes[kLanes]{};
    for (uint32_t i = 0; i < count; ++i) lanes[i % kLanes] += a[i] * b[i];
    for (uint32_t half = kLanes / 2; half > 0; half /= 2) {
      for (uint32_t i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    }
    CHECK(dot<4>(a.data(), b.data(), count) == lanes[0]);
    CHECK(dot<8>(a.data(), b.data(), count) == lanes[0]);
    CHECK(dot<16>(a.data(), b.data(), count) == lanes[0]);
  }
}

TEST_CASE("exact_exp: within 2 ulp of e^x in the relevant range, and never zero or infinite") {
  double worst = 0;
  for (int i = -87'000; i <= 88'000; ++i) {
    const float x = static_cast<float>(i) / 1000;
    const double right = std::exp(static_cast<double>(x));
    const float rounded = static_cast<float>(right);
    const double ulp = static_cast<double>(std::nextafter(rounded, INFINITY)) - static_cast<double>(rounded);
    worst = std::max(worst, std::abs(static_cast<double>(exact_exp(x)) - right) / ulp);
  }
  MESSAGE("worst: " << worst << " ulp");
  CHECK(worst <= 2);
  CHECK(exact_exp(0) == 1);
  // A vector gives the same bits, also at the ends of the range.
  auto values = random_floats(20, 1000, 100);
  values[0] = INFINITY, values[1] = -INFINITY, values[2] = NAN, values[3] = 0;
  const auto check = [&]<uint32_t kWidth>() {
    std::vector<float> together = values;
    exact_exp_all<kWidth>(0.5f, together.size(), together.data());
    for (size_t i = 0; i < values.size(); ++i) CHECK(together[i] == exact_exp(values[i] - 0.5f));
  };
  check.operator()<4>();
  check.operator()<8>();
  check.operator()<16>();
  CHECK(exact_exp(-INFINITY) > 0);
  CHECK(exact_exp(-INFINITY) < 2e-38f);
  CHECK(std::isfinite(exact_exp(INFINITY)));
}

TEST_CASE("rms_norm: equals the formula in double") {
  for (const uint32_t width : {1u, 15u, 16u, 48u, 200u}) {
    CAPTURE(width);
    const auto x = random_floats(6, 3 * width, 4), weight = random_floats(7, width);
    std::vector<double> expected(3 * width);
    for (uint32_t r = 0; r < 3; ++r) {
      double squares = 0;
      for (uint32_t i = 0; i < width; ++i) squares += double{x[r * width + i]} * double{x[r * width + i]};
      for (uint32_t i = 0; i < width; ++i)
        expected[r * width + i] =
            double{x[r * width + i]} / std::sqrt(squares / width + 1e-5) * double{weight[i]};
    }
    std::vector<float> out = x;
    rms_norm_ref(out.data(), weight.data(), 1e-5f, 3, width, out.data());
    CHECK(distance(out, expected) < 1e-6);
  }
}

TEST_CASE("silu_mul: equals the formula in double, also far from zero") {
  auto gate = random_floats(8, 1000, 20);
  gate[0] = -1e4f, gate[1] = 1e4f, gate[2] = 0;
  const auto up = random_floats(9, 1000);
  std::vector<double> expected(1000);
  for (size_t i = 0; i < 1000; ++i)
    expected[i] = double{gate[i]} / (1 + std::exp(-double{gate[i]})) * double{up[i]};
  std::vector<float> out(1000);
  silu_mul_ref(gate.data(), up.data(), 1000, out.data());
  CHECK(distance(out, expected) < 1e-6);
}

TEST_CASE("argmax: the smallest id of equal logits, and NaN is never the largest") {
  const float inf = std::numeric_limits<float>::infinity();
  CHECK(argmax_ref(std::vector<float>{1, 3, 3, 2}.data(), 4) == 1);
  CHECK(argmax_ref(std::vector<float>{NAN, -5, NAN}.data(), 3) == 1);
  CHECK(argmax_ref(std::vector<float>{NAN, NAN}.data(), 2) == 0);
  CHECK(argmax_ref(std::vector<float>{-inf, -inf}.data(), 2) == 0);
  CHECK(argmax_ref(std::vector<float>{-inf, inf, inf}.data(), 3) == 1);
}

TEST_CASE("rope: rotates pairs across the halves of a head, and keeps their length") {
  const std::vector<float> inv_freq = {1.0f, 0.25f, 0.01f};
  const RopeTable rope{inv_freq, 1.5f};
  const auto x = random_floats(10, 2 * 6);
  for (const uint32_t position : {0u, 1u, 7u, 4096u}) {
    CAPTURE(position);
    std::vector<double> expected(12);
    for (uint32_t h = 0; h < 2; ++h) {
      for (uint32_t i = 0; i < 3; ++i) {
        const double t = position * double{inv_freq[i]}, a = x[h * 6 + i], b = x[h * 6 + i + 3];
        expected[h * 6 + i] = 1.5 * (a * std::cos(t) - b * std::sin(t));
        expected[h * 6 + i + 3] = 1.5 * (b * std::cos(t) + a * std::sin(t));
      }
    }
    auto out = x;
    rope_ref(rope, position, 2, 6, out.data());
    CHECK(distance(out, expected) < 2e-6);
  }
}

TEST_CASE("rope_append: writes rotated keys and plain values to their slots only") {
  const std::vector<float> inv_freq = {1.0f, 0.1f};
  const uint32_t pages = 3, page_tokens = 4, kv_heads = 2, dim = 4;
  std::vector<float> keys(pages * kv_heads * page_tokens * dim, NAN), values(keys.size(), NAN);
  const KvPages kv{keys.data(), values.data(), uint64_t{kv_heads} * page_tokens * dim,
                   page_tokens, kv_heads,      dim};
  const std::vector<AppendRow> rows = {{11, 2, 3}, {12, 0, 0}};
  auto q = random_floats(11, 2 * 4 * dim), k = random_floats(12, 2 * 2 * dim);
  const auto v = random_floats(13, 2 * 2 * dim), q_before = q, k_before = k;
  rope_append_ref({inv_freq, 1}, rows, 4, q.data(), k.data(), v.data(), kv);
  for (uint32_t r = 0; r < 2; ++r) {
    auto q_row = std::vector<float>(q_before.begin() + r * 16, q_before.begin() + r * 16 + 16);
    rope_ref({inv_freq, 1}, rows[r].position, 4, dim, q_row.data());
    CHECK(std::equal(q_row.begin(), q_row.end(), q.begin() + r * 16));
    auto k_row = std::vector<float>(k_before.begin() + r * 8, k_before.begin() + r * 8 + 8);
    rope_ref({inv_freq, 1}, rows[r].position, 2, dim, k_row.data());
    for (uint32_t h = 0; h < kv_heads; ++h) {
      const uint64_t at = kv.at(rows[r].page, h, rows[r].slot);
      CHECK(std::equal(keys.begin() + static_cast<ptrdiff_t>(at),
                       keys.begin() + static_cast<ptrdiff_t>(at + dim), k_row.begin() + h * dim));
      CHECK(std::equal(values.begin() + static_cast<ptrdiff_t>(at),
                       values.begin() + static_cast<ptrdiff_t>(at + dim), v.begin() + r * 8 + h * dim));
    }
  }
  CHECK(std::count_if(keys.begin(), keys.end(), [](float x) { return std::isnan(x); }) ==
        static_cast<ptrdiff_t>(keys.size() - 2 * kv_heads * dim));
}
