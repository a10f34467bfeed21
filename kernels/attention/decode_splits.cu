#include "kernels/attention/attention_decode_kernel.cuh"
#include "kernels/attention/decode_splits.h"

namespace kvtwin {
namespace {

using namespace device;

constexpr uint32_t kPlanThreads = 1024;

__device__ uint32_t blocks_of(const DecodeSplit& piece) { return device::blocks_of(piece.end - piece.begin); }

__global__ void __launch_bounds__(kPlanThreads)
    plan_kernel(const __grid_constant__ DecodeShape shape, const DecodeSequence* table,
                const DecodeSplit* pieces, PiecePlan* plan) {
  __shared__ uint32_t warp_sums[32];
  auto* const begins = reinterpret_cast<uint32_t*>(fractions_of(plan) + shape.ctas * kDecodeWarps);
  uint32_t before = 0;
  for (uint32_t base = 0; base < shape.ctas; base += kPlanThreads) {
    const uint32_t i = base + threadIdx.x;
    const uint32_t mine = i < shape.ctas ? blocks_of(pieces[i]) : 0;
    const uint32_t until = before + sum_up_to_me(mine, warp_sums);
    if (i < shape.ctas) begins[i] = until - mine;
    before += warp_sums[31];
    __syncthreads();
  }
  __syncthreads();
  if (threadIdx.x == 0) *plan = {shape.ctas, 0, begins};
  for (uint32_t g = threadIdx.x; g < shape.ctas * kDecodeWarps; g += kPlanThreads) {
    const uint32_t cta = g / kDecodeWarps, warp = g % kDecodeWarps;
    const DecodeSplit piece = pieces[cta];
    const uint32_t count = blocks_of(piece), from = warp * count / kDecodeWarps;
    WarpSplit split;
    split.sequence = piece.sequence;
    split.block = piece.begin / kDecodeBlockTokens + from;
    split.blocks = (warp + 1) * count / kDecodeWarps - from;
    split.first = begins[cta] + from;
    split.info = table[piece.sequence];
    fractions_of(plan)[g] = split;
  }
}

template <int kDim>
cudaError_t launch(const DecodeShape& shape, const DecodeArgs& args, cudaStream_t stream) {
  return shape.group <= 4
             ? launch_decode<DecodeGeometry<kDim, 4, Tables::kPages, PiecePlan>>(shape, args, stream)
             : launch_decode<DecodeGeometry<kDim, 8, Tables::kPages, PiecePlan>>(shape, args, stream);
}

bool right(const DecodeShape& shape) {
  return shape.page_tokens > 0 && shape.page_tokens % kDecodeBlockTokens == 0 && shape.group > 0 &&
         shape.group <= kDecodeGroupMax && (shape.head_dim == 64 || shape.head_dim == 128) && shape.ctas > 0;
}

}  // namespace

size_t decode_splits_bytes(const DecodeShape& shape) {
  return sizeof(PiecePlan) + (sizeof(WarpSplit) * kDecodeWarps + sizeof(uint32_t)) * shape.ctas;
}

cudaError_t plan_decode_splits(const DecodeShape& shape, const DecodeArgs& args, const DecodeSplit* pieces,
                               cudaStream_t stream) {
  if (!right(shape)) return cudaErrorInvalidValue;
  plan_kernel<<<1, kPlanThreads, 0, stream>>>(shape, args.table, pieces, static_cast<PiecePlan*>(args.plan));
  return cudaGetLastError();
}

cudaError_t attention_decode_splits(const DecodeShape& shape, const DecodeArgs& args, cudaStream_t stream) {
  if (!right(shape)) return cudaErrorInvalidValue;
  return shape.head_dim == 128 ? launch<128>(shape, args, stream) : launch<64>(shape, args, stream);
}

}  // namespace kvtwin
