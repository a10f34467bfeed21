#include "kernels/cell_heads.cuh"
#include "kernels/compact_packed.h"

namespace kvtwin {
namespace {

using namespace device;

constexpr uint32_t kThreads = 256, kHeld = 4;  // words of a thread

struct RowWords {
  uint64_t block = 0, values_at = 0;  // in words
  uint32_t row = 0;                   // of a key, or of a value
};

// A tile of rows at a time: read by all threads, then written.
__global__ void __launch_bounds__(kThreads)
    compact_kernel(const __grid_constant__ CompactPackedArgs args, const __grid_constant__ RowWords words) {
  const CompactHead head = args.heads[blockIdx.x];
  const CellHead to_head{head.target_table, head.source.column, head.target_first, head.source.rows};
  auto* const pool = reinterpret_cast<uint32_t*>(args.pool);
  const uint32_t cell_words = 2 * words.row, tile = kHeld * kThreads / cell_words;
  const auto at = [&](CellPlace place, uint32_t word) {
    const uint32_t side = word / words.row;
    return place.block * words.block + side * words.values_at + size_t{place.slot} * words.row +
           word % words.row;
  };
  for (uint32_t base = 0; base < head.count; base += tile) {
    uint32_t held[kHeld];
    size_t target[kHeld];
    float mark[kHeld];
    size_t mark_target[kHeld];
#pragma unroll
    for (uint32_t k = 0; k < kHeld; ++k) {
      target[k] = mark_target[k] = SIZE_MAX;
      const uint32_t index = k * kThreads + threadIdx.x, i = base + index / cell_words;
      if (index / cell_words >= tile || i >= head.count) continue;
      const uint32_t word = index % cell_words, row = __ldg(args.kept + head.kept + i);
      const CellPlace from = place_of(args.cells, head.source, row), to = place_of(args.cells, to_head, i);
      if (from.block == to.block && from.slot == to.slot) continue;
      held[k] = pool[at(from, word)], target[k] = at(to, word);
      if (args.marks == nullptr || word != 0) continue;
      mark[k] = args.marks[mark_of(args.cells, from)], mark_target[k] = mark_of(args.cells, to);
    }
    __syncthreads();
#pragma unroll
    for (uint32_t k = 0; k < kHeld; ++k) {
      if (target[k] != SIZE_MAX) pool[target[k]] = held[k];
      if (mark_target[k] != SIZE_MAX) args.marks[mark_target[k]] = mark[k];
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t compact_packed_cells(const CompactPackedArgs& args, cudaStream_t stream) {
  const PageShape shape{args.cells.page_tokens, args.cells.head_dim, args.group};
  const bool packs =
      args.format == Format::kFp8 || args.format == Format::kInt4 || args.format == Format::kFp4;
  if (!packs || args.cells.listed || !page_shape_is_possible(shape, args.format))
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
