#include "kernels/bf16_chunk.cuh"
#include "kernels/kv_block.cuh"
#include "kernels/launch_early.cuh"
#include "kernels/page_moves.h"

namespace kvtwin {
namespace {

using namespace device;

constexpr uint32_t kThreads = 128;

// Eight channels of a page's cells: kHeld of them at a time on their way, or in registers.
template <uint32_t kHeld>
struct Cells {
  uint4 rows[kHeld];

  __device__ void load(const __nv_bfloat16* keys, const KvBlockShape& block, uint32_t first, uint32_t cells,
                       uint32_t channel) {
#pragma unroll
    for (uint32_t i = 0; i < kHeld; ++i) {
      if (first + i < cells) rows[i] = load_once(keys + block.at(first + i, channel));
    }
  }
  // Calls take(x) for each of them, in their order.
  template <typename Take>
  __device__ void each(uint32_t first, uint32_t cells, const Take& take) const {
#pragma unroll
    for (uint32_t i = 0; i < kHeld; ++i) {
      if (first + i >= cells) break;
      float x[8];
      widen(rows[i], x);
      take(x);
    }
  }
};

// One thread: eight channels of one page. So sums have the order of the definition, and nobody waits.
// kHeld: cells in registers; what is read twice (cuboid) is still there if a page has no more.
template <PageSummaryKind kKind, uint32_t kHeld>
__global__ void __launch_bounds__(kThreads) summarise_kernel(const __grid_constant__ SummaryArgs args) {
  wait_for_those_before();
  let_next_start();
  const uint32_t chunks = args.head_dim / 8, at = blockIdx.x * kThreads + threadIdx.x;
  if (at / chunks >= args.count) return;
  const SummaryPage page = args.pages[at / chunks];
  if (page.cells == 0) return;
  const KvBlockShape block{args.page_tokens, args.head_dim};
  const __nv_bfloat16* const keys = args.pool + page.block * block.numbers();
  const uint32_t channel = at % chunks * 8;
  const auto cells = static_cast<float>(page.cells);
  float high[8], low[8], sum[8] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) high[i] = -INFINITY, low[i] = INFINITY;
  Cells<kHeld> held;
  for (uint32_t first = 0; first < page.cells; first += kHeld) {
    held.load(keys, block, first, page.cells, channel);
    held.each(first, page.cells, [&](const float(&x)[8]) {
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        if (kKind == PageSummaryKind::kMean) sum[i] += x[i];
        high[i] = fmaxf(high[i], x[i]), low[i] = fminf(low[i], x[i]);
      }
    });
  }
  if (kKind == PageSummaryKind::kCuboid) {
    float center[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) center[i] = (high[i] + low[i]) * 0.5f;
    for (uint32_t first = 0; first < page.cells; first += kHeld) {
      if (page.cells > kHeld) held.load(keys, block, first, page.cells, channel);
      held.each(first, page.cells, [&](const float(&x)[8]) {
#pragma unroll
        for (int i = 0; i < 8; ++i) sum[i] += fabsf(center[i] - x[i]);
      });
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) high[i] = center[i] + sum[i] / cells, low[i] = center[i] - sum[i] / cells;
  } else if (kKind == PageSummaryKind::kMean) {
#pragma unroll
    for (int i = 0; i < 8; ++i) high[i] = low[i] = sum[i] / cells;
  }
  __nv_bfloat16* const out = args.out + size_t{page.target} * 2 * args.head_dim + channel;
  *reinterpret_cast<uint4*>(out) = narrow(high);
  *reinterpret_cast<uint4*>(out + args.head_dim) = narrow(low);
}

}  // namespace

cudaError_t summarise_pages(const SummaryArgs& args, cudaStream_t stream) {
  const bool page = args.page_tokens == 1 || (args.page_tokens > 0 && args.page_tokens % 8 == 0);
  if (!page || args.head_dim == 0 || args.head_dim % 64 != 0) return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  using enum PageSummaryKind;
  const auto kernel = args.kind == kMinMax     ? summarise_kernel<kMinMax, 16>
                      : args.kind == kMean     ? summarise_kernel<kMean, 16>
                      : args.page_tokens <= 16 ? summarise_kernel<kCuboid, 16>
                                               : summarise_kernel<kCuboid, 32>;
  const uint32_t threads = args.count * (args.head_dim / 8);
  return launch_early(kernel, (threads + kThreads - 1) / kThreads, kThreads, stream, args);
}

}  // namespace kvtwin
