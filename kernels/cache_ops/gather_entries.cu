#include "kernels/cache_ops/page_moves.h"
#include "kernels/common/bf16_chunk.cuh"

namespace kvtwin {
namespace {

using namespace device;

constexpr uint32_t kThreads = 256;

// The last sequence that starts at or before the KV entry.
__device__ uint32_t sequence_of(const GatherSequence* table, uint32_t sequences, uint32_t kv_entry) {
  uint32_t low = 0, high = sequences;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (__ldg(&table[middle].first) <= kv_entry ? low : high) = middle;
  }
  return low;
}

// Index of a KV entry's key among the pool's rows of head_dim numbers. The value's is page_tokens higher.
__device__ uint32_t key_row(const PageSide& side, uint32_t table, uint32_t column, uint32_t kv_entry) {
  const uint32_t page = __ldg(side.pages + table + kv_entry / side.page_tokens);
  return (page * side.heads_per_page + column) * 2 * side.page_tokens + kv_entry % side.page_tokens;
}

// Pages are multiples of eight rows, so a row's index has the swizzle of its slot.
template <int kDim>
__device__ size_t chunk_at(const PageSide& side, uint32_t row, uint32_t chunk) {
  return size_t{row} * (kDim / 8) + (side.page_tokens > 1 ? chunk ^ (row & 7) : chunk);
}

// A warp moves 32 KV entries at a time: each lane computes the addresses of one, then all lanes move all of
// them.
template <int kDim>
__global__ void __launch_bounds__(kThreads) gather_kernel(const __grid_constant__ GatherArgs args) {
  constexpr uint32_t kChunks = kDim / 8,
                     kKvEntries = 16 / kChunks;  // kKvEntries: keys and values that 32 lanes move at once
  const uint32_t lane = threadIdx.x % 32, warp = blockIdx.x * (kThreads / 32) + threadIdx.x / 32;
  const uint32_t chunk = lane % kChunks, value = lane / kChunks % 2, which = lane / kChunks / 2;
  const auto* const source = reinterpret_cast<const uint4*>(args.source_pool);
  auto* const target = reinterpret_cast<uint4*>(args.target_pool);
  const uint32_t kv_entries = args.table[args.sequences].first;
  for (uint32_t base = warp * 32; base < kv_entries; base += gridDim.x * kThreads) {
    const uint32_t kv_entry = min(base + lane, kv_entries - 1);
    const GatherSequence s = args.table[sequence_of(args.table, args.sequences, kv_entry)];
    const uint32_t i = kv_entry - s.first,
                   from = args.retained != nullptr ? __ldg(args.retained + kv_entry) : i;
    const uint32_t source_row = key_row(args.source, s.source_table, s.source_column, from);
    const uint32_t target_row = key_row(args.target, s.target_table, s.target_column, i);
    const uint32_t count = min(32u, kv_entries - base);
    constexpr uint32_t kAtOnce = 8;
    for (uint32_t first = which; first < 32; first += kAtOnce * kKvEntries) {
      uint4 held[kAtOnce];
#pragma unroll
      for (uint32_t k = 0; k < kAtOnce; ++k) {  // beyond the last KV entry the last is read again
        const uint32_t row = __shfl_sync(kAllLanes, source_row, first + k * kKvEntries);
        held[k] =
            load_once(source + chunk_at<kDim>(args.source, row + value * args.source.page_tokens, chunk));
      }
#pragma unroll
      for (uint32_t k = 0; k < kAtOnce; ++k) {
        const uint32_t row = __shfl_sync(kAllLanes, target_row, first + k * kKvEntries);
        if (first + k * kKvEntries >= count) continue;
        __stcs(target + chunk_at<kDim>(args.target, row + value * args.target.page_tokens, chunk), held[k]);
      }
    }
  }
}

bool right(const PageSide& side) {
  return side.page_tokens == 1 || (side.page_tokens > 0 && side.page_tokens % 16 == 0);
}

}  // namespace

cudaError_t gather_entries(const GatherArgs& args, cudaStream_t stream) {
  const bool pages = right(args.source) && right(args.target);
  if (!pages || args.ctas == 0 || (args.head_dim != 64 && args.head_dim != 128)) return cudaErrorInvalidValue;
  if (args.sequences == 0) return cudaSuccess;
  (args.head_dim == 64 ? gather_kernel<64> : gather_kernel<128>)<<<args.ctas, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace kvtwin
