#include "kernels/common/bf16_chunk.cuh"
#include "kernels/select/choosing_heads.cuh"
#include "kernels/select/page_choice.h"

namespace kvtwin {
namespace {

using namespace device;
using kernels::PagePooling;

constexpr uint32_t kWarps = 8, kPages = 8;  // kPages: pages in flight per warp
constexpr uint32_t kCtas = 528;             // target number of CTAs: two per SM, two waves

// kChannels adjacent bf16 numbers as stored: 4 (heads of 128) or 2 (of 64).
template <int kChannels>
struct Stored {
  uint32_t words[kChannels / 2];

  __device__ static Stored load(const __nv_bfloat16* at) {
    Stored out;
    if constexpr (kChannels == 4) {
      const uint2 pair = __ldcs(reinterpret_cast<const uint2*>(at));
      out.words[0] = pair.x, out.words[1] = pair.y;
    } else {
      out.words[0] = __ldcs(reinterpret_cast<const uint32_t*>(at));
    }
    return out;
  }
  __device__ float operator[](int i) const {
    const uint32_t word = words[i / 2];
    return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xffff0000u);
  }
};

// A lane's channels of the queries that score the pages: every query head, or the pooled one.
template <int kChannels, int kGroup>
struct Queries {
  float q[kGroup][kChannels];

  __device__ Queries(const ChoiceShape& shape, const __nv_bfloat16* heads, uint32_t lane) {
    const bool largest = shape.pooling == PagePooling::kMaxQ;
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
#pragma unroll
      for (int i = 0; i < kChannels; ++i) q[g][i] = 0;
    }
    for (uint32_t g = 0; g < shape.group; ++g) {
      const auto one = Stored<kChannels>::load(heads + size_t{g} * shape.head_dim + lane * kChannels);
#pragma unroll
      for (int i = 0; i < kChannels; ++i) {
        if (shape.pools_queries()) {
          q[0][i] = g == 0 ? one[i] : largest ? fmaxf(q[0][i], one[i]) : q[0][i] + one[i];
        } else {
#pragma unroll
          for (int k = 0; k < kGroup; ++k) {
            if (k == static_cast<int>(g)) q[k][i] = one[i];
          }
        }
      }
    }
    if (shape.pooling != PagePooling::kMeanQ) return;
#pragma unroll
    for (int i = 0; i < kChannels; ++i) q[0][i] /= static_cast<float>(shape.group);
  }
};

// A lane's channels of kPages pages.
template <int kChannels>
struct PagesAhead {
  Stored<kChannels> high[kPages], low[kPages];

  // owner: of page lane % kPages; `at` is the lane's first channel of summary 0.
  __device__ void load(const __nv_bfloat16* at, uint32_t owner, size_t stride) {
#pragma unroll
    for (uint32_t p = 0; p < kPages; ++p) {
      const __nv_bfloat16* const page = at + __shfl_sync(kAllLanes, owner, p) * stride;
      high[p] = Stored<kChannels>::load(page);
      low[p] = Stored<kChannels>::load(page + kChannels * 32);
    }
  }
};

// Sums each page's products over the lanes by recursive halving: lanes 4 p to 4 p + 3 end up with a quarter
// each of page p's sum.
__device__ float sum_of_lanes(float (&sum)[kPages], uint32_t lane) {
#pragma unroll
  for (uint32_t half = kPages / 2; half > 0; half /= 2) {
    const bool upper = (lane & (half * 4)) != 0;
#pragma unroll
    for (uint32_t p = 0; p < half; ++p) {
      const float mine = upper ? sum[p + half] : sum[p], other = upper ? sum[p] : sum[p + half];
      sum[p] = mine + __shfl_xor_sync(kAllLanes, other, half * 4);
    }
  }
  const float pair = sum[0] + __shfl_xor_sync(kAllLanes, sum[0], 2);
  return pair + __shfl_xor_sync(kAllLanes, pair, 1);
}

