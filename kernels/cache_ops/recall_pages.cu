#include <algorithm>

#include "kernels/cache_ops/recall_pages.h"
#include "kernels/common/cuda_primitives.cuh"

namespace kvtwin {
namespace {

using namespace device;
using kernels::HostPageLayout;

// A warp's ring of pieces that are being loaded and stored. 4 warps x 6 x 8 KB leave no room for a second CTA
// on the SM; half a CTA already covers PCIe's latency times its bandwidth.
constexpr uint32_t kWarps = 4, kStages = 6, kStageBytes = 8192;
constexpr uint32_t kComing = 4;                       // loads in flight before the first is waited for
constexpr uint32_t kLeaving = kStages - 1 - kComing;  // stores that may still read the ring at that time
constexpr uint32_t kShared = kWarps * kStages * kStageBytes;

__device__ void store_bulk(void* target, uint32_t source, uint32_t bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(target), "r"(source),
               "r"(bytes)
               : "memory");
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}
template <uint32_t kLeft>
__device__ void wait_stores_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kLeft) : "memory");
}
__device__ void wait_stores_done() { asm volatile("cp.async.bulk.wait_group 0;" ::: "memory"); }

// Splits moves into pieces of whole rows that fit a stage.
struct Pieces {
  uint32_t row_bytes, block_rows, skipped, rows, per_move, rows_of_piece;

  __device__ explicit Pieces(const RecallArgs& args)
      : row_bytes(args.host.head_dim * 2),
        block_rows(2 * args.host.page_tokens),
        skipped(args.values_only ? args.host.page_tokens : 0),
        rows(block_rows - skipped),
        rows_of_piece(min(rows, kStageBytes / row_bytes)) {
    per_move = (rows + rows_of_piece - 1) / rows_of_piece;
  }
};

struct Piece {
  const char* source;
  char* target;
  uint32_t rows;
};

__device__ Piece piece_at(const RecallArgs& args, const Pieces& pieces, uint64_t index) {
  const RecallMove move = args.moves[index / pieces.per_move];
  const uint32_t first = static_cast<uint32_t>(index % pieces.per_move) * pieces.rows_of_piece;
  const auto* const page =
      reinterpret_cast<const char*>(args.host.pages + uint64_t{move.page} * args.host.page_stride);
  const uint64_t row = args.host.layout == HostPageLayout::kHnd
                           ? uint64_t{move.head} * pieces.block_rows + pieces.skipped + first
                           : uint64_t{pieces.skipped + first} * args.host.kv_heads + move.head;
  auto* const block =
      reinterpret_cast<char*>(args.pool) + uint64_t{move.block} * pieces.block_rows * pieces.row_bytes;
  return {page + row * pieces.row_bytes, block + uint64_t{pieces.skipped + first} * pieces.row_bytes,
          min(pieces.rows_of_piece, pieces.rows - first)};
}

// Loads the rows of a piece to a stage; called by the whole warp.
__device__ void fetch(const RecallArgs& args, const Pieces& pieces, const Piece& piece, uint32_t stage,
                      uint32_t barrier) {
  const uint32_t lane = threadIdx.x % 32, bytes = piece.rows * pieces.row_bytes;
  if (lane == 0) barrier_arrive_expecting(barrier, bytes);
  __syncwarp();
  if (args.host.layout == HostPageLayout::kHnd) {
    if (lane == 0) copy_bulk(stage, piece.source, bytes, barrier);
    return;
  }
  const uint64_t stride = uint64_t{args.host.kv_heads} * pieces.row_bytes;
  for (uint32_t row = lane; row < piece.rows; row += 32)
    copy_bulk(stage + row * pieces.row_bytes, piece.source + row * stride, pieces.row_bytes, barrier);
}

__global__ void __launch_bounds__(kWarps * 32, 1) recall_kernel(const __grid_constant__ RecallArgs args) {
  extern __shared__ __align__(128) char ring[];
  __shared__ __align__(8) uint64_t arrived[kWarps][kStages];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const uint32_t stages = shared_address(ring) + warp * kStages * kStageBytes;
  const uint32_t barriers = shared_address(arrived[warp]);
  if (lane == 0) {
    for (uint32_t i = 0; i < kStages; ++i) barrier_init(barriers + 8 * i, 1);
    barrier_init_done();
  }
  __syncwarp();
  const Pieces pieces(args);
  const uint64_t all = uint64_t{*args.count} * pieces.per_move, by = uint64_t{gridDim.x} * kWarps;
  const uint64_t first = uint64_t{blockIdx.x} * kWarps + warp;
  const uint64_t mine = first < all ? (all - first + by - 1) / by : 0;
  for (uint64_t i = 0; i < mine + kComing; ++i) {
    if (i < mine) {
      const auto stage = static_cast<uint32_t>(i % kStages);
      if (lane == 0 && i >= kStages) wait_stores_read<kLeaving>();
      __syncwarp();
      fetch(args, pieces, piece_at(args, pieces, first + i * by), stages + stage * kStageBytes,
            barriers + 8 * stage);
    }
    if (i < kComing || lane > 0) continue;
    const uint64_t done = i - kComing;
    const auto stage = static_cast<uint32_t>(done % kStages);
    barrier_wait(barriers + 8 * stage, static_cast<uint32_t>(done / kStages % 2));
    const Piece piece = piece_at(args, pieces, first + done * by);
    store_bulk(piece.target, stages + stage * kStageBytes, piece.rows * pieces.row_bytes);
  }
  if (lane == 0) wait_stores_done();
}

