// The kernels that move KV entries between formats and places, compared with their definitions: to the bit
// where the definition rounds to the same format, which is everywhere except in the rotation.

#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstring>

#include "kernels/bench/decode_problem.cuh"
#include "kernels/cache_ops/page_moves.h"
#include "kernels/cache_ops/rope_append.h"
#include "kernels/cache_ops/rope_append_cuda.h"
#include "kernels/common/kv_block.cuh"
#include "kernels/common/small_floats.h"
#include "tests/support/gpu_main.h"

namespace kvtwin::test {
namespace {

using Bits = std::vector<uint16_t>;

constexpr uint16_t kPoison = 0x7fc1;  // a NaN

uint16_t bf16(float x) { return kernels::to_bf16(x); }
float dequantized(uint16_t bits) { return kernels::from_bf16(bits); }
__nv_bfloat16* device(const DeviceArray<uint16_t>& a) { return reinterpret_cast<__nv_bfloat16*>(a.get()); }

Bits random_bits(std::mt19937_64* random, size_t count, float size = 1) {
  std::normal_distribution<float> normal(0, size);
  Bits out(count);
  for (uint16_t& x : out) x = bf16(normal(*random));
  return out;
}
std::vector<uint32_t> shuffled(std::mt19937_64* random, uint32_t count) {
  std::vector<uint32_t> out(count);
  for (uint32_t i = 0; i < count; ++i) out[i] = i;
  std::shuffle(out.begin(), out.end(), *random);
  return out;
}

void check_summaries(uint32_t page, uint32_t dim, uint32_t count, uint32_t ctas, std::mt19937_64* random) {
  CAPTURE(page);
  CAPTURE(dim);
  CAPTURE(count);
  const uint32_t blocks = count + 4;
  const KvBlockShape block{page, dim};
  for (const auto kind : {PageSummaryKind::kMinMax, PageSummaryKind::kCuboid, PageSummaryKind::kMean}) {
    Bits pool(blocks * block.numbers(), kPoison), want(blocks * 2 * dim, kPoison);
    const std::vector<uint32_t> where = shuffled(random, blocks), to = shuffled(random, blocks);
    std::vector<SummaryPage> pages;
    for (uint32_t i = 0; i < count; ++i) {
      const uint32_t kv_entries = i % 3 == 0 ? page : static_cast<uint32_t>((*random)() % (page + 1));
      pages.push_back({where[i], kv_entries, to[i]});
      for (uint32_t c = 0; c < dim && kv_entries > 0; ++c) {
        float high = -INFINITY, low = INFINITY, sum = 0, far = 0;
        std::vector<float> keys;
        for (uint32_t t = 0; t < kv_entries; ++t) {
          uint16_t& key = pool[where[i] * block.numbers() + block.at(t, c)];
          key = random_bits(random, 1)[0];
          keys.push_back(dequantized(key));
          high = std::max(high, dequantized(key)), low = std::min(low, dequantized(key)),
          sum += dequantized(key);
        }
        const float center = (high + low) * 0.5f, n = static_cast<float>(kv_entries);
        for (const float key : keys) far += std::abs(center - key);
        if (kind == PageSummaryKind::kCuboid) high = center + far / n, low = center - far / n;
        if (kind == PageSummaryKind::kMean) high = low = sum / n;
        want[to[i] * 2 * dim + c] = bf16(high), want[to[i] * 2 * dim + dim + c] = bf16(low);
      }
    }
    const DeviceArray<uint16_t> on_device(pool), out(Bits(want.size(), kPoison));
    const DeviceArray<SummaryPage> table(pages);
    KVT_CUDA(summarise_pages({device(on_device), table.get(), device(out), count, page, dim, kind, ctas},
                             nullptr));
    CHECK(out.read() == want);
  }
}

TEST_CASE("summarise_pages: high and low of every kind, over full and partly filled pages") {
  std::mt19937_64 random(4);
  for (const uint32_t page : {1u, 16u, 32u, 128u}) {
    for (const uint32_t dim : {64u, 128u}) check_summaries(page, dim, 37, 132, &random);
  }
}

TEST_CASE("summarise_pages, many: by warps that process several pages") {
  std::mt19937_64 random(5);
  check_summaries(16, 64, 2053, 2, &random);
  check_summaries(32, 128, 517, 132, &random);
  check_summaries(24, 128, 701, 1, &random);
  check_summaries(64, 128, 257, 3, &random);
}

TEST_CASE(
    "gather_entries: retained KV entries of ragged sequences, between pages of different sizes and columns") {
  std::mt19937_64 random(5);
  for (const auto& [from, to, dim, heads, all] : {std::tuple{16u, 16u, 128u, 1u, false},
                                                  {1u, 64u, 128u, 1u, true},
                                                  {32u, 1u, 64u, 2u, false},
                                                  {48u, 16u, 64u, 1u, false},
                                                  {64u, 128u, 128u, 4u, true},
                                                  {16u, 32u, 128u, 8u, false}}) {
    CAPTURE(from);
    CAPTURE(to);
    const uint32_t sequences = 24;
    std::vector<GatherSequence> table;
    std::vector<uint32_t> retained, source_pages, target_pages, source_entries;
    for (uint32_t i = 0; i < sequences; ++i) {
      const uint32_t kv_entries = i % 5 == 4 ? 0 : static_cast<uint32_t>(random() % 300);
      table.push_back({static_cast<uint32_t>(retained.size()), static_cast<uint32_t>(source_pages.size()),
                       i % heads, static_cast<uint32_t>(target_pages.size()), i % heads});
      uint32_t count = 0;
      for (uint32_t t = 0; t < kv_entries; ++t) {
        if (all || random() % 2) retained.push_back(t), ++count;
      }
      source_pages.resize(source_pages.size() + (kv_entries + from - 1) / from);
      target_pages.resize(target_pages.size() + (count + to - 1) / to);
    }
    table.push_back({static_cast<uint32_t>(retained.size()), 0, 0, 0, 0});
    const auto deal = [&](std::vector<uint32_t>* pages) {
      const std::vector<uint32_t> numbers = shuffled(&random, static_cast<uint32_t>(pages->size()) + 2);
      std::copy_n(numbers.begin(), pages->size(), pages->begin());
    };
    deal(&source_pages), deal(&target_pages);
    const KvBlockShape source{from, dim}, target{to, dim};
    const Bits pool = random_bits(&random, (source_pages.size() + 2) * heads * source.numbers());
    Bits want((target_pages.size() + 2) * heads * target.numbers(), kPoison);
    for (uint32_t i = 0; i < sequences; ++i) {
      const GatherSequence& s = table[i];
      for (uint32_t c = s.first; c < table[i + 1].first; ++c) {
        const uint32_t t = retained[c], u = c - s.first;
        const size_t a =
            (size_t{source_pages[s.source_table + t / from]} * heads + s.source_column) * source.numbers();
        const size_t b =
            (size_t{target_pages[s.target_table + u / to]} * heads + s.target_column) * target.numbers();
        for (uint32_t d = 0; d < dim; ++d) {
          want[b + target.at(u % to, d)] = pool[a + source.at(t % from, d)];
          want[b + target.numbers() / 2 + target.at(u % to, d)] =
              pool[a + source.numbers() / 2 + source.at(t % from, d)];
        }
      }
    }
    const DeviceArray<uint16_t> in(pool), out(Bits(want.size(), kPoison));
    const DeviceArray<uint32_t> source_on(source_pages), target_on(target_pages), retained_on(retained);
    const DeviceArray<GatherSequence> table_on(table);
    for (const uint32_t ctas : {1056u, 3u}) {
      KVT_CUDA(gather_entries({device(in),
                               device(out),
                               {source_on.get(), from, heads},
                               {target_on.get(), to, heads},
                               table_on.get(),
                               all ? nullptr : retained_on.get(),
                               sequences,
                               dim,
                               ctas},
                              nullptr));
      CHECK(out.read() == want);
    }
  }
}

struct RopeCase {
  uint32_t rows, query_heads, kv_heads, dim, page;
  bool ragged, norm, in_place;
};

// |got - want| against a step of bf16 at `size`.
bool close(uint16_t got, float want, float size) {
  return std::abs(dequantized(got) - want) <= size * 0x1p-8f + 1e-6f;
}

struct RopeProblem {
  RopeCase c;
  uint32_t heads, width, per_row;
  KvBlockShape block;
  RopeAppendArgs args;
  Bits qkv, weight;
  std::vector<uint32_t> positions;
  std::vector<float> inv_freq;
  std::vector<AppendSlot> slots;
  DeviceArray<uint16_t> matrix, pool, q, norms;
  DeviceArray<uint32_t> at;
  DeviceArray<AppendSlot> slots_on;
  DeviceArray<float> freq;
  size_t written = 0;

