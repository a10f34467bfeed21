#include <algorithm>

#include "kernels/attention/decode_plan.cuh"
#include "kernels/attention/decode_plan_layers.h"

namespace kvtwin {
namespace {

using namespace device;

constexpr uint32_t kPlanThreads = 1024;
constexpr uint32_t kNear = 8192;  // most sequences whose first blocks fit in shared memory

__global__ void __launch_bounds__(kPlanThreads)
    plan_kernel(const __grid_constant__ DecodeShape shape, const DecodeSequence* tables, char* plans,
                size_t stride) {
  const DecodeSequence* const table = tables + size_t{blockIdx.x} * shape.sequences;
  auto* const plan = reinterpret_cast<DecodePlan*>(plans + blockIdx.x * stride);
  __shared__ uint32_t warp_sums[32], near[kNear];
  const uint32_t sequences = shape.sequences;
  auto* const far = reinterpret_cast<uint32_t*>(fractions_of(plan) + shape.ctas * kDecodeWarps);
  uint32_t* const first_block = sequences <= kNear ? near : far;
  uint32_t before = 0;
  for (uint32_t base = 0; base < sequences; base += kPlanThreads) {
    const uint32_t i = base + threadIdx.x;
    const uint32_t mine = i < sequences ? blocks_of(table[i].tokens) : 0;
    const uint32_t until = before + sum_up_to_me(mine, warp_sums);
    if (i < sequences) first_block[i] = until - mine;
    before += warp_sums[31];
    __syncthreads();
  }
  __syncthreads();
  const uint32_t ctas = max(1u, min(shape.ctas, before));
  const DecodePlan cuts{before, ctas, before / ctas, before % ctas};
  if (threadIdx.x == 0) *plan = cuts;
  for (uint32_t g = threadIdx.x; g < shape.ctas * kDecodeWarps; g += kPlanThreads) {
    WarpSplit split;
    const uint32_t cta = g / kDecodeWarps, warp = g % kDecodeWarps;
    if (cta < ctas) {
      const uint32_t begin = cuts.cta_begin(cta), count = cuts.cta_begin(cta + 1) - begin;
      split.first = begin + warp * count / kDecodeWarps;
      split.blocks = begin + (warp + 1) * count / kDecodeWarps - split.first;
    }
    if (split.blocks > 0) {
      split.sequence = sequence_of(split.first, first_block, sequences);
      split.block = split.first - first_block[split.sequence];
      split.info = table[split.sequence];
    }
    fractions_of(plan)[g] = split;
  }
}

}  // namespace

size_t decode_plan_bytes(const DecodeShape& shape) {
  return sizeof(DecodePlan) + sizeof(WarpSplit) * shape.ctas * kDecodeWarps +
         sizeof(uint32_t) * shape.sequences;
}

cudaError_t plan_attention_decode(const DecodeShape& shape, const DecodeArgs& args, cudaStream_t stream) {
  return plan_decode_layers(shape, args, 1, 0, stream);
}

cudaError_t plan_decode_layers(const DecodeShape& shape, const DecodeArgs& args, uint32_t layers,
                               size_t stride, cudaStream_t stream) {
  if (shape.sequences == 0 || layers == 0) return cudaSuccess;
  plan_kernel<<<layers, kPlanThreads, 0, stream>>>(shape, args.table, static_cast<char*>(args.plan), stride);
  return cudaGetLastError();
}

}  // namespace kvtwin
