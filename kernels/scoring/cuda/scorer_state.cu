#include <cmath>

#include "kernels/common/kv_entry_heads.cuh"
#include "kernels/scoring/cuda/scorer_state.h"

namespace kvtwin {
namespace {

using namespace device;

constexpr uint32_t kThreads = 256;

uint32_t ctas_of(uint64_t count, uint32_t each) { return static_cast<uint32_t>((count + each - 1) / each); }

__global__ void __launch_bounds__(kThreads) new_state_kernel(const __grid_constant__ NewStateArgs args) {
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x;
  if (i >= args.rows * args.kv_heads) return;
  const AppendSlot slot = args.slots[i];
  if (slot.block == kNoBlock) return;
  float value = 0;
  if (args.values != nullptr) value = args.values[i];
  if (args.positions != nullptr) value = static_cast<float>(args.positions[i / args.kv_heads] + 1);
  args.scorer_state[size_t{slot.block} * args.page_tokens + slot.slot] = value;
}

__device__ float state_score(const StateScoreArgs& args, const StateScoreHead& head, uint32_t row,
                             float state_value) {
  if (row + head.stays >= head.kv_entries.rows) return INFINITY;
  if (args.kind == StateScore::kPlain) return state_value;
  const auto age =
      static_cast<float>(static_cast<int32_t>(args.now - __ldg(args.positions + head.positions + row)));
  if (args.kind == StateScore::kDecayed) return state_value * age;
  return age > 0 ? state_value / age : state_value;
}

// A thread loads kEach rows at once, or kEach runs of four entries in one page (kRuns).
constexpr uint32_t kEach = 4;
template <bool kRuns>
__global__ void __launch_bounds__(kThreads) score_kernel(const __grid_constant__ StateScoreArgs args) {
  constexpr uint32_t kRun = kRuns ? 4 : 1;
  const StateScoreHead head = args.heads[blockIdx.y];
  const KvEntryHead& kv_entries = head.kv_entries;
  // Runs start at multiples of four of the table's KV entries.
  uint32_t before = 0;
  if constexpr (kRuns) before = kv_entries.first % 4;
  const uint32_t end = before + kv_entries.rows;
  const uint32_t at = (blockIdx.x * kEach * kThreads + threadIdx.x) * kRun;
  if (blockIdx.x * kEach * kThreads * kRun >= end || kv_entries.rows == 0) return;
  size_t place[kEach];
#pragma unroll
  for (uint32_t i = 0; i < kEach; ++i) {
    const uint32_t run = min(at + i * kThreads * kRun, end - 1) / kRun * kRun;
    const uint32_t row = run > before ? run - before : 0;  // first KV entry of the run that is a row
    place[i] =
        state_index_of(args.kv_entries, place_of(args.kv_entries, kv_entries, row)) - (row + before - run);
  }
  float scorer_state[kEach][kRun];
#pragma unroll
  for (uint32_t i = 0; i < kEach; ++i) {
    if constexpr (kRuns) {
      const float4 x = __ldcs(reinterpret_cast<const float4*>(args.scorer_state + place[i]));
      scorer_state[i][0] = x.x, scorer_state[i][1] = x.y, scorer_state[i][2] = x.z, scorer_state[i][3] = x.w;
    } else {
      scorer_state[i][0] = __ldcs(args.scorer_state + place[i]);
    }
  }
  float* const out = args.scores + blockIdx.y * args.stride;
  const bool whole = kRuns && before == 0 && reinterpret_cast<uint64_t>(out) % 16 == 0;
#pragma unroll
  for (uint32_t i = 0; i < kEach; ++i) {
    const uint32_t run = at + i * kThreads * kRun;
    float scores[kRun];
#pragma unroll
    for (uint32_t k = 0; k < kRun; ++k) {
      const bool row = run + k >= before && run + k < end;
      scores[k] = row ? state_score(args, head, run + k - before, scorer_state[i][k]) : 0;
      if (row && !(whole && run + kRun <= end)) out[run + k - before] = scores[k];
    }
    if constexpr (kRuns) {
      if (whole && run + kRun <= end)
        *reinterpret_cast<float4*>(out + run) = {scores[0], scores[1], scores[2], scores[3]};
    }
  }
}

__global__ void __launch_bounds__(kThreads)
    mean_kernel(const float* scores, uint64_t stride, uint32_t heads, uint32_t rows, float* out) {
  const uint32_t row = blockIdx.x * kThreads + threadIdx.x;
  if (row >= rows) return;
  double sum = 0;
  for (uint32_t h = 0; h < heads; ++h) sum += scores[h * stride + row];
  out[row] = static_cast<float>(sum / heads);
}

template <int kDim>
__global__ void __launch_bounds__(kThreads) read_kernel(const __grid_constant__ ReadEntriesArgs args) {
  constexpr uint32_t kChunks = kDim / 8;
  const KvEntryHead head = args.heads[blockIdx.y];
  const uint32_t i = blockIdx.x * kThreads + threadIdx.x, row = i / kChunks, chunk = i % kChunks;
  if (row >= head.rows) return;
  const uint4* const key = key_chunk<kDim>(args.kv_entries, place_of(args.kv_entries, head, row), chunk);
  const size_t at = (blockIdx.y * args.stride + row) * kDim + 8 * chunk;
  for (int value = 0; value < 2; ++value) {
    float* const out = value == 0 ? args.keys : args.values;
    if (out == nullptr) continue;
    float x[8];
    widen(key[static_cast<size_t>(value) * args.kv_entries.page_tokens * kChunks], x);
    for (int c = 0; c < 8; ++c) out[at + c] = x[c];
  }
}

}  // namespace

cudaError_t write_state(const NewStateArgs& args, cudaStream_t stream) {
  const uint64_t count = uint64_t{args.rows} * args.kv_heads;
  if (count == 0) return cudaSuccess;
  new_state_kernel<<<ctas_of(count, kThreads), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t score_from_state(const StateScoreArgs& args, cudaStream_t stream) {
  if (args.count == 0 || args.rows_max == 0) return cudaSuccess;
  const bool runs = !args.kv_entries.listed && args.kv_entries.page_tokens % 4 == 0 &&
                    reinterpret_cast<uint64_t>(args.scorer_state) % 16 == 0;
  // Up to three KV entries more: the first run may start before the first row.
  const dim3 grid(
      ctas_of(runs ? uint64_t{args.rows_max} + 3 : args.rows_max, kThreads * kEach * (runs ? 4 : 1)),
      args.count);
  (runs ? score_kernel<true> : score_kernel<false>)<<<grid, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t mean_scores(const float* scores, uint64_t stride, uint32_t heads, uint32_t rows, float* out,
                        cudaStream_t stream) {
  if (rows == 0) return cudaSuccess;
  mean_kernel<<<ctas_of(rows, kThreads), kThreads, 0, stream>>>(scores, stride, heads, rows, out);
  return cudaGetLastError();
}

cudaError_t read_entries(const ReadEntriesArgs& args, cudaStream_t stream) {
  if (args.count == 0 || args.rows_max == 0) return cudaSuccess;
  const uint32_t dim = args.kv_entries.head_dim;
  if (dim != 64 && dim != 128) return cudaErrorInvalidValue;
  const dim3 grid(ctas_of(uint64_t{args.rows_max} * (dim / 8), kThreads), args.count);
  (dim == 64 ? read_kernel<64> : read_kernel<128>)<<<grid, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace kvtwin
