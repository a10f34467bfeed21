#include <mma.h>

#include "kernels/cache_ops/rebuild_keys.h"
#include "kernels/common/kv_block.cuh"

namespace kvtwin {
namespace {

using namespace nvcuda;

constexpr uint32_t kTile = 16, kSlots = 4;  // of a CTA

// 16 tokens of a page, before rotation, to shared memory [16][head_dim].
__device__ void multiply(const RebuildArgs& args, const __nv_bfloat16* coordinates,
                         const __nv_bfloat16* directions, float* rows) {
  const uint32_t width = args.kv_heads * args.head_dim, channel = threadIdx.x / 32 * kTile;
  wmma::fragment<wmma::accumulator, kTile, kTile, kTile, float> sum;
  wmma::fill_fragment(sum, 0.0f);
  for (uint32_t r = 0; r < args.rank; r += kTile) {
    wmma::fragment<wmma::matrix_a, kTile, kTile, kTile, __nv_bfloat16, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, kTile, kTile, kTile, __nv_bfloat16, wmma::row_major> b;
    wmma::load_matrix_sync(a, coordinates + r, args.rank);
    wmma::load_matrix_sync(b, directions + size_t{r} * width + channel, width);
    wmma::mma_sync(sum, a, b, sum);
  }
  wmma::store_matrix_sync(rows + channel, sum, args.head_dim, wmma::mem_row_major);
}

// Rotates them and writes them to slots [first, first + 16) of a block.
__device__ void rotate(const RebuildArgs& args, const float* rows, uint32_t position, uint32_t first,
                       __nv_bfloat16* block) {
  const KvBlockShape shape{args.page_tokens, args.head_dim};
  const uint32_t half = args.head_dim / 2;
  for (uint32_t i = threadIdx.x; i < kTile * half; i += blockDim.x) {
    const uint32_t t = i / half, c = i % half;
    float sine, cosine;
    sincosf(static_cast<float>(position + t) * args.inv_freq[c], &sine, &cosine);
    sine *= args.rope_scale, cosine *= args.rope_scale;
    const float a = rows[t * args.head_dim + c], b = rows[t * args.head_dim + half + c];
    block[shape.at(first + t, c)] = __float2bfloat16_rn(a * cosine - b * sine);
    block[shape.at(first + t, c + half)] = __float2bfloat16_rn(b * cosine + a * sine);
  }
}

// CTA (slots, KV head, row).
__global__ void rebuild_kernel(const __grid_constant__ RebuildArgs args) {
  __shared__ __align__(32) float rows[kTile * 128];
  const RebuildRow row = args.rows[blockIdx.z];
  const uint32_t head = blockIdx.y, end = min((blockIdx.x + 1) * kSlots, args.chosen);
  const uint32_t* const held = args.held + (size_t{row.state} * args.kv_heads + head) * args.chosen;
  const __nv_bfloat16* const directions =
      args.directions + (size_t{row.state} * args.rank * args.kv_heads + head) * args.head_dim;
  for (uint32_t slot = blockIdx.x * kSlots; slot < end; ++slot) {
    const uint32_t candidate = held[slot];
    const __nv_bfloat16* const coordinates =
        args.coordinates + size_t{args.lists[row.factors + candidate]} * args.page_tokens * args.rank;
    __nv_bfloat16* const block = args.pool + (size_t{args.lists[row.slots + slot]} * args.kv_heads + head) *
                                                 KvBlockShape{args.page_tokens, args.head_dim}.numbers();
    for (uint32_t first = 0; first < args.page_tokens; first += kTile) {
      multiply(args, coordinates + size_t{first} * args.rank, directions, rows);
      __syncthreads();
      rotate(args, rows, (row.first_page + candidate) * args.page_tokens + first, first, block);
      __syncthreads();
    }
  }
}

}  // namespace

cudaError_t rebuild_keys(const RebuildArgs& args, cudaStream_t stream) {
  if ((args.head_dim != 64 && args.head_dim != 128) || args.page_tokens == 0 ||
      args.page_tokens % kTile != 0 || args.rank == 0 || args.rank % kTile != 0 || args.kv_heads == 0)
    return cudaErrorInvalidValue;
  if (args.count == 0 || args.chosen == 0) return cudaSuccess;
  const dim3 grid((args.chosen + kSlots - 1) / kSlots, args.kv_heads, args.count);
  rebuild_kernel<<<grid, args.head_dim / kTile * 32, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace kvtwin
