#include "kernels/select/recall_tokens.h"
#include "kernels/common/kv_block.cuh"

namespace kvtwin {
namespace {

constexpr uint32_t kWarps = 4, kInFlight = 4, kCtas = 8;  // CTAs for each KV head of a row

// CTA (part, KV head, row). A lane has a chunk of the key or of the value; heads of 64 need half the lanes.
__global__ void __launch_bounds__(kWarps * 32)
    recall_tokens_kernel(const __grid_constant__ RecallTokensArgs args) {
  const TokenChoiceArgs& choice = args.choice;
  const TokenRow row = choice.rows[blockIdx.z];
  const uint32_t page_tokens = args.host.page_tokens, head = blockIdx.y, lane = threadIdx.x % 32;
  const uint32_t chunks = args.host.head_dim / 8, side = lane / chunks, chunk = lane % chunks;
  const KvBlockShape shape{page_tokens, args.host.head_dim};
  const uint32_t* const chosen = choice.chosen + (size_t{blockIdx.z} * choice.kv_heads + head) * choice.most;
  const uint32_t count = choice.numbers[blockIdx.z], all = args.poison ? choice.most : count;
  const uint32_t half = page_tokens * args.host.head_dim;
  if (side > 1) return;
  const uint32_t warp = blockIdx.x * kWarps + threadIdx.x / 32, step = gridDim.x * kWarps;
  for (uint32_t base = warp; base < all; base += step * kInFlight) {
    uint4 numbers[kInFlight];
#pragma unroll
    for (uint32_t k = 0; k < kInFlight; ++k) {
      const uint32_t i = base + k * step;
      numbers[k] = {0x7fc07fc0, 0x7fc07fc0, 0x7fc07fc0, 0x7fc07fc0};  // NaN
      if (i >= count) continue;
      const uint32_t position = row.first + chosen[i], token = position % page_tokens;
      const uint64_t page = choice.lists[row.host_copies + position / page_tokens] - args.first_host;
      const __nv_bfloat16* const from = args.host.pages + page * args.host.page_stride +
                                        head * args.host.head_numbers() + side * half +
                                        shape.at(token, 8 * chunk);
      numbers[k] = __ldcs(reinterpret_cast<const uint4*>(from));
    }
#pragma unroll
    for (uint32_t k = 0; k < kInFlight; ++k) {
      const uint32_t i = base + k * step;
      if (i >= all) continue;
      const size_t block = size_t{choice.lists[row.slots + i / page_tokens]} * choice.kv_heads + head;
      __nv_bfloat16* const to =
          args.pool + block * shape.numbers() + side * half + shape.at(i % page_tokens, 8 * chunk);
      *reinterpret_cast<uint4*>(to) = numbers[k];
    }
  }
}

}  // namespace

cudaError_t recall_tokens(const RecallTokensArgs& args, cudaStream_t stream) {
  if ((args.host.head_dim != 64 && args.host.head_dim != 128) || args.host.page_tokens == 0 ||
      args.host.layout != kernels::HostPageLayout::kHnd)
    return cudaErrorInvalidValue;
  if (args.choice.count == 0) return cudaSuccess;
  recall_tokens_kernel<<<dim3(kCtas, args.choice.kv_heads, args.choice.count), kWarps * 32, 0, stream>>>(
      args);
  return cudaGetLastError();
}

}  // namespace kvtwin
