#include "kernels/packed/packed_attention.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/quant/pack.h"
#include "kernels/quant/pack_low_bit.h"
#include "tests/unit/kernels/random_rows.h"

using namespace kvtwin;
using namespace kvtwin::kernels;
using kvtwin::testing::random_rows;

namespace {

// A run and the bytes that it points to.
struct Packed {
  std::vector<uint8_t> k, v;
  std::vector<float> k_exact, v_exact;
  PackedRun run;
};

struct Mix {
  Rows k, v;
  uint32_t kv_entries;
};

using Bytes = std::vector<uint8_t>;

Bytes pack_rows(Rows rows, const std::vector<float>& x, const PageShape& s) {
  Bytes all;
  const auto each = [&](uint32_t kv_entries, size_t bytes, auto pack) {
    for (size_t at = 0; at < x.size(); at += size_t{kv_entries} * s.head_dim) {
      Bytes piece(bytes);
      pack(std::span(x).subspan(at, size_t{kv_entries} * s.head_dim), std::span(piece));
      all.insert(all.end(), piece.begin(), piece.end());
    }
  };
  if (rows == Rows::kFp8) each(1, s.head_dim, [&](auto in, auto out) { pack_fp8(in, 1, out); });
  if (rows == Rows::kFp4)
    each(1, token_bytes(Format::kFp4, s), [&](auto in, auto out) { pack_fp4(in, out); });
  if (rows == Rows::kInt4)
    each(1, token_bytes(Format::kInt4, s), [&](auto in, auto out) { pack_token(in, 4, s, out); });
  if (rows == Rows::kInt2)
    each(1, token_bytes(Format::kInt2, s), [&](auto in, auto out) { pack_token(in, 2, s, out); });
  if (rows == Rows::kGroup2)
    each(s.group, key_group_bytes(2, s), [&](auto in, auto out) { pack_key_group(in, 2, s, out); });
  return all;
}

Packed make_run(Rows k, Rows v, uint32_t kv_entries, uint64_t seed, const PageShape& s) {
  Packed packed;
  packed.k_exact = random_rows(seed, size_t{kv_entries} * s.head_dim);
  packed.v_exact = random_rows(seed + 1000, size_t{kv_entries} * s.head_dim);
  packed.k = pack_rows(k, packed.k_exact, s);
  packed.v = pack_rows(v, packed.v_exact, s);
  packed.run = {{k, k == Rows::kExact ? static_cast<const void*>(packed.k_exact.data()) : packed.k.data()},
                {v, v == Rows::kExact ? static_cast<const void*>(packed.v_exact.data()) : packed.v.data()},
                kv_entries};
  return packed;
}

// softmax in double over dequantised rows, with all runs as one list.
std::vector<double> naive(std::span<const float> q, float scale, const std::vector<Packed>& runs,
                          const PageShape& s) {
  std::vector<float> k, v;
  for (const Packed& packed : runs) {
    std::vector<float> rows(size_t{packed.run.kv_entries} * s.head_dim);
    unpack_side(packed.run.k, true, packed.run.kv_entries, s, rows);
    k.insert(k.end(), rows.begin(), rows.end());
    unpack_side(packed.run.v, false, packed.run.kv_entries, s, rows);
    v.insert(v.end(), rows.begin(), rows.end());
  }
  const size_t kv_entries = k.size() / s.head_dim;
  std::vector<double> logits(kv_entries, 0.0), out(s.head_dim, 0.0);
  for (size_t t = 0; t < kv_entries; ++t) {
    for (uint32_t c = 0; c < s.head_dim; ++c)
      logits[t] += double{q[c]} * double{k[t * s.head_dim + c]} * double{scale};
  }
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (size_t t = 0; t < kv_entries; ++t) {
    const double weight = std::exp(logits[t] - top);
    sum += weight;
    for (uint32_t c = 0; c < s.head_dim; ++c) out[c] += weight * double{v[t * s.head_dim + c]};
  }
  for (double& x : out) x /= sum;
  return out;
}

double worst(const std::vector<double>& expected, const std::vector<float>& got) {
  double difference = 0;
  for (size_t c = 0; c < got.size(); ++c)
    difference = std::max(difference, std::abs(expected[c] - double{got[c]}));
  return difference;
}

}  // namespace

