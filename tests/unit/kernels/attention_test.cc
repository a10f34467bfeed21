// Paged attention compared with a softmax in double precision without pages.

#include "kernels/attention/attention.h"

#include <doctest/doctest.h>

#include <numeric>

#include "tests/unit/kernels/floats.h"

using namespace kvtwin;
using namespace kvtwin::kernels;
using namespace kvtwin::testing;

namespace {

struct Shape {
  uint32_t kv_heads = 2, group = 4, dim = 64, page = 16;
};

// A page pool whose slots are poison until written, and a shuffled page table.
struct Pool {
  Pool(const Shape& s, uint32_t kv_entries, uint64_t seed) : shape(s) {
    const uint32_t pages = (kv_entries + s.page - 1) / s.page + 3;
    stride = uint64_t{s.kv_heads} * s.page * s.dim;
    keys.assign(pages * stride, NAN);
    values.assign(pages * stride, NAN);
    std::vector<uint32_t> order(pages);
    std::iota(order.begin(), order.end(), 0u);
    Prng prng(seed);
    for (uint32_t i = pages - 1; i > 0; --i) std::swap(order[i], order[prng.range(0, i)]);
    plain_keys = random_floats(seed + 1, size_t{kv_entries} * s.kv_heads * s.dim, 2);
    plain_values = random_floats(seed + 2, plain_keys.size());
    for (uint32_t t = 0; t < kv_entries; ++t) {
      if (t % s.page == 0) reads.push_back({order[t / s.page], 0, 0});
      ++reads.back().count;
      for (uint32_t h = 0; h < s.kv_heads; ++h) {
        const uint64_t to = pages_of().at(reads.back().page, h, t % s.page);
        const uint64_t from = (uint64_t{t} * s.kv_heads + h) * s.dim;
        std::copy_n(plain_keys.begin() + static_cast<ptrdiff_t>(from), s.dim,
                    keys.begin() + static_cast<ptrdiff_t>(to));
        std::copy_n(plain_values.begin() + static_cast<ptrdiff_t>(from), s.dim,
                    values.begin() + static_cast<ptrdiff_t>(to));
      }
    }
  }
  KvPages pages_of() { return {keys.data(), values.data(), stride, shape.page, shape.kv_heads, shape.dim}; }

  Shape shape;
  uint64_t stride = 0;
  std::vector<float> keys, values, plain_keys, plain_values;
  std::vector<ReadRun> reads;
};

struct Expected {
  std::vector<double> out, lse;
};

// Row r attends to the first kv_entries[r] KV entries.
Expected naive(const Pool& pool, const std::vector<float>& q, const std::vector<uint32_t>& kv_entries,
               double scale) {
  const Shape& s = pool.shape;
  const uint32_t heads = s.kv_heads * s.group;
  Expected e{std::vector<double>(q.size()), std::vector<double>(kv_entries.size() * heads)};
  for (size_t r = 0; r < kv_entries.size(); ++r) {
    for (uint32_t j = 0; j < heads; ++j) {
      const size_t row = r * heads + j;
      std::vector<double> p(kv_entries[r]);
      double sum = 0;
      for (uint32_t t = 0; t < kv_entries[r]; ++t) {
        const size_t kv_entry = (size_t{t} * s.kv_heads + j / s.group) * s.dim;
        double score = 0;
        for (uint32_t i = 0; i < s.dim; ++i)
          score += double{q[row * s.dim + i]} * double{pool.plain_keys[kv_entry + i]};
        p[t] = std::exp(scale * score);
        sum += p[t];
      }
      e.lse[row] = std::log(sum);
      for (uint32_t t = 0; t < kv_entries[r]; ++t) {
        const size_t kv_entry = (size_t{t} * s.kv_heads + j / s.group) * s.dim;
        for (uint32_t i = 0; i < s.dim; ++i)
          e.out[row * s.dim + i] += p[t] / sum * double{pool.plain_values[kv_entry + i]};
      }
    }
  }
  return e;
}

struct AttentionOutput {
  std::vector<float> out, lse;
};

AttentionOutput attend(Pool* pool, const std::vector<float>& q, const std::vector<AttentionRow>& rows,
                       float scale) {
  const Shape& s = pool->shape;
  AttentionOutput got{std::vector<float>(q.size(), NAN),
                      std::vector<float>(rows.size() * s.kv_heads * s.group, NAN)};
  attention_ref(pool->pages_of(), {0, s.kv_heads}, s.kv_heads * s.group, scale, q.data(), rows,
                got.out.data(), got.lse.data());
  return got;
}

}  // namespace