  explicit RopeProblem(const RopeCase& wanted)
      : c(wanted),
        heads(c.query_heads + 2 * c.kv_heads),
        width(heads * c.dim),
        per_row(c.ragged ? c.kv_heads : 1),
        block{c.page, c.dim} {
    std::mt19937_64 random(c.rows);
    const uint32_t each = c.ragged ? 1 : c.kv_heads;
    qkv = random_bits(&random, size_t{c.rows} * width, 2), weight = random_bits(&random, 2 * c.dim);
    for (uint32_t r = 0; r < c.rows; ++r) positions.push_back(static_cast<uint32_t>(random() % 131072));
    for (uint32_t i = 0; i < c.dim / 2; ++i) {
      inv_freq.push_back(std::pow(5e5f, -2.f * static_cast<float>(i) / static_cast<float>(c.dim)));
    }
    const std::vector<uint32_t> places = shuffled(&random, c.rows * per_row);
    for (uint32_t i = 0; i < c.rows * per_row; ++i) {
      slots.push_back({i % 11 == 10 ? kNoBlock : places[i] / c.page * each, places[i] % c.page});
    }
    const size_t blocks = (places.size() / c.page + 1) * each;
    matrix = DeviceArray<uint16_t>(qkv),
    pool = DeviceArray<uint16_t>(Bits(blocks * block.numbers(), kPoison));
    q = DeviceArray<uint16_t>(Bits(size_t{c.rows} * c.query_heads * c.dim, kPoison));
    norms = DeviceArray<uint16_t>(weight), at = DeviceArray<uint32_t>(positions);
    slots_on = DeviceArray<AppendSlot>(slots), freq = DeviceArray<float>(inv_freq);
    args.qkv = device(matrix), args.positions = at.get(), args.slots = slots_on.get();
    args.inv_freq = freq.get(), args.rope_scale = 1.25f, args.eps = 1e-5f;
    args.rows = c.rows, args.query_heads = c.query_heads, args.kv_heads = c.kv_heads;
    args.head_dim = c.dim, args.page_tokens = c.page, args.slots_per_row = per_row;
    args.q = c.in_place ? device(matrix) : device(q);
    args.q_stride = c.in_place ? width : c.query_heads * c.dim;
    if (c.in_place) args.k = device(matrix) + size_t{c.query_heads} * c.dim, args.k_stride = width;
    if (c.norm) args.q_norm = device(norms), args.k_norm = device(norms) + c.dim;
    args.pool = device(pool);
  }

