// Heads of KV entries on the device, arranged to expose errors: pages in random order, NaN in every
// unwritten slot, heads of different lengths, tables of pages or of KV entries; and the same numbers in
// fp32.

#ifndef KVTWIN_TESTS_UNIT_CUDA_KERNELS_KV_ENTRY_PROBLEM_CUH_
#define KVTWIN_TESTS_UNIT_CUDA_KERNELS_KV_ENTRY_PROBLEM_CUH_

#include <numeric>

#include "kernels/bench/decode_problem.cuh"
#include "kernels/common/kv_block.cuh"
#include "kernels/common/kv_entry_heads.h"
#include "kernels/common/view.h"

namespace kvtwin::test {

using Floats = std::vector<float>;

// Largest difference relative to the largest finite number; infinite numbers must be infinite in both.
inline double off(const float* got, const Floats& expected) {
  double size = 1e-30, worst = 0;
  for (const float x : expected) size = std::isfinite(x) ? std::max(size, std::abs(double{x})) : size;
  for (size_t i = 0; i < expected.size(); ++i) {
    if (got[i] == expected[i]) continue;
    if (!std::isfinite(got[i]) || !std::isfinite(expected[i])) return INFINITY;
    worst = std::max(worst, std::abs(double{got[i]} - double{expected[i]}) / size);
  }
  return worst;
}

// Sums of some thousand fp32 products at most in another order, and powers of logits of about ten.
constexpr double kScoreError = 3e-5;

inline const std::vector<std::vector<uint32_t>> kRows = {{1}, {40, 7, 129, 128}, {500, 1, 333}, {1, 16, 700}};
inline const std::vector<std::vector<uint32_t>> kFirst = {{0}, {0, 5, 16, 31}, {3, 0, 100}, {17, 1, 0}};

using Bf16s = std::vector<__nv_bfloat16>;

inline Bf16s normal_bf16(std::mt19937_64* random, size_t count, float size) {
  std::normal_distribution<float> normal(0, size);
  Bf16s out(count);
  for (auto& x : out) x = __float2bfloat16(normal(*random));
  return out;
}
inline std::vector<float> widened(const Bf16s& from) {
  std::vector<float> out;
  for (const __nv_bfloat16 x : from) out.push_back(__bfloat162float(x));
  return out;
}

struct KvEntryProblem {
  struct Shape {
    uint32_t page = 16, columns = 1, dim = 64;
    bool listed = false;
  };
  Shape shape;
  std::vector<KvEntryHead> heads;
  std::vector<std::vector<float>> keys, values;  // by head, [rows][dim]
  std::vector<uint32_t> tables;
  Bf16s host_pool;
  std::vector<float> host_state;
  DeviceArray<__nv_bfloat16> pool;
  DeviceArray<float> scorer_state;
  DeviceArray<uint32_t> tables_on;
  DeviceArray<KvEntryHead> heads_on;
  uint32_t rows_max = 0;

  // Head h has rows[h] rows after first[h] other KV entries.
  KvEntryProblem(Shape wanted, const std::vector<uint32_t>& rows, const std::vector<uint32_t>& first,
                 uint64_t seed)
      : shape(wanted) {
    std::mt19937_64 random(seed);
    uint32_t pages = 0;
    for (uint32_t h = 0; h < rows.size(); ++h) pages += (first[h] + rows[h]) / shape.page + 1;
    const uint32_t slots_per_page = shape.page * shape.columns;
    std::vector<uint32_t> free(pages + 3);
    std::iota(free.begin(), free.end(), 0);
    std::shuffle(free.begin(), free.end(), random);
    host_pool.assign(free.size() * slots_per_page * 2 * shape.dim, __float2bfloat16(NAN));
    host_state.assign(free.size() * slots_per_page, NAN);
    std::normal_distribution<float> normal;
    for (uint32_t h = 0; h < rows.size(); ++h) {
      const uint32_t all = first[h] + rows[h];
      KvEntryHead head{static_cast<uint32_t>(tables.size()), static_cast<uint32_t>(random() % shape.columns),
                       first[h], rows[h]};
      std::vector<uint32_t> mine;
      for (uint32_t p = 0; p <= all / shape.page; ++p) mine.push_back(free.back()), free.pop_back();
      if (shape.listed) {
        for (uint32_t c = 0; c < all; ++c)
          tables.push_back(mine[c / shape.page] * shape.page + c % shape.page);
      } else {
        tables.insert(tables.end(), mine.begin(), mine.end());
      }
      heads.push_back(head);
      keys.emplace_back(), values.emplace_back();
      rows_max = std::max(rows_max, rows[h]);
      const float size = 0.5f + static_cast<float>(random() % 4);
      for (uint32_t c = 0; c < all; ++c) {
        host_state[state_at(head, c)] = normal(random);
        for (uint32_t i = 0; i < 2 * shape.dim; ++i) {
          const __nv_bfloat16 x = __float2bfloat16(size * normal(random));
          host_pool[at(head, c, i % shape.dim, i >= shape.dim)] = x;
          if (c >= first[h]) (i < shape.dim ? keys : values)[h].push_back(__bfloat162float(x));
        }
      }
    }
    pool = DeviceArray<__nv_bfloat16>(host_pool);
    scorer_state = DeviceArray<float>(host_state);
    tables_on = DeviceArray<uint32_t>(tables);
    heads_on = DeviceArray<KvEntryHead>(heads);
  }

  KvBlockShape block() const { return {shape.page, shape.dim}; }
  // The (block, slot) of KV entry `c` of the head's table.
  std::pair<size_t, uint32_t> place(const KvEntryHead& head, uint32_t c) const {
    const uint32_t entry = tables[head.table + (shape.listed ? c : c / shape.page)];
    const uint32_t page = shape.listed ? entry / shape.page : entry, slot = c % shape.page;
    return {size_t{page} * shape.columns + head.column, slot};
  }
  size_t at(const KvEntryHead& head, uint32_t c, uint32_t channel, bool value) const {
    const auto [number, slot] = place(head, c);
    return number * block().numbers() + (value ? size_t{shape.page} * shape.dim : 0) +
           block().at(slot, channel);
  }
  size_t state_at(const KvEntryHead& head, uint32_t c) const {
    const auto [number, slot] = place(head, c);
    return number * shape.page + slot;
  }
  KvEntryPool kv_entries() const {
    return {pool.get(), tables_on.get(), shape.page, shape.columns, shape.dim, shape.listed};
  }
  uint32_t count() const { return static_cast<uint32_t>(heads.size()); }
  kernels::HeadsView keys_of(uint32_t h) const {
    return kernels::packed_heads(keys[h], 1, heads[h].rows, shape.dim);
  }
};

// Pages around tile edges, shared by several heads or not, listed or not.
inline std::vector<KvEntryProblem::Shape> table_shapes() {
  return {{16, 1, 64}, {16, 3, 128}, {1, 2, 64}, {32, 1, 128}, {16, 2, 128, true}, {64, 4, 64}};
}

}  // namespace kvtwin::test

#endif  // KVTWIN_TESTS_UNIT_CUDA_KERNELS_KV_ENTRY_PROBLEM_CUH_
