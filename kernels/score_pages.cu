#include "kernels/bf16_chunk.cuh"
#include "kernels/page_choice.h"

namespace kvtwin {
namespace {

using namespace device;
using kernels::PagePooling;

constexpr uint32_t kWarps = 8, kPages = 8;  // pages that a warp has in flight
constexpr uint32_t kCtas = 528;             // about so many: two an SM at a time, twice

// kChannels neighbours of bf16, as they are stored: 4 (heads of 128) or 2 (of 64).
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

// A lane's channels of the queries that pages are scored for: of every query head, or of the pooled one.
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

  // owner: of page (lane % kPages); `at` is the lane's first channel of summary 0.
  __device__ void load(const __nv_bfloat16* at, uint32_t owner, size_t stride) {
#pragma unroll
    for (uint32_t p = 0; p < kPages; ++p) {
      const __nv_bfloat16* const page = at + __shfl_sync(kAllLanes, owner, p) * stride;
      high[p] = Stored<kChannels>::load(page);
      low[p] = Stored<kChannels>::load(page + kChannels * 32);
    }
  }
};

// The products of a page's lanes become one sum: halves change places until lanes 4 p to 4 p + 3 hold a
// quarter each of page p's.
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

// CTA (split, KV head, row). A warp takes kPages pages at a time, a lane some channels of all of them, while
// the next ones are on their way.
template <int kChannels, int kGroup>
__global__ void __launch_bounds__(kWarps * 32, 2)
    score_kernel(const __grid_constant__ ChoiceShape shape, const __grid_constant__ ChoiceArgs args) {
  constexpr uint32_t kDim = kChannels * 32;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.y;
  const ChoiceRow row = args.rows[blockIdx.z];
  const uint32_t rows = shape.score_rows(), step = gridDim.x * kWarps * kPages;
  const size_t stride = size_t{shape.kv_heads} * 2 * kDim;
  const __nv_bfloat16* const summaries = args.summaries + size_t{head} * 2 * kDim + lane * kChannels;
  // Beyond the last page: the last one again.
  const auto owner_at = [&](uint32_t base) {
    return __ldg(args.lists + row.owners + min(base + lane % kPages, row.candidates - 1));
  };
  uint32_t base = (blockIdx.x * kWarps + warp) * kPages;
  if (base >= row.candidates) return;
  PagesAhead<kChannels> ahead;
  ahead.load(summaries, owner_at(base), stride);
  uint32_t owner = owner_at(base + step);
  const Queries<kChannels, kGroup> queries(
      shape, args.q + (size_t{row.row} * shape.kv_heads + head) * shape.group * kDim, lane);
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

template <int kChannels>
auto kernel_for(uint32_t group) {
  return group == 1   ? score_kernel<kChannels, 1>
         : group == 2 ? score_kernel<kChannels, 2>
         : group <= 4 ? score_kernel<kChannels, 4>
                      : score_kernel<kChannels, 8>;
}

}  // namespace

cudaError_t score_pages(const ChoiceShape& shape, const ChoiceArgs& args, cudaStream_t stream) {
  const bool heads = shape.kv_heads > 0 && shape.group > 0 && shape.group <= 8;
  if ((shape.head_dim != 64 && shape.head_dim != 128) || !heads) return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  const uint32_t group = shape.pools_queries() ? 1 : shape.group;
  const auto kernel = shape.head_dim == 128 ? kernel_for<4>(group) : kernel_for<2>(group);
  const uint32_t splits = min(max(kCtas / (shape.kv_heads * args.count), 1u), 16u);
  kernel<<<dim3(splits, shape.kv_heads, args.count), kWarps * 32, 0, stream>>>(shape, args);
  return cudaGetLastError();
}

}  // namespace kvtwin
