#include <algorithm>

#include "kernels/packed/packed_plan.cuh"

namespace kvtwin {
namespace {

using namespace device;

constexpr uint32_t kPlanThreads = 1024;
constexpr uint32_t kNear = 8192;  // most sequences whose first units fit in shared memory

// The first block that starts at unit `from` of the list or later.
__device__ PackedSplit first_block(const PackedRules& rules, const PackedSequence* table, uint32_t sequences,
                                   const uint32_t* begins, uint32_t from) {
  PackedSplit split;
  split.sequence = sequence_of(from, begins, sequences);
  split.begin = split.first = begins[split.sequence];
  if (split.first == from) return split;  // also for a sequence without KV entries
  const PackedSequence s = table[split.sequence];
  for (; split.part < kPackedParts; ++split.part) {
    const uint32_t cost = rules.cost(split.part), blocks = rules.blocks(s, split.part);
    split.block = split.first >= from ? 0 : (from - split.first + cost - 1) / cost;
    if (split.block < blocks) {
      split.first += split.block * cost;
      return split;
    }
    split.first += blocks * cost;
  }
  ++split.sequence;
  split.part = split.block = 0;
  split.begin = split.first = begins[split.sequence - 1] + rules.cost(s);
  return split;
}

__global__ void __launch_bounds__(kPlanThreads) plan_kernel(const __grid_constant__ PackedDecodeShape shape,
                                                            const PackedSequence* table, DecodePlan* plan) {
  __shared__ uint32_t warp_sums[32], near[kNear];
  const PackedRules rules{shape.layout, shape.scale_group};
  const uint32_t sequences = shape.sequences;
  auto* const far = reinterpret_cast<uint32_t*>(packed_fractions_of(plan) + shape.ctas * kPackedWarps);
  uint32_t* const begins = sequences <= kNear ? near : far;
  uint32_t before = 0;
  for (uint32_t base = 0; base < sequences; base += kPlanThreads) {
    const uint32_t i = base + threadIdx.x;
    const uint32_t mine = i < sequences ? rules.cost(table[i]) : 0;
    const uint32_t until = before + sum_up_to_me(mine, warp_sums);
    if (i < sequences) begins[i] = until - mine;
    before += warp_sums[31];
    __syncthreads();
  }
  __syncthreads();
  const uint32_t ctas = max(1u, min(shape.ctas, before / kCostMost));
  const DecodePlan cuts{before, ctas, before / ctas, before % ctas};
  if (threadIdx.x == 0) *plan = cuts;
  for (uint32_t g = threadIdx.x; g < shape.ctas * kPackedWarps; g += kPlanThreads) {
    PackedSplit split;
    const uint32_t cta = g / kPackedWarps, warp = g % kPackedWarps;
    if (cta < ctas) {
      const uint32_t begin = cuts.cta_begin(cta), count = cuts.cta_begin(cta + 1) - begin;
      split = first_block(rules, table, sequences, begins, begin + warp * count / kPackedWarps);
      split.end = begin + (warp + 1) * count / kPackedWarps;
      if (split.first < split.end) split.info = table[split.sequence];
    }
    packed_fractions_of(plan)[g] = split;
  }
}

}  // namespace

bool packed_shape_is_possible(const PackedDecodeShape& s) {
  if (s.group == 0 || s.group > kDecodeGroupMax || (s.head_dim != 64 && s.head_dim != 128)) return false;
  if (s.ctas == 0 || s.heads_per_page == 0) return false;
  if (s.scale_group != 32 && s.scale_group != 64 && s.scale_group != 128) return false;
  for (uint32_t part = 0; part < kPackedParts; ++part) {
    const uint32_t page = s.page_tokens[part];
    if (page != 16 && page != 32 && page != 64 && page != 128) return false;
    const bool int2 = s.layout == PackedLayout::kRows || s.layout == PackedLayout::kKivi;
    if (int2 && part == kPartInt2 && page % s.scale_group != 0) return false;
  }
  return true;
}

size_t packed_plan_bytes(const PackedDecodeShape& shape) {
  return sizeof(DecodePlan) + sizeof(PackedSplit) * shape.ctas * kPackedWarps +
         sizeof(uint32_t) * shape.sequences;
}

size_t packed_workspace_bytes(const PackedDecodeShape& shape) {
  return device::parts_offset(shape.sequences) +
         size_t{2} * shape.ctas * kDecodeGroupMax * (shape.head_dim + 2) * sizeof(float);
}

cudaError_t plan_packed_decode(const PackedDecodeShape& shape, const PackedDecodeArgs& args,
                               cudaStream_t stream) {
  if (!packed_shape_is_possible(shape)) return cudaErrorInvalidValue;
  if (shape.sequences == 0) return cudaSuccess;
  plan_kernel<<<1, kPlanThreads, 0, stream>>>(shape, args.table, static_cast<DecodePlan*>(args.plan));
  return cudaGetLastError();
}

}  // namespace kvtwin
