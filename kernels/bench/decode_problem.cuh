// Inputs of a decode step on the device that expose errors: pages in random order, NaN wherever nothing was
// written, random numbers from a seed, and the expected result in double precision.

#ifndef KVTWIN_KERNELS_BENCH_DECODE_PROBLEM_CUH_
#define KVTWIN_KERNELS_BENCH_DECODE_PROBLEM_CUH_

#include <cuda_bf16.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <vector>

#include "kernels/attention/attention_decode.h"

namespace kvtwin::test {

inline void check_cuda(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
#define KVT_CUDA(request) ::kvtwin::test::check_cuda((request), #request)

template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  explicit DeviceArray(size_t count) : count_(count) { KVT_CUDA(cudaMalloc(&data_, bytes())); }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(std::max<size_t>(1, values.size())) {
    KVT_CUDA(cudaMemcpy(data_, values.data(), values.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  DeviceArray(DeviceArray&& other) noexcept { *this = std::move(other); }
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~DeviceArray() { cudaFree(data_); }
  T* get() const { return data_; }
  size_t bytes() const { return std::max<size_t>(1, count_) * sizeof(T); }
  std::vector<T> read() const {
    std::vector<T> out(count_);
    KVT_CUDA(cudaMemcpy(out.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return out;
  }

 private:
  T* data_ = nullptr;
  size_t count_ = 0;
};

// Number of GPUs.
inline int gpus() {
  int devices = 0;
  return cudaGetDeviceCount(&devices) == cudaSuccess ? devices : 0;
}

// The largest difference of `out` from `expected`, relative to the row's largest expected number.
inline double largest_error(const DeviceArray<__nv_bfloat16>& out, const std::vector<double>& expected,
                            uint32_t head_dim) {
  const std::vector<__nv_bfloat16> got = out.read();
  double worst = 0;
  for (size_t row = 0; row < got.size() / head_dim; ++row) {
    double size = 1e-3, off = 0;
    for (uint32_t c = 0; c < head_dim; ++c) {
      const size_t i = row * head_dim + c;
      const double value = static_cast<double>(__bfloat162float(got[i]));
      size = std::max(size, std::abs(expected[i]));
      off = std::isnan(value) ? INFINITY : std::max(off, std::abs(value - expected[i]));
    }
    worst = std::max(worst, off / size);
  }
  return worst;
}

struct DecodeProblem {
  DecodeShape shape;
  DecodeArgs args;
  std::vector<double> expected;  // [rows][head_dim]
  DeviceArray<__nv_bfloat16> pool, q, out;
  DeviceArray<uint32_t> pages;
  DeviceArray<DecodeSequence> table;
  DeviceArray<char> plan, workspace;

  // tokens[i]: tokens of sequence i. heads_per_page sequences share a page table and must have equal lengths.
  // Tables of KV entries leave out some of the KV entries of their pages.
  DecodeProblem(DecodeShape wanted, const std::vector<uint32_t>& tokens, uint64_t seed) : shape(wanted) {
    std::mt19937_64 random(seed);
    shape.sequences = static_cast<uint32_t>(tokens.size());
    const uint32_t d = shape.head_dim, page = shape.page_tokens, heads = shape.heads_per_page;
    const size_t block = size_t{2} * d * page;
    std::vector<DecodeSequence> rows;
    std::vector<uint32_t> numbers;
    for (uint32_t i = 0; i < tokens.size(); ++i) {
      const uint32_t own = entries_listed() ? tokens[i] : (tokens[i] + page - 1) / page;
      if (i % heads == 0) add_table(own, random, &numbers);
      rows.push_back({i * shape.group, static_cast<uint32_t>(numbers.size()) - own, tokens[i], i % heads});
    }
    std::vector<uint32_t> shuffled(pages_used + 3);  // some pages are unused
    for (uint32_t p = 0; p < shuffled.size(); ++p) shuffled[p] = p;
    std::shuffle(shuffled.begin(), shuffled.end(), random);
    for (uint32_t& entry : numbers) {
      entry = entries_listed() ? shuffled[entry / page] * page + entry % page : shuffled[entry];
    }
    std::vector<__nv_bfloat16> kv_entries(shuffled.size() * heads * block, __float2bfloat16(NAN));
    std::vector<__nv_bfloat16> queries(tokens.size() * shape.group * d);
    std::normal_distribution<float> normal;
    for (auto& value : queries) value = __float2bfloat16(2 * normal(random));
    fill_entries(rows, numbers, block, &kv_entries, [&] { return __float2bfloat16(normal(random)); });
    solve(rows, numbers, block, kv_entries, queries);
    pool = DeviceArray<__nv_bfloat16>(kv_entries);
    q = DeviceArray<__nv_bfloat16>(queries);
    out = DeviceArray<__nv_bfloat16>(std::vector<__nv_bfloat16>(queries.size(), __float2bfloat16(NAN)));
    pages = DeviceArray<uint32_t>(numbers);
    table = DeviceArray<DecodeSequence>(rows);
    plan = DeviceArray<char>(std::vector<char>(decode_plan_bytes(shape), 0x5a));
    workspace = DeviceArray<char>(std::vector<char>(decode_workspace_bytes(shape), 0));
    args = {pool.get(), pages.get(),    table.get(),
            q.get(),    out.get(),      1.f / std::sqrt(static_cast<float>(d)),
            plan.get(), workspace.get()};
  }

  // Index of element `channel` of a token's key (value, if `values`) in its block.
  size_t at(uint32_t token_in_page, uint32_t channel, bool values) const {
    const uint32_t swizzle = shape.page_tokens == 1 ? 0 : token_in_page & 7;
    const uint32_t row = token_in_page + (values ? shape.page_tokens : 0);
    return size_t{row} * shape.head_dim + ((channel / 8) ^ swizzle) * 8 + channel % 8;
  }

  double error() const { return largest_error(out, expected, shape.head_dim); }

 private:
  uint32_t pages_used = 0;

  bool entries_listed() const { return shape.listed && shape.page_tokens > 1; }
  // Adds a table of new pages. Tables of KV entries retain all, most, half or an eighth of a page.
  // The fraction is random for each page.
  void add_table(uint32_t entries, std::mt19937_64& random, std::vector<uint32_t>* numbers) {
    if (!entries_listed()) {
      for (uint32_t p = 0; p < entries; ++p) numbers->push_back(pages_used++);
      return;
    }
    uint32_t of_eight = 0;
    for (uint32_t kv_entry = pages_used * shape.page_tokens; entries > 0; ++kv_entry) {
      if (kv_entry % shape.page_tokens == 0) {
        of_eight = std::array<uint32_t, 4>{8, 7, 4, 1}[random() % 4];
        pages_used = kv_entry / shape.page_tokens + 1;
      }
      if (random() % 8 >= of_eight) continue;
      numbers->push_back(kv_entry);
      --entries;
    }
  }
  uint32_t slot_of(const DecodeSequence& row, const std::vector<uint32_t>& numbers, uint32_t token) const {
    return (entries_listed() ? numbers[row.table + token] : token) % shape.page_tokens;
  }
  size_t block_of(const DecodeSequence& row, const std::vector<uint32_t>& numbers, uint32_t token,
                  size_t block) const {
    const uint32_t page = entries_listed() ? numbers[row.table + token] / shape.page_tokens
                                           : numbers[row.table + token / shape.page_tokens];
    return (size_t{page} * shape.heads_per_page + row.column) * block;
  }
  template <typename Draw>
  void fill_entries(const std::vector<DecodeSequence>& rows, const std::vector<uint32_t>& numbers,
                    size_t block, std::vector<__nv_bfloat16>* kv_entries, const Draw& draw) const {
    for (const DecodeSequence& row : rows) {
      for (uint32_t t = 0; t < row.tokens; ++t) {
        const size_t base = block_of(row, numbers, t, block);
        for (uint32_t c = 0; c < 2 * shape.head_dim; ++c) {
          (*kv_entries)[base + at(slot_of(row, numbers, t), c % shape.head_dim, c >= shape.head_dim)] =
              draw();
        }
      }
    }
  }
  void solve(const std::vector<DecodeSequence>& rows, const std::vector<uint32_t>& numbers, size_t block,
             const std::vector<__nv_bfloat16>& kv_entries, const std::vector<__nv_bfloat16>& queries) {
    const uint32_t d = shape.head_dim;
    expected.assign(queries.size(), 0);
    std::vector<double> weight;
    for (const DecodeSequence& row : rows) {
      for (uint32_t j = 0; j < shape.group && row.tokens > 0; ++j) {
        const size_t query = size_t{row.q_row + j} * d;
        weight.assign(row.tokens, 0);
        for (uint32_t t = 0; t < row.tokens; ++t) {
          const size_t base = block_of(row, numbers, t, block);
          for (uint32_t c = 0; c < d; ++c) {
            weight[t] += static_cast<double>(__bfloat162float(queries[query + c])) *
                         static_cast<double>(
                             __bfloat162float(kv_entries[base + at(slot_of(row, numbers, t), c, false)]));
          }
          weight[t] /= std::sqrt(static_cast<double>(d));
        }
        const double most = *std::max_element(weight.begin(), weight.end());
        double sum = 0;
        for (double& w : weight) sum += w = std::exp(w - most);
        for (uint32_t t = 0; t < row.tokens; ++t) {
          const size_t base = block_of(row, numbers, t, block);
          for (uint32_t c = 0; c < d; ++c) {
            expected[query + c] += weight[t] / sum *
                                   static_cast<double>(__bfloat162float(
                                       kv_entries[base + at(slot_of(row, numbers, t), c, true)]));
          }
        }
      }
    }
  }
};

}  // namespace kvtwin::test

#endif  // KVTWIN_KERNELS_BENCH_DECODE_PROBLEM_CUH_
