// The packed decode kernel at the shapes of Llama-3.1-8B, one layer: time inside a CUDA graph, percent of the
// measured read ceiling of an H200 (4.69 TB/s) on the format's own bytes, and a digest of the output.
//
// Page tables are shuffled over large pools, and launches rotate over as many sets of pages as exceed L2.
// Pages hold random codes with plausible scales and zeros.

#include <benchmark/benchmark.h>

#include <cstring>
#include <numeric>

#include "kernels/bench/replay.cuh"
#include "kernels/packed/packed_decode.h"

namespace kvtwin::test {
namespace {

constexpr uint32_t kKvHeads = 8, kGroup = 4, kDim = 128;
constexpr size_t kPoolBytes = size_t{3} << 30;

// The role of 16-bit word `at` of a page.
enum class Word { kCodes, kScale, kZero, kBytes, kNumber, kPowers };

__device__ Word word_of_group(uint32_t at, uint32_t codes, uint32_t count) {
  return at < codes ? Word::kCodes : at < codes + 2 * count ? Word::kScale : Word::kZero;
}
__device__ Word word_of(const PackedDecodeShape& s, uint32_t part, uint32_t at) {
  const uint32_t bits = part == kPartInt2 ? 2 : 4, page = s.page_tokens[part];
  if (s.layout == PackedLayout::kFp4) {
    const uint32_t row = kDim / 2 + kDim / kFp4Block;
    return at % row < kDim / 2 ? Word::kCodes : Word::kPowers;
  }
  if (part == kPartHighPrecision) return s.layout == PackedLayout::kKivi ? Word::kNumber : Word::kBytes;
  const uint32_t groups = kDim / s.scale_group, row = kDim * bits / 8 + 4 * groups;
  const uint32_t channel = s.scale_group / 4, group = kDim * (channel + 4);
  const uint32_t keys = part == kPartInt2 ? page / s.scale_group * group : page * row;
  if (part == kPartInt2 && at < keys) return word_of_group(at % group, kDim * channel, kDim);
  return word_of_group((at - (at < keys ? 0 : keys)) % row, kDim * bits / 8, groups);
}

__global__ void fill(const __grid_constant__ PackedDecodeShape shape, uint32_t part, uint32_t page_bytes,
                     uint16_t* data, size_t words) {
  for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < words;
       i += size_t{gridDim.x} * blockDim.x) {
    uint64_t x = i * 0x9e3779b97f4a7c15u;
    x ^= x >> 29, x *= 0xbf58476d1ce4e5b9u, x ^= x >> 32;
    const auto random = static_cast<uint16_t>(x);
    const float unit = static_cast<float>(random) / 65536;
    const Word word = word_of(shape, part, static_cast<uint32_t>(2 * i % page_bytes));
    if (word == Word::kCodes) {
      data[i] = random;
    } else if (word == Word::kBytes) {
      data[i] = random & 0xbfbf;  // at most 1.875
    } else if (word == Word::kPowers) {
      data[i] = 0x7878 + (random & 0x0303);  // 2^-7 to 2^-4
    } else if (word == Word::kNumber) {
      data[i] = __bfloat16_as_ushort(__float2bfloat16(2 * unit - 1));
    } else {
      data[i] = __half_as_ushort(__float2half(word == Word::kScale ? 0.05f + 0.05f * unit : -unit));
    }
  }
}

struct Case {
  PackedDecodeShape shape;
  uint32_t quarters[kPackedParts];  // of a request's KV entries, by part
  uint32_t exact = 0;               // additional entries in the high-precision part
  uint32_t padding = 0;             // requests without KV entries, after the others

  bool has(uint32_t part) const { return quarters[part] > 0 || (part == kPartHighPrecision && exact > 0); }
};

struct Pools {
  DeviceArray<uint8_t> part[kPackedParts];
  cudaStream_t stream{};