TEST_CASE("attention: equals a softmax in double over shuffled pages, at every page edge") {
  for (const Shape& s : {Shape{2, 4, 64, 16}, Shape{4, 1, 16, 16}, Shape{1, 8, 20, 5}, Shape{2, 3, 128, 1}}) {
    for (const uint32_t kv_entries : {1u, s.page - 1, s.page, s.page + 1, 3 * s.page + 2, 300u}) {
      if (kv_entries == 0) continue;
      CAPTURE(s.kv_heads);
      CAPTURE(s.group);
      CAPTURE(s.dim);
      CAPTURE(s.page);
      CAPTURE(kv_entries);
      Pool pool(s, kv_entries, 100 + kv_entries);
      // A chunk at the end of the KV entries: row i attends to the entries before it and to itself.
      const uint32_t rows = std::min(kv_entries, 7u);
      const auto q = random_floats(5, size_t{rows} * s.kv_heads * s.group * s.dim);
      std::vector<uint32_t> reach;
      std::vector<AttentionRow> table;
      for (uint32_t i = 0; i < rows; ++i) {
        reach.push_back(kv_entries - rows + i + 1);
        table.push_back({pool.reads, reach.back()});
      }
      const float scale = 1 / std::sqrt(static_cast<float>(s.dim));
      const AttentionOutput got = attend(&pool, q, table, scale);
      const Expected expected = naive(pool, q, reach, double{scale});
      CHECK(distance(got.out, expected.out) < 1e-5);
      CHECK(distance(got.lse, expected.lse) < 1e-5);
    }
  }
}

TEST_CASE("attention: a row's bits do not depend on the other rows") {
  const Shape s;
  Pool pool(s, 77, 3);
  const auto q = random_floats(6, size_t{4} * 8 * s.dim);
  const std::vector<AttentionRow> rows = {
      {pool.reads, 77}, {pool.reads, 1}, {pool.reads, 40}, {pool.reads, 76}};
  const AttentionOutput all = attend(&pool, q, rows, 0.125f);
  for (size_t r = 0; r < rows.size(); ++r) {
    const std::vector<float> one(q.begin() + static_cast<ptrdiff_t>(r * 8 * s.dim),
                                 q.begin() + static_cast<ptrdiff_t>((r + 1) * 8 * s.dim));
    const AttentionOutput alone = attend(&pool, one, {rows[r]}, 0.125f);
    CHECK(std::equal(alone.out.begin(), alone.out.end(),
                     all.out.begin() + static_cast<ptrdiff_t>(r * 8 * s.dim)));
    CHECK(std::equal(alone.lse.begin(), alone.lse.end(), all.lse.begin() + static_cast<ptrdiff_t>(r * 8)));
  }
}

TEST_CASE("attention: a row without KV entries gets zeros and -inf") {
  Pool pool({}, 5, 1);
  const auto q = random_floats(6, 8 * 64);
  const AttentionOutput got = attend(&pool, q, {{{}, 0}}, 1);
  CHECK(std::all_of(got.out.begin(), got.out.end(), [](float x) { return x == 0; }));
  CHECK(std::all_of(got.lse.begin(), got.lse.end(), [](float x) { return x == -INFINITY; }));
}

TEST_CASE("X-7 attention: the order of runs changes only the rounding") {
  const Shape s;
  Pool pool(s, 150, 9);
  const auto q = random_floats(7, 8 * s.dim);
  const AttentionOutput whole = attend(&pool, q, {{pool.reads, 150}}, 0.125f);
  auto backwards = pool.reads;
  std::reverse(backwards.begin(), backwards.end());
  const AttentionOutput permuted = attend(&pool, q, {{backwards, 150}}, 0.125f);
  CHECK(distance(permuted.out, whole.out) < 2e-6);
  CHECK(distance(permuted.lse, whole.lse) < 2e-6);
}

TEST_CASE("attention: KV heads that read different KV entries are called one by one") {
  const Shape s{2, 2, 32, 8};
  Pool pool(s, 40, 4);
  const auto q = random_floats(8, 4 * s.dim);
  const AttentionOutput all = attend(&pool, q, {{pool.reads, 40}}, 0.2f);
  const AttentionOutput less = attend(&pool, q, {{pool.reads, 13}}, 0.2f);
  std::vector<float> out(q.size(), NAN);
  const AttentionRow forty{pool.reads, 40}, thirteen{pool.reads, 13};
  attention_ref(pool.pages_of(), {0, 1}, 4, 0.2f, q.data(), {&thirteen, 1}, out.data(), nullptr);
  attention_ref(pool.pages_of(), {1, 1}, 4, 0.2f, q.data(), {&forty, 1}, out.data(), nullptr);
  CHECK(std::equal(out.begin(), out.begin() + 2 * s.dim, less.out.begin()));
  CHECK(std::equal(out.begin() + 2 * s.dim, out.end(), all.out.begin() + 2 * s.dim));
}

TEST_CASE("attention: the same bits on every machine") {
  uint64_t bits = 0;
  for (const uint32_t dim : {16u, 20u, 64u, 128u}) {
    for (const uint32_t kv_entries : {1u, 17u, 500u}) {
      Pool pool({2, 4, dim, 16}, kv_entries, 21);
      const auto q = random_floats(22, size_t{8} * dim, 2);
      bits = bits_of(attend(&pool, q, {{pool.reads, kv_entries}}, 0.2f).out, bits);
    }
  }
  CHECK(bits == 6292046672719105335u);
}
