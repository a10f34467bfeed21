#include "kernels/cache_ops/compact_entries.h"
#include "kernels/common/kv_entry_heads.cuh"

namespace kvtwin {
namespace {

using namespace device;

constexpr uint32_t kThreads = 512;

// Rotates the pairs (c, c + kDim / 2) of a key. `low` and `high`: the eight numbers of chunk `chunk` of each
// half.
template <int kDim>
__device__ void turn(const float* inv_freq, uint32_t chunk, int32_t by, uint4* low, uint4* high) {
  float a[8], b[8];
  widen(*low, a), widen(*high, b);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float sine, cosine;
    sincosf(static_cast<float>(by) * inv_freq[8 * chunk + i], &sine, &cosine);
    const float x = a[i] * cosine - b[i] * sine, y = b[i] * cosine + a[i] * sine;
    a[i] = x, b[i] = y;
  }
  *low = low_bit(a), *high = low_bit(b);
}

// One tile of rows at a time: all threads read it, then all write it. A thread has chunk c of both halves of
// keys and of values, so that the rotation needs no exchange.
template <int kDim>
__global__ void __launch_bounds__(kThreads) compact_kernel(const __grid_constant__ CompactArgs args) {
  constexpr uint32_t kLanes = kDim / 16, kTile = kThreads / kLanes;
  const CompactHead head = args.heads[blockIdx.x];
  const KvBlockShape block{args.kv_entries.page_tokens, kDim};
  const uint32_t lane = threadIdx.x % kLanes, which = threadIdx.x / kLanes;
  const KvEntryHead to_head{head.target_table, head.source.column, head.target_first, head.source.rows};
  const size_t values = size_t{args.kv_entries.page_tokens} * kDim;
  for (uint32_t base = 0; base < head.count; base += kTile) {
    const uint32_t i = base + which;
    const bool valid = i < head.count;
    KvEntryPlace from, to;
    uint4 held[4];
    float state_value = 0;
    bool moves = false;
    if (valid) {
      const uint32_t row = __ldg(args.retained + head.retained + i);
      from = place_of(args.kv_entries, head.source, row), to = place_of(args.kv_entries, to_head, i);
      int32_t by = 0;
      if (args.inv_freq != nullptr)
        by = static_cast<int32_t>(to_head.first + i) - static_cast<int32_t>(head.source.first + row);
      moves = by != 0 || from.block != to.block || from.slot != to.slot;
      if (moves) {
        const __nv_bfloat16* const at = args.pool + size_t{from.block} * block.numbers();
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          held[k] = *reinterpret_cast<const uint4*>(at + (k / 2 == 0 ? 0 : values) +
                                                    block.at(from.slot, 8 * lane + k % 2 * kDim / 2));
        }
        if (by != 0) turn<kDim>(args.inv_freq, lane, by, &held[0], &held[1]);
        if (args.scorer_state != nullptr && lane == 0)
          state_value = args.scorer_state[state_index_of(args.kv_entries, from)];
      }
    }
    __syncthreads();
    if (moves) {
      __nv_bfloat16* const at = args.pool + size_t{to.block} * block.numbers();
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        *reinterpret_cast<uint4*>(at + (k / 2 == 0 ? 0 : values) +
                                  block.at(to.slot, 8 * lane + k % 2 * kDim / 2)) = held[k];
      }
      if (args.scorer_state != nullptr && lane == 0)
        args.scorer_state[state_index_of(args.kv_entries, to)] = state_value;
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t compact_entries(const CompactArgs& args, cudaStream_t stream) {
  if (args.kv_entries.listed || args.kv_entries.page_tokens == 0) return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  switch (args.kv_entries.head_dim) {
    case 64:
      compact_kernel<64><<<args.count, kThreads, 0, stream>>>(args);
      break;
    case 128:
      compact_kernel<128><<<args.count, kThreads, 0, stream>>>(args);
      break;
    case 256:
      compact_kernel<256><<<args.count, kThreads, 0, stream>>>(args);
      break;
    default:
      return cudaErrorInvalidValue;
  }
  return cudaGetLastError();
}

}  // namespace kvtwin