  Pools() { KVT_CUDA(cudaStreamCreate(&stream)); }
  void fill_for(const Case& c) {
    for (uint32_t i = 0; i < kPackedParts; ++i) {
      if (!c.has(i)) continue;
      const uint64_t bytes = packed_page_bytes(c.shape, static_cast<PackedPart>(i));
      if (part[i].get() == nullptr) part[i] = DeviceArray<uint8_t>(kPoolBytes);
      fill<<<1056, 256>>>(c.shape, i, static_cast<uint32_t>(bytes),
                          reinterpret_cast<uint16_t*>(part[i].get()), kPoolBytes / bytes * bytes / 2);
    }
    KVT_CUDA(cudaDeviceSynchronize());
  }
};
Pools& pools() {
  static Pools instance;
  return instance;
}

void report(benchmark::State& state, const std::vector<double>& seconds, double bytes,
            const DeviceArray<__nv_bfloat16>& out) {
  const double typical = median(seconds);
  uint64_t digest = 0;
  for (const __nv_bfloat16 value : out.read()) {
    uint16_t bits;
    std::memcpy(&bits, &value, 2);
    digest = (digest ^ bits) * 0x100000001b3u;
  }
  char label[96];
  std::snprintf(label, sizeof label, "us %.1f floor %.1f pct %.1f digest %016llx", typical * 1e6,
                bytes / kReadCeiling * 1e6, bytes / kReadCeiling / typical * 100,
                static_cast<unsigned long long>(digest));
  state.SetLabel(label);
}

enum class Lengths { kUniform, kTenNinety };

void decode(benchmark::State& state, Case c, Lengths lengths) {
  PackedDecodeShape& shape = c.shape;
  const auto requests = static_cast<uint32_t>(state.range(0)), tokens = static_cast<uint32_t>(state.range(1));
  shape.sequences = (requests + c.padding) * kKvHeads;
  std::vector<PackedSequence> rows;
  uint32_t pages[kPackedParts] = {};
  double bytes = 0;
  for (uint32_t i = 0; i < shape.sequences; ++i) {
    PackedSequence row{i * kGroup, 0, {}, {}};
    const uint32_t mine = lengths == Lengths::kUniform ? tokens : tokens * (i % 2 ? 9 : 1) / 10 / 512 * 512;
    for (uint32_t part = 0; part < kPackedParts && i < requests * kKvHeads; ++part) {
      row.tokens[part] = mine / 4 * c.quarters[part] + (part == kPartHighPrecision ? c.exact : 0);
      row.table[part] = pages[part];
      pages[part] += (row.tokens[part] + shape.page_tokens[part] - 1) / shape.page_tokens[part];
      bytes += static_cast<double>(row.tokens[part]) / shape.page_tokens[part] *
               static_cast<double>(packed_page_bytes(shape, static_cast<PackedPart>(part)));
    }
    rows.push_back(row);
  }
  const auto sets = static_cast<uint32_t>(std::clamp<double>(std::ceil(384e6 / bytes), 1, 48));
  // By part, the pages of all sets in order; the tables of two sets differ in their first page.
  std::vector<uint32_t> numbers, part_begin;
  for (uint32_t part = 0; part < kPackedParts; ++part) {
    const size_t there = kPoolBytes / packed_page_bytes(shape, static_cast<PackedPart>(part));
    if (size_t{pages[part]} * sets > there) return state.SkipWithError("the pool is too small");
    std::vector<uint32_t> order(c.has(part) ? there : 0);
    std::iota(order.begin(), order.end(), 0);
    std::shuffle(order.begin(), order.end(), std::mt19937(1));
    part_begin.push_back(static_cast<uint32_t>(numbers.size()));
    numbers.insert(numbers.end(), order.begin(), order.begin() + size_t{pages[part]} * sets);
  }
  std::vector<PackedSequence> all;
  for (uint32_t set = 0; set < sets; ++set) {
    for (PackedSequence row : rows) {
      for (uint32_t part = 0; part < kPackedParts; ++part)
        row.table[part] += part_begin[part] + set * pages[part];
      all.push_back(row);
    }
  }
  pools().fill_for(c);
  const DeviceArray<uint32_t> page_numbers(numbers);
  const DeviceArray<PackedSequence> table(all);
  std::vector<__nv_bfloat16> queries;
  std::mt19937 random(3);
  for (size_t i = 0; i < rows.size() * kGroup * kDim; ++i) {
    queries.push_back(__float2bfloat16(static_cast<float>(random() % 4096) / 1024 - 2));
  }
  const DeviceArray<__nv_bfloat16> q(queries), out(queries.size());
  const DeviceArray<char> plan(packed_plan_bytes(shape));
  const DeviceArray<char> workspace(std::vector<char>(packed_workspace_bytes(shape), 0));
  PackedDecodeArgs args;
  for (uint32_t part = 0; part < kPackedParts; ++part) args.pool[part] = pools().part[part].get();
  args.pages = page_numbers.get(), args.table = table.get(), args.q = q.get(), args.out = out.get();
  args.scale = 0.0883883f, args.plan = plan.get(), args.workspace = workspace.get();
  cudaStream_t stream = pools().stream;
  KVT_CUDA(plan_packed_decode(shape, args, stream));
  KVT_CUDA(packed_decode(shape, args, stream));
  KVT_CUDA(cudaStreamSynchronize(stream));
  const std::vector<double> seconds = replays(state, stream, std::max(sets, 6u), [&](uint32_t launch) {
    const uint32_t set = launch % sets;
    args.table = table.get() + size_t{set} * shape.sequences;
    return packed_decode(shape, args, stream);
  });
  report(state, seconds, bytes, out);
}

constexpr PackedDecodeShape rows_of(uint32_t scale_group, uint32_t page) {
  return {PackedLayout::kRows, kDim, kGroup, scale_group, {page, page, page}, 1, 0, 132};
}
void timing(benchmark::internal::Benchmark* b) {
  b->UseManualTime()->Iterations(15)->Unit(benchmark::kMicrosecond);
}
void all_shapes(benchmark::internal::Benchmark* b) {
  for (const auto& [requests, tokens] :
       {std::pair{1, 8192}, {1, 32768}, {8, 8192}, {8, 32768}, {32, 8192}, {32, 32768}}) {
    b->Args({requests, tokens});
  }
  timing(b);
}
void large(benchmark::internal::Benchmark* b) {
  b->Args({32, 32768});
  timing(b);
}
BENCHMARK_CAPTURE(decode, rows32_int4, Case{rows_of(32, 32), {0, 4, 0}}, Lengths::kUniform)
    ->Apply(all_shapes);
BENCHMARK_CAPTURE(decode, rows32_int2, Case{rows_of(32, 32), {4, 0, 0}}, Lengths::kUniform)
    ->Apply(all_shapes);
BENCHMARK_CAPTURE(decode, rows32_mixed_75_25, Case{rows_of(32, 32), {3, 1, 0}}, Lengths::kUniform)
    ->Apply(large);
BENCHMARK_CAPTURE(decode, rows32_int4_page128, Case{rows_of(32, 128), {0, 4, 0}}, Lengths::kUniform)
    ->Apply(large);
BENCHMARK_CAPTURE(decode, rows32_int2_page128, Case{rows_of(32, 128), {4, 0, 0}}, Lengths::kUniform)
    ->Apply(large);
BENCHMARK_CAPTURE(decode, rows64_int4, Case{rows_of(64, 64), {0, 4, 0}}, Lengths::kUniform)->Apply(large);
BENCHMARK_CAPTURE(decode, rows64_int2, Case{rows_of(64, 64), {4, 0, 0}}, Lengths::kUniform)->Apply(large);
BENCHMARK_CAPTURE(decode, rows128_int4, Case{rows_of(128, 128), {0, 4, 0}}, Lengths::kUniform)->Apply(large);
BENCHMARK_CAPTURE(decode, rows128_int2, Case{rows_of(128, 128), {4, 0, 0}}, Lengths::kUniform)->Apply(large);
// KIVI: plus the mean number of KV entries with exact values (128 to 255).
const PackedDecodeShape kFp4{PackedLayout::kFp4, kDim, kGroup, 32, {32, 128, 32}, 1, 0, 132};
const PackedDecodeShape kKivi{PackedLayout::kKivi, kDim, kGroup, 32, {32, 128, 32}, 1, 0, 132};
BENCHMARK_CAPTURE(decode, fp4, Case{kFp4, {0, 0, 4}}, Lengths::kUniform)->Apply(all_shapes);
BENCHMARK_CAPTURE(decode, kivi, Case{kKivi, {4, 0, 0}, 192}, Lengths::kUniform)->Apply(all_shapes);
BENCHMARK_CAPTURE(decode, rows_fp8, Case{rows_of(32, 32), {0, 0, 4}}, Lengths::kUniform)->Apply(all_shapes);

// Steps that are padded to a captured size, beside the same steps without padding.
void padded(benchmark::internal::Benchmark* b) {
  b->Args({35, 2048})->Args({35, 8192});
  timing(b);
}
BENCHMARK_CAPTURE(decode, int4_alone, Case{rows_of(32, 32), {0, 4, 0}}, Lengths::kUniform)->Apply(padded);
BENCHMARK_CAPTURE(decode, int4_padded, Case{rows_of(32, 32), {0, 4, 0}, 0, 5}, Lengths::kUniform)
    ->Apply(padded);
BENCHMARK_CAPTURE(decode, fp8_alone, Case{rows_of(32, 32), {0, 0, 4}}, Lengths::kUniform)->Apply(padded);
BENCHMARK_CAPTURE(decode, fp8_padded, Case{rows_of(32, 32), {0, 0, 4}, 0, 5}, Lengths::kUniform)
    ->Apply(padded);

}  // namespace
}  // namespace kvtwin::test

BENCHMARK_MAIN();