TEST_CASE("Q-2 attention over packed runs equals the dequantised reference, for every mix of formats") {
  const struct {
    const char* name;
    std::vector<Mix> runs;
    PageShape shape;
  } mixes[] = {
      {"TriAxial: int2 pages, then int4",
       {{Rows::kGroup2, Rows::kInt2, 96}, {Rows::kInt4, Rows::kInt4, 37}},
       {32, 128, 32}},
      {"groups of 64", {{Rows::kGroup2, Rows::kInt2, 128}, {Rows::kInt4, Rows::kInt4, 5}}, {64, 128, 64}},
      {"groups of 128, narrow heads",
       {{Rows::kGroup2, Rows::kInt2, 128}, {Rows::kInt4, Rows::kInt4, 1}},
       {128, 64, 128}},
      {"int4 alone", {{Rows::kInt4, Rows::kInt4, 100}}, {32, 128, 32}},
      {"fp8", {{Rows::kFp8, Rows::kFp8, 77}}, {32, 128, 32}},
      {"fp4", {{Rows::kFp4, Rows::kFp4, 77}}, {32, 128, 32}},
      {"KIVI: packed, then keys packed and values exact, then exact",
       {{Rows::kGroup2, Rows::kInt2, 96},
        {Rows::kGroup2, Rows::kExact, 32},
        {Rows::kExact, Rows::kExact, 30}},
       {32, 128, 32}},
      {"with an empty run", {{Rows::kInt4, Rows::kInt4, 0}, {Rows::kGroup2, Rows::kInt2, 32}}, {32, 128, 32}},
  };
  for (const auto& mix : mixes) {
    CAPTURE(mix.name);
    for (uint64_t seed = 1; seed < 6; ++seed) {
      std::vector<Packed> packed;
      for (const auto& [k, v, kv_entries] : mix.runs)
        packed.push_back(make_run(k, v, kv_entries, seed * 10 + kv_entries, mix.shape));
      std::vector<PackedRun> runs;
      for (const Packed& p : packed) runs.push_back(p.run);
      const auto q = random_rows(seed, mix.shape.head_dim);
      const float scale = 1 / std::sqrt(static_cast<float>(mix.shape.head_dim));
      std::vector<float> out(mix.shape.head_dim), reversed(out.size());
      attend_packed(q, scale, runs, mix.shape, out);
      CHECK(worst(naive(q, scale, packed, mix.shape), out) < 2e-6);
      std::reverse(runs.begin(), runs.end());
      attend_packed(q, scale, runs, mix.shape, reversed);  // the order changes only the rounding
      for (size_t c = 0; c < out.size(); ++c) CHECK(std::abs(out[c] - reversed[c]) < 2e-6f);
    }
  }
}

TEST_CASE("Q-5 a tag map that is int4 everywhere is the int4 baseline, to the bit") {
  const PageShape s{32, 128, 32};
  const Packed whole = make_run(Rows::kInt4, Rows::kInt4, 70, 3, s);
  const auto q = random_rows(9, 128);
  // No int2 pages, and all KV entries in the int4 run: the partition of a tag map without 2-bit tags.
  const PackedRun mixed[] = {{{Rows::kGroup2, nullptr}, {Rows::kInt2, nullptr}, 0}, whole.run};
  std::vector<float> a(128), b(128);
  attend_packed(q, 0.1f, mixed, s, a);
  attend_packed(q, 0.1f, std::span(&whole.run, 1), s, b);
  CHECK(a == b);
}

TEST_CASE("Q-2 attention without KV entries gives zero") {
  std::vector<float> out(128, 5.0f);
  attend_packed(random_rows(1, 128), 1, {}, {32, 128, 32}, out);
  for (const float x : out) CHECK(x == 0);
}