// The spread form: one warp per CTA, no shared memory, sixteen bytes per lane and load. It fits next to a
// kernel that fills the shared memory of its SMs, and uses as many SMs as there are warps, so that none of
// them falls behind.
//
// With a period, all warps hold what they have read until the GPU's clock is a multiple of the period, and
// store then: DRAM turns from reads to writes and back once per period.
constexpr uint32_t kBurstInFlight = 16, kSteadyInFlight = 8;

__device__ uint64_t gpu_nanoseconds() {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)::"memory");
  return now;
}
__device__ void wait_for_burst(uint32_t period_ns) {
  const uint64_t until = (gpu_nanoseconds() / period_ns + 1) * period_ns;
  while (gpu_nanoseconds() < until) __nanosleep(200);
}

template <uint32_t kInFlight>
__global__ void __launch_bounds__(32) recall_spread_kernel(const __grid_constant__ RecallArgs args) {
  const uint32_t chunks = args.host.head_dim / 8, of_move = 2 * args.host.page_tokens * chunks;
  const uint32_t per_move = (of_move + 32 * kInFlight - 1) / (32 * kInFlight);
  const uint64_t all = uint64_t{*args.count} * per_move;
  for (uint64_t i = blockIdx.x; i < all; i += gridDim.x) {
    const RecallMove move = args.moves[i / per_move];
    const uint32_t first = static_cast<uint32_t>(i % per_move) * 32 * kInFlight + threadIdx.x;
    const auto* const page =
        reinterpret_cast<const uint4*>(args.host.pages + uint64_t{move.page} * args.host.page_stride);
    auto* const block = reinterpret_cast<uint4*>(args.pool) + uint64_t{move.block} * of_move;
    uint4 held[kInFlight];
#pragma unroll
    for (uint32_t k = 0; k < kInFlight; ++k) {
      const uint32_t at = first + 32 * k, row = at / chunks;
      const uint64_t from = args.host.layout == HostPageLayout::kHnd
                                ? uint64_t{move.head} * of_move + at
                                : (uint64_t{row} * args.host.kv_heads + move.head) * chunks + at % chunks;
      if (at < of_move) held[k] = __ldcs(page + from);
    }
    if (args.burst_ns > 0) wait_for_burst(args.burst_ns);
#pragma unroll
    for (uint32_t k = 0; k < kInFlight; ++k) {
      const uint32_t at = first + 32 * k;
      if (at < of_move) __stcs(block + at, held[k]);
    }
  }
}

constexpr uint32_t kThreads = 256, kAtOnce = 4;

// One row of CTAs per page, several times sixteen bytes per thread. Reads follow the GPU's order, writes the
// host's; both are whole rows.
__global__ void __launch_bounds__(kThreads) stage_kernel(const __grid_constant__ StageArgs args) {
  const uint32_t chunks = args.host.head_dim / 8, rows = 2 * args.host.page_tokens;
  const uint32_t heads = args.host.kv_heads, of_page = heads * rows * chunks;
  const auto* const from =
      reinterpret_cast<const uint4*>(args.pool) + uint64_t{args.pages[blockIdx.y]} * of_page;
  auto* const to = reinterpret_cast<uint4*>(args.staging) + uint64_t{blockIdx.y} * of_page;
  const uint32_t first = blockIdx.x * kAtOnce * kThreads + threadIdx.x;
  uint4 held[kAtOnce];
#pragma unroll
  for (uint32_t i = 0; i < kAtOnce; ++i) {
    const uint32_t at = first + i * kThreads;
    if (at < of_page) held[i] = __ldcs(from + at);
  }
#pragma unroll
  for (uint32_t i = 0; i < kAtOnce; ++i) {
    const uint32_t at = first + i * kThreads;
    if (at >= of_page) break;
    const uint32_t chunk = at % chunks, row = at / chunks % rows, head = at / chunks / rows;
    __stcs(to + (args.host.layout == HostPageLayout::kHnd ? at : (row * heads + head) * chunks + chunk),
           held[i]);
  }
}

bool right(const HostPool& host) {
  return host.page_tokens > 0 && host.kv_heads > 0 && host.head_dim > 0 && host.head_dim % 8 == 0 &&
         host.head_dim * 2 <= kStageBytes;
}

}  // namespace

cudaError_t recall_pages(const RecallArgs& args, cudaStream_t stream) {
  if (!right(args.host) || args.ctas == 0 || (args.spread && args.values_only)) return cudaErrorInvalidValue;
  if (args.spread) {
    (args.burst_ns > 0 ? recall_spread_kernel<kBurstInFlight>
                       : recall_spread_kernel<kSteadyInFlight>)<<<args.ctas, 32, 0, stream>>>(args);
    return cudaGetLastError();
  }
  static const cudaError_t ready =
      cudaFuncSetAttribute(recall_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (ready != cudaSuccess) return ready;
  recall_kernel<<<args.ctas, kWarps * 32, kShared, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t stage_pages(const StageArgs& args, cudaStream_t stream) {
  if (!right(args.host)) return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  constexpr uint32_t kMost = 65'535;  // limit of a grid's second axis
  const auto ctas =
      static_cast<uint32_t>((args.host.page_numbers() / 8 + kAtOnce * kThreads - 1) / (kAtOnce * kThreads));
  for (uint32_t first = 0; first < args.count; first += kMost) {
    StageArgs some = args;
    some.pages += first, some.staging += first * args.host.page_numbers();
    some.count = std::min(kMost, args.count - first);
    stage_kernel<<<dim3(ctas, some.count), kThreads, 0, stream>>>(some);
  }
  return cudaGetLastError();
}

}  // namespace kvtwin
