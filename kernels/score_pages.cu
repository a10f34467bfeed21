#include "kernels/bf16_chunk.cuh"
#include "kernels/page_choice.h"

namespace kvtwin {
namespace {

using namespace device;
using kernels::PagePooling;

// u_g[p] = [high_p, low_p] . [max(q_g, 0), min(q_g, 0)]: pages are an mma's 16 rows, query heads its 8
// columns, and both halves of q are bf16 as q is. A pooled query is not: it is the sum of three bf16 numbers,
// a column each, which is exact. A product does not care in which order channels come, so that a lane loads
// sixteen adjacent bytes of its two pages and has two steps' operands, without shared memory.
constexpr uint32_t kWarps = 8, kTilePages = 16, kParts = 3;

// A lane's channels of a query (or of one part of the pooled one), eight at a time.
template <int kDim, bool kPooled>
__device__ void load_query(const ChoiceShape& shape, const __nv_bfloat16* heads, uint32_t column,
                           uint32_t channel, float (&x)[8]) {
  const auto of_head = [&](uint32_t g, float(&out)[8]) {
    widen(__ldg(reinterpret_cast<const uint4*>(heads + size_t{g} * kDim + channel)), out);
  };
  if constexpr (!kPooled) {
    if (column < shape.group) return of_head(column, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = 0;
    return;
  }
  of_head(0, x);
  for (uint32_t g = 1; g < shape.group; ++g) {
    float one[8];
    of_head(g, one);
#pragma unroll
    for (int i = 0; i < 8; ++i)
      x[i] = shape.pooling == PagePooling::kMaxQ ? fmaxf(x[i], one[i]) : x[i] + one[i];
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float rest = shape.pooling == PagePooling::kMeanQ ? x[i] / static_cast<float>(shape.group) : x[i];
    x[i] = 0;
    for (uint32_t part = 0; part < kParts; ++part) {
      const float taken = __bfloat162float(__float2bfloat16(rest));
      if (part == column) x[i] = taken;
      rest -= taken;
    }
  }
}

// A lane's chunks of a page's high and low: lane % 4 and every fourth one after it; and those of a query.
template <int kDim>
struct Chunks {
  static constexpr uint32_t kHalf = kDim / 32, kCount = 2 * kHalf;
  uint4 chunk[kCount];

  __device__ void load_page(const __nv_bfloat16* page, uint32_t quarter) {
#pragma unroll
    for (uint32_t j = 0; j < kCount; ++j)
      chunk[j] = __ldcs(reinterpret_cast<const uint4*>(page) + 4 * j + quarter);
  }
  template <bool kPooled>
  __device__ void load(const ChoiceShape& shape, const __nv_bfloat16* heads, uint32_t column,
                       uint32_t quarter) {
#pragma unroll
    for (uint32_t j = 0; j < kHalf; ++j) {
      float x[8], high[8], low[8];
      load_query<kDim, kPooled>(shape, heads, column, 8 * (4 * j + quarter), x);
#pragma unroll
      for (int i = 0; i < 8; ++i) high[i] = fmaxf(x[i], 0), low[i] = fminf(x[i], 0);
      chunk[j] = narrow(high), chunk[kHalf + j] = narrow(low);
    }
  }
};

// A warp has sixteen pages of one KV head; its neighbours have the same pages of the next heads, which lie
// beside them. A lane has pages lane / 4 and that + 8, and columns 2 (lane % 4) and the next.
template <int kDim, bool kPooled>
__global__ void __launch_bounds__(kWarps * 32, 2)
    score_kernel(const __grid_constant__ ChoiceShape shape, const __grid_constant__ ChoiceArgs args) {
  const uint32_t lane = threadIdx.x % 32, quarter = lane % 4;
  const uint32_t item = blockIdx.x * kWarps + threadIdx.x / 32;
  const uint32_t head = item % shape.kv_heads, base = item / shape.kv_heads * kTilePages;
  const ChoiceRow row = args.rows[blockIdx.y];
  if (base >= row.candidates) return;
  const size_t stride = size_t{shape.kv_heads} * 2 * kDim;
  const __nv_bfloat16* const summaries = args.summaries + size_t{head} * 2 * kDim;
  // Beyond the last page: the last one again.
  const auto owner = [&](uint32_t page) {
    return __ldg(args.lists + row.owners + min(page, row.candidates - 1));
  };
  const uint32_t owners[2] = {owner(base + lane / 4), owner(base + lane / 4 + 8)};
  Chunks<kDim> above, below, q;
  above.load_page(summaries + owners[0] * stride, quarter);
  below.load_page(summaries + owners[1] * stride, quarter);
  q.template load<kPooled>(shape, args.q + (size_t{row.row} * shape.kv_heads + head) * shape.group * kDim,
                           lane / 4, quarter);
  float sum[4] = {};
#pragma unroll
  for (uint32_t j = 0; j < Chunks<kDim>::kCount; ++j) {
    const uint4 &a = above.chunk[j], &b = below.chunk[j], &x = q.chunk[j];
    multiply_add(sum, {{a.x, b.x, a.y, b.y}}, x.x, x.y);
    multiply_add(sum, {{a.z, b.z, a.w, b.w}}, x.z, x.w);
  }
  if constexpr (kPooled) {  // the parts are columns 0, 1 and 2
#pragma unroll
    for (int half = 0; half < 2; ++half)
      sum[2 * half] += sum[2 * half + 1] + __shfl_down_sync(kAllLanes, sum[2 * half], 1);
  }
  const uint32_t rows = shape.score_rows();
  float* const scores =
      args.scores + (size_t{blockIdx.y} * shape.kv_heads + head) * rows * shape.score_stride;
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    const uint32_t g = 2 * quarter + i % 2, page = base + lane / 4 + i / 2 * 8;
    if (g < rows && page < row.candidates) scores[size_t{g} * shape.score_stride + page] = sum[i];
  }
}

template <int kDim>
void launch(const ChoiceShape& shape, const ChoiceArgs& args, cudaStream_t stream) {
  const uint32_t tiles = (shape.score_stride + kTilePages - 1) / kTilePages;
  const dim3 grid((tiles * shape.kv_heads + kWarps - 1) / kWarps, args.count);
  if (shape.pools_queries()) {
    score_kernel<kDim, true><<<grid, kWarps * 32, 0, stream>>>(shape, args);
  } else {
    score_kernel<kDim, false><<<grid, kWarps * 32, 0, stream>>>(shape, args);
  }
}

}  // namespace

cudaError_t score_pages(const ChoiceShape& shape, const ChoiceArgs& args, cudaStream_t stream) {
  const bool heads = shape.kv_heads > 0 && shape.group > 0 && shape.group <= 8;
  if ((shape.head_dim != 64 && shape.head_dim != 128) || !heads) return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  shape.head_dim == 128 ? launch<128>(shape, args, stream) : launch<64>(shape, args, stream);
  return cudaGetLastError();
}

}  // namespace kvtwin