  // The expected numbers of a head, and the size of the terms that they are sums of.
  void expect(uint32_t row, uint32_t head, std::vector<float>* x, std::vector<float>* size) const {
    const bool query = head < c.query_heads, value = head >= c.query_heads + c.kv_heads;
    double sum = 0;
    for (uint32_t d = 0; d < c.dim; ++d) {
      (*x)[d] = dequantized(qkv[size_t{row} * width + head * c.dim + d]);
      sum += static_cast<double>((*x)[d]) * static_cast<double>((*x)[d]);
    }
    const float scale = 1 / std::sqrt(static_cast<float>(sum / c.dim) + 1e-5f);
    for (uint32_t d = 0; d < c.dim && c.norm && !value; ++d) {
      (*x)[d] *= scale * dequantized(weight[d + (query ? 0 : c.dim)]);
    }
    for (uint32_t d = 0; d < c.dim; ++d) {
      (*size)[d] = 1.25f * (std::abs((*x)[d]) + std::abs((*x)[(d + c.dim / 2) % c.dim]));
    }
    if (!value) kernels::rope_ref({inv_freq, 1.25f}, positions[row], 1, c.dim, x->data());
  }

  // True if the pages hold the expected numbers.
  bool head_is_right(uint32_t row, uint32_t head, const Bits& rows, const Bits& queries,
                     const Bits& kv_entries) {
    std::vector<float> x(c.dim), size(c.dim);
    expect(row, head, &x, &size);
    const bool query = head < c.query_heads, value = head >= c.query_heads + c.kv_heads;
    const uint32_t kv_head = query ? 0 : (head - c.query_heads) % c.kv_heads;
    const AppendSlot slot = slots[size_t{row} * per_row + (c.ragged ? kv_head : 0)];
    const size_t from = size_t{row} * width + head * c.dim;
    bool right = true;
    for (uint32_t d = 0; d < c.dim; ++d) {
      if (query) right &= close(queries[size_t{row} * args.q_stride + head * c.dim + d], x[d], size[d]);
      if (!query && !value && c.in_place) right &= close(rows[from + d], x[d], size[d]);
      if (query || slot.block == kNoBlock) continue;
      ++written;
      const uint16_t kv_entry = kv_entries[(slot.block + (c.ragged ? 0 : kv_head)) * block.numbers() +
                                           (value ? block.numbers() / 2 : 0) + block.at(slot.slot, d)];
      right &= value ? kv_entry == qkv[from + d] : close(kv_entry, x[d], size[d]);
    }
    return right;
  }
};

TEST_CASE("rope_append: rotated queries and keys, and every KV entry in its page, for any shape") {
  for (const RopeCase& c : {RopeCase{1, 32, 8, 128, 16, false, false, false},
                            {37, 8, 2, 64, 1, true, true, false},
                            {300, 4, 4, 128, 64, false, true, true},
                            {1501, 8, 1, 128, 32, true, false, true},
                            {1025, 6, 2, 256, 16, false, true, false},
                            {70, 15, 5, 64, 8, false, false, true},
                            {1100, 64, 8, 128, 16, false, true, true},
                            {4099, 6, 2, 64, 16, false, true, false}}) {
    CAPTURE(c.rows);
    RopeProblem p(c);
    KVT_CUDA(rope_append(p.args, nullptr));
    KVT_CUDA(cudaDeviceSynchronize());
    const Bits rows = p.matrix.read(), queries = c.in_place ? rows : p.q.read(), kv_entries = p.pool.read();
    bool right = true;
    for (uint32_t r = 0; r < c.rows; ++r) {
      for (uint32_t h = 0; h < p.heads; ++h) right &= p.head_is_right(r, h, rows, queries, kv_entries);
    }
    CHECK(right);
    CHECK(static_cast<size_t>(std::count(kv_entries.begin(), kv_entries.end(), kPoison)) ==
          kv_entries.size() - p.written);
  }
}

}  // namespace
}  // namespace kvtwin::test

int main(int argc, char** argv) { return kvtwin::testing::run_on_gpu(argc, argv, kvtwin::test::gpus()); }