// CTA (split, KV head, row). A warp processes kPages pages at a time, of which each lane has some channels,
// while the next ones load.
template <int kChannels, int kGroup>
__global__ void __launch_bounds__(kWarps * 32, 2)
    score_kernel(const __grid_constant__ ChoiceShape shape, const __grid_constant__ ChoiceArgs args) {
  constexpr uint32_t kDim = kChannels * 32;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y;
  if (!takes(args, blockIdx.z * shape.kv_heads + head)) return;
  const ChoiceRow row = args.rows[blockIdx.z];
  const uint32_t rows = shape.score_rows(), step = gridDim.x * kWarps * kPages;
  const size_t stride = size_t{shape.kv_heads} * 2 * kDim;
  const __nv_bfloat16* const summaries = args.summaries + size_t{head} * 2 * kDim + lane * kChannels;
  // Beyond the last page the last one is read again.
  const auto owner_at = [&](uint32_t base) {
    return __ldg(args.lists + row.owners + min(base + lane % kPages, row.candidates - 1));
  };
  uint32_t base = (blockIdx.x * kWarps + warp) * kPages;
  if (base >= row.candidates) return;
  PagesAhead<kChannels> ahead;
  ahead.load(summaries, owner_at(base), stride);
  uint32_t owner = owner_at(base + step);
  const Queries<kChannels, kGroup> queries(shape, scoring_queries(shape, args, row, head), lane);
  float* const scores =
      args.scores + (size_t{blockIdx.z} * shape.kv_heads + head) * rows * shape.score_stride;
  for (; base < row.candidates; base += step) {
    const PagesAhead<kChannels> now = ahead;
    if (base + step < row.candidates) {
      ahead.load(summaries, owner, stride);
      owner = owner_at(base + 2 * step);
    }
#pragma unroll
    for (int g = 0; g < kGroup; ++g) {
      if (g >= static_cast<int>(rows)) break;
      float sum[kPages];
#pragma unroll
      for (uint32_t p = 0; p < kPages; ++p) {
        sum[p] = 0;
#pragma unroll
        for (int i = 0; i < kChannels; ++i) {
          const float x = queries.q[g][i];
          sum[p] = fmaf(fmaxf(x, 0), now.high[p][i], fmaf(fminf(x, 0), now.low[p][i], sum[p]));
        }
      }
      const float whole = sum_of_lanes(sum, lane);
      const uint32_t page = base + lane / 4;
      if (lane % 4 == 0 && page < row.candidates)
        scores[size_t{static_cast<uint32_t>(g)} * shape.score_stride + page] = whole;
    }
  }
}

// ---- every query head separately: tensor cores, sixteen pages at a time
//
// u_g[p] = [high_p, low_p] . [max(q_g, 0), min(q_g, 0)]: pages are the rows of the mma, query heads its
// columns; both halves of q are exact in bf16. The order of channels in a product is free, so a lane loads
// sixteen adjacent bytes of its two pages and has the operands of two steps (attention_scores_few.cu).

// A lane's chunks of a page's high and low: chunk lane % 4 and every fourth one after it.
template <int kDim>
struct Chunks {
  static constexpr uint32_t kHalf = kDim / 32, kCount = 2 * kHalf;
  uint4 chunk[kCount];

  __device__ void load_page(const __nv_bfloat16* page, uint32_t quarter) {
#pragma unroll
    for (uint32_t j = 0; j < kCount; ++j)
      chunk[j] = __ldcs(reinterpret_cast<const uint4*>(page) + 4 * j + quarter);
  }
  __device__ void load_query(const __nv_bfloat16* q, bool real, uint32_t quarter) {
    const __nv_bfloat162 zero = __floats2bfloat162_rn(0, 0);
#pragma unroll
    for (uint32_t j = 0; j < kHalf; ++j) {
      const uint4 raw = real ? __ldg(reinterpret_cast<const uint4*>(q) + 4 * j + quarter) : uint4{};
      const auto* const pairs = reinterpret_cast<const __nv_bfloat162*>(&raw);
      auto* const high = reinterpret_cast<__nv_bfloat162*>(&chunk[j]);
      auto* const low = reinterpret_cast<__nv_bfloat162*>(&chunk[kHalf + j]);
#pragma unroll
      for (int i = 0; i < 4; ++i) high[i] = __hmax2(pairs[i], zero), low[i] = __hmin2(pairs[i], zero);
    }
  }
};

