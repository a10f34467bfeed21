// Common to benchmarks of bf16 decode attention: lengths, pages shuffled over one large pool, and launches
// that rotate over as many sets of pages as exceed L2.

#ifndef KVTWIN_KERNELS_BENCH_DECODE_CASE_CUH_
#define KVTWIN_KERNELS_BENCH_DECODE_CASE_CUH_

#include <numeric>

#include "kernels/bench/replay.cuh"

namespace kvtwin::test {

constexpr uint32_t kKvHeads = 8, kGroup = 4, kDim = 128, kPage = 16;
constexpr size_t kPoolBlocks = (size_t{18} << 30) / (4 * kDim * kPage);

struct Bench {
  DeviceArray<__nv_bfloat16> pool{kPoolBlocks * 2 * kDim * kPage};
  cudaStream_t stream{};

  Bench() {
    fill_bf16<<<1056, 256>>>(reinterpret_cast<uint4*>(pool.get()), pool.bytes() / 16);
    KVT_CUDA(cudaStreamCreate(&stream));
    KVT_CUDA(cudaDeviceSynchronize());
  }
};
inline Bench& bench() {
  static Bench instance;
  return instance;
}

// Tokens of each KV head of `requests` requests.
using Lengths = std::vector<uint32_t> (*)(uint32_t requests, uint32_t tokens);
inline std::vector<uint32_t> uniform(uint32_t requests, uint32_t tokens) {
  return std::vector<uint32_t>(size_t{requests} * kKvHeads, tokens);
}
inline std::vector<uint32_t> one_hot(uint32_t requests, uint32_t tokens) {
  std::vector<uint32_t> out = uniform(requests, tokens / 16);
  for (size_t i = 0; i < out.size(); i += kKvHeads) out[i + i / kKvHeads % kKvHeads] = tokens;
  return out;
}
inline std::vector<uint32_t> ten_ninety(uint32_t requests, uint32_t tokens) {
  std::vector<uint32_t> out;
  for (uint32_t i = 0; i < requests * kKvHeads; ++i) out.push_back(tokens * (i % 2 ? 9 : 1) / 10);
  return out;
}
// The same requests and rows of padding up to the next captured size.
inline std::vector<uint32_t> padded(uint32_t requests, uint32_t tokens) {
  std::vector<uint32_t> out = uniform(requests, tokens);
  out.resize(size_t{(requests + 7) / 8 * 8} * kKvHeads);
  return out;
}

// Inputs of a step: `requests` requests of up to `tokens` tokens, in as many sets of pages as exceed L2.
struct DecodeCase {
  std::vector<uint32_t> each;  // tokens of each sequence
  double bytes;
  uint32_t pages = 0, sets;
  DecodeShape shape;
  DeviceArray<uint32_t> table_pages;
  DeviceArray<DecodeSequence> table;
  DeviceArray<__nv_bfloat16> q, out;
  DeviceArray<char> workspace;
  DecodeArgs args;

  // ctas_max: most CTAs of any launch. of_eight: tables list KV entries, of which this many of eight are
  // retained; 0: tables list pages.
  DecodeCase(Lengths lengths, uint32_t requests, uint32_t tokens, uint32_t ctas_max, uint32_t of_eight = 0)
      : each(lengths(requests, tokens)),
        bytes(std::accumulate(each.begin(), each.end(), 0.0) * 4 * kDim),
        sets(static_cast<uint32_t>(std::clamp<double>(std::ceil(384e6 / bytes), 1, 48))),
        shape{kDim, kGroup, kPage, 1, static_cast<uint32_t>(each.size()), ctas_max, of_eight > 0},
        q(std::vector<__nv_bfloat16>(each.size() * kGroup * kDim, __float2bfloat16(0.5f))),
        out(each.size() * kGroup * kDim) {
    std::vector<DecodeSequence> rows;
    for (uint32_t i = 0; i < each.size(); ++i) {
      rows.push_back({i * kGroup, pages, each[i], 0});
      pages += of_eight > 0 ? each[i] : (each[i] + kPage - 1) / kPage;
    }
    std::vector<uint32_t> numbers(kPoolBlocks);
    std::iota(numbers.begin(), numbers.end(), 0);
    std::shuffle(numbers.begin(), numbers.end(), std::mt19937(1));
    if (of_eight > 0) numbers = entries_left(numbers, of_eight);
    if (size_t{pages} * sets > numbers.size()) check_cuda(cudaErrorInvalidValue, "the pool is too small");
    table_pages = DeviceArray<uint32_t>(numbers);
    table = DeviceArray<DecodeSequence>(rows);
    workspace = DeviceArray<char>(std::vector<char>(decode_workspace_bytes(shape), 0));
    args = {bench().pool.get(), table_pages.get(), table.get(), q.get(),
            out.get(),          0.0883883f,        nullptr,     workspace.get()};
  }
  // Random retained KV entries of the pages, by set and sequence, in order. Every sequence starts on a new
  // page.
  std::vector<uint32_t> entries_left(const std::vector<uint32_t>& numbers, uint32_t of_eight) const {
    std::vector<uint32_t> out;
    std::mt19937 random(2);
    size_t page = 0;
    for (uint32_t set = 0; set < sets; ++set) {
      for (const uint32_t tokens : each) {
        for (uint32_t left = tokens; left > 0; ++page) {
          if (page == numbers.size()) check_cuda(cudaErrorInvalidValue, "the pool is too small");
          for (uint32_t slot = 0; slot < kPage && left > 0; ++slot) {
            if (random() % 8 >= of_eight) continue;
            out.push_back(numbers[page] * kPage + slot);
            --left;
          }
        }
      }
    }
    return out;
  }
  // The arguments of launch `launch`: the launches of a graph differ in their pages.
  const DecodeArgs& turn(uint32_t launch) {
    args.pages = table_pages.get() + size_t{launch % sets} * pages;
    return args;
  }
};

}  // namespace kvtwin::test

#endif  // KVTWIN_KERNELS_BENCH_DECODE_CASE_CUH_
