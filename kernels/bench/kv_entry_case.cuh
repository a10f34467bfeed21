// KV entries of a method's heads for benchmarks: Llama-3.1-8B's heads, pages in random order, and scores
// distributed like probabilities.

#ifndef KVTWIN_KERNELS_BENCH_KV_ENTRY_CASE_CUH_
#define KVTWIN_KERNELS_BENCH_KV_ENTRY_CASE_CUH_

#include <numeric>

#include "kernels/bench/replay.cuh"
#include "kernels/common/kv_entry_heads.h"

namespace kvtwin::test {

constexpr uint32_t kDim = 128, kPage = 16, kGroup = 4;

inline void report(benchmark::State& state, double bytes, double seconds) {
  state.counters["us_median"] = seconds * 1e6;
  state.counters["MB"] = bytes / 1e6;
  state.counters["GBps"] = bytes / seconds / 1e9;
  state.counters["pct_ceiling"] = bytes / seconds / kReadCeiling * 100;
}

struct KvEntries {
  uint32_t heads, rows;
  DeviceArray<__nv_bfloat16> pool;
  DeviceArray<float> scorer_state, scores;
  DeviceArray<uint32_t> tables;
  DeviceArray<KvEntryHead> list;
  std::vector<KvEntryHead> host;

  KvEntries(uint32_t count, uint32_t each) : heads(count), rows(each) {
    const uint32_t pages = heads * (rows / kPage);
    pool = random_bf16(size_t{pages} * kPage * 2 * kDim);
    scorer_state = DeviceArray<float>(std::vector<float>(size_t{pages} * kPage, 0.5f));
    std::vector<uint32_t> order(pages);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(1));
    tables = DeviceArray<uint32_t>(order);
    for (uint32_t h = 0; h < heads; ++h) host.push_back({h * (rows / kPage), 0, 0, rows});
    list = DeviceArray<KvEntryHead>(host);
    std::vector<float> values(size_t{heads} * rows);
    std::mt19937 random(2);
    std::normal_distribution<float> normal;
    // Log-normal: spread over many orders of magnitude, as probabilities are.
    for (float& x : values) x = std::exp(3 * normal(random) - 9);
    scores = DeviceArray<float>(values);
  }
  KvEntryPool kv_entries() const { return {pool.get(), tables.get(), kPage, 1, kDim, false}; }
  double all() const { return static_cast<double>(heads) * rows; }
};

}  // namespace kvtwin::test

#endif  // KVTWIN_KERNELS_BENCH_KV_ENTRY_CASE_CUH_