// CTA (split, KV head, row). A lane has pages lane / 4 and that + 8 of its warp's sixteen, and query heads
// 2 (lane % 4) and the next.
template <int kDim>
__global__ void __launch_bounds__(kWarps * 32, 2)
    score_heads_kernel(const __grid_constant__ ChoiceShape shape, const __grid_constant__ ChoiceArgs args) {
  constexpr uint32_t kRows = 16;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y, quarter = lane % 4;
  if (!takes(args, blockIdx.z * shape.kv_heads + head)) return;
  const ChoiceRow row = args.rows[blockIdx.z];
  uint32_t base = (blockIdx.x * kWarps + warp) * kRows;
  if (base >= row.candidates) return;
  const size_t stride = size_t{shape.kv_heads} * 2 * kDim;
  const __nv_bfloat16* const summaries = args.summaries + size_t{head} * 2 * kDim;
  const uint32_t* const owners = args.lists + row.owners;
  // Beyond the last page the last one is read again.
  const auto load = [&](Chunks<kDim>& chunks, uint32_t page) {
    chunks.load_page(summaries + __ldg(owners + min(page, row.candidates - 1)) * stride, quarter);
  };
  const __nv_bfloat16* const heads = scoring_queries(shape, args, row, head);
  Chunks<kDim> q;
  q.load_query(heads + size_t{lane / 4} * kDim, lane / 4 < shape.group, quarter);
  float* const scores =
      args.scores + (size_t{blockIdx.z} * shape.kv_heads + head) * shape.group * shape.score_stride;
  for (; base < row.candidates; base += gridDim.x * kWarps * kRows) {
    Chunks<kDim> above, below;
    load(above, base + lane / 4), load(below, base + lane / 4 + 8);
    float sum[4] = {};
#pragma unroll
    for (uint32_t j = 0; j < Chunks<kDim>::kCount; ++j) {
      const uint4 &a = above.chunk[j], &b = below.chunk[j], &x = q.chunk[j];
      multiply_add(sum, {{a.x, b.x, a.y, b.y}}, x.x, x.y);
      multiply_add(sum, {{a.z, b.z, a.w, b.w}}, x.z, x.w);
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; ++i) {
      const uint32_t g = 2 * quarter + i % 2, page = base + lane / 4 + i / 2 * 8;
      if (g < shape.group && page < row.candidates) scores[size_t{g} * shape.score_stride + page] = sum[i];
    }
  }
}

}  // namespace

cudaError_t score_pages(const ChoiceShape& shape, const ChoiceArgs& args, cudaStream_t stream) {
  const bool heads = shape.kv_heads > 0 && shape.group > 0 && shape.group <= 8;
  if ((shape.head_dim != 64 && shape.head_dim != 128) || !heads) return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  if (!shape.pools_queries()) {
    // At most 16 pages per warp: with fewer CTAs, warps take several turns.
    const uint32_t splits = max((shape.score_stride + kWarps * 16 - 1) / (kWarps * 16), 1u);
    const dim3 grid(splits, shape.kv_heads, args.count);
    (shape.head_dim == 128 ? score_heads_kernel<128>
                           : score_heads_kernel<64>)<<<grid, kWarps * 32, 0, stream>>>(shape, args);
    return cudaGetLastError();
  }
  const uint32_t splits = min(max(kCtas / (shape.kv_heads * args.count), 1u), 16u);
  (shape.head_dim == 128
       ? score_kernel<4, 1>
       : score_kernel<2, 1>)<<<dim3(splits, shape.kv_heads, args.count), kWarps * 32, 0, stream>>>(shape,
                                                                                                   args);
  return cudaGetLastError();
}

}  // namespace kvtwin
