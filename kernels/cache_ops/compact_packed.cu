#include "kernels/cache_ops/compact_packed.h"
#include "kernels/common/kv_entry_heads.cuh"

namespace kvtwin {
namespace {

using namespace device;

constexpr uint32_t kThreads = 256, kHeld = 4;  // kHeld: words per thread

struct RowWords {
  uint64_t block = 0, values_at = 0;  // in words: size of a block, offset of the values
  uint32_t row = 0;                   // words of a key, and of a value
};

// One tile of rows at a time: all threads read it, then all write it.
__global__ void __launch_bounds__(kThreads)
    compact_kernel(const __grid_constant__ CompactPackedArgs args, const __grid_constant__ RowWords words) {
  const CompactHead head = args.heads[blockIdx.x];
  const KvEntryHead to_head{head.target_table, head.source.column, head.target_first, head.source.rows};
  auto* const pool = reinterpret_cast<uint32_t*>(args.pool);
  const uint32_t kv_entry_words = 2 * words.row, tile = kHeld * kThreads / kv_entry_words;
  const auto at = [&](KvEntryPlace place, uint32_t word) {
    const uint32_t side = word / words.row;
    return place.block * words.block + side * words.values_at + size_t{place.slot} * words.row +
           word % words.row;
  };
  for (uint32_t base = 0; base < head.count; base += tile) {
    uint32_t held[kHeld];
    size_t target[kHeld];
    float state_value[kHeld];
    size_t state_target[kHeld];
#pragma unroll
    for (uint32_t k = 0; k < kHeld; ++k) {
      target[k] = state_target[k] = SIZE_MAX;
      const uint32_t index = k * kThreads + threadIdx.x, i = base + index / kv_entry_words;
      if (index / kv_entry_words >= tile || i >= head.count) continue;
      const uint32_t word = index % kv_entry_words, row = __ldg(args.retained + head.retained + i);
      const KvEntryPlace from = place_of(args.kv_entries, head.source, row),
                         to = place_of(args.kv_entries, to_head, i);
      if (from.block == to.block && from.slot == to.slot) continue;
      held[k] = pool[at(from, word)], target[k] = at(to, word);
      if (args.scorer_state == nullptr || word != 0) continue;
      state_value[k] = args.scorer_state[state_index_of(args.kv_entries, from)],
      state_target[k] = state_index_of(args.kv_entries, to);
    }
    __syncthreads();
#pragma unroll
    for (uint32_t k = 0; k < kHeld; ++k) {
      if (target[k] != SIZE_MAX) pool[target[k]] = held[k];
      if (state_target[k] != SIZE_MAX) args.scorer_state[state_target[k]] = state_value[k];
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t compact_packed_entries(const CompactPackedArgs& args, cudaStream_t stream) {
  const PageShape shape{args.kv_entries.page_tokens, args.kv_entries.head_dim, args.group};
  const bool packs =
      args.format == Format::kFp8 || args.format == Format::kInt4 || args.format == Format::kFp4;
  if (!packs || args.kv_entries.listed || !page_shape_is_possible(shape, args.format))
    return cudaErrorInvalidValue;
  const uint32_t row = token_bytes(args.format, shape);
  if (row % 4 != 0 || 2 * (row / 4) > kHeld * kThreads) return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  const uint64_t block = page_bytes(args.format, shape);
  const RowWords words{block / 4, block / 8, row / 4};
  compact_kernel<<<args.count, kThreads, 0, stream>>>(args, words);
  return cudaGetLastError();
}

}  // namespace kvtwin
