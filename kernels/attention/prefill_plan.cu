#include <algorithm>

#include "kernels/attention/prefill_plan.cuh"

namespace kvtwin {
namespace {

using namespace device;

constexpr uint32_t kThreads = 1024;
constexpr uint32_t kLengths = 1024;  // length classes
constexpr uint64_t kSectionBytes = uint64_t{32} << 20;

// Inclusive prefix sum over the CTA. `warp_sums`: one per warp in shared memory.
template <typename T>
__device__ T sum_up_to_me(T value, T* warp_sums) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (uint32_t by = 1; by < 32; by *= 2) {
    const T left = __shfl_up_sync(0xffffffffu, value, by);
    if (lane >= by) value += left;
  }
  if (lane == 31) warp_sums[warp] = value;
  __syncthreads();
  T before = 0;
  for (uint32_t w = 0; w < warp; ++w) before += warp_sums[w];
  __syncthreads();
  return before + value;
}

struct Planner {
  const PrefillShape& shape;
  const PrefillSequence* table;
  bool chunk_in_pages;
  uint32_t* section;
  uint32_t*
      count;  // [kLengths], shared: tiles of a length class, then the index of its next tile in the list

  // Assigns sequences to sections by the bytes of the sequences before. Returns the number of sections.
  __device__ uint32_t divide(uint64_t* warp_sums, uint64_t* total) const {
    if (threadIdx.x == 0) *total = 0;
    __syncthreads();
    for (uint32_t base = 0; base < shape.sequences; base += kThreads) {
      const uint32_t i = base + threadIdx.x;
      const uint64_t kv_entries =
          i < shape.sequences && table[i].rows > 0 ? table[i].past + table[i].rows : 0;
      const uint64_t bytes = kv_entries * 4 * shape.head_dim, before = *total;
      const uint64_t until = before + sum_up_to_me(bytes, warp_sums);
      if (i < shape.sequences) section[i] = static_cast<uint32_t>((until - bytes) / kSectionBytes);
      if (threadIdx.x == kThreads - 1) *total = until;
      __syncthreads();
    }
    return static_cast<uint32_t>(*total / kSectionBytes) + 1;
  }

  // Calls take(class, work) for each tile of the section; length class 0 is the longest.
  template <typename Take>
  __device__ void each_tile(uint32_t wanted, const Take& take) const {
    const uint32_t tokens = tile_tokens(shape);
    for (uint32_t i = threadIdx.x / 32; i < shape.sequences; i += kThreads / 32) {
      if (section[i] != wanted) continue;
      const PrefillSequence s = table[i];
      const uint32_t most = KeyTiles(s, chunk_in_pages, 0, s.rows).count, by = most / kLengths + 1;
      for (uint32_t first = threadIdx.x % 32 * tokens; first < s.rows; first += 32 * tokens) {
        const uint32_t length = KeyTiles(s, chunk_in_pages, first, tokens).count / by;
        take(kLengths - 1 - min(length, kLengths - 1), PrefillWork{i, first});
      }
    }
  }
};

__global__ void __launch_bounds__(kThreads)
    plan_kernel(const __grid_constant__ PrefillShape shape, const PrefillSequence* table, bool chunk_in_pages,
                PrefillPlan* plan) {
  __shared__ uint64_t byte_sums[32], total;
  __shared__ uint32_t sums[32], count[kLengths];
  PrefillWork* const list = work_of(plan);
  auto* const section = reinterpret_cast<uint32_t*>(list + tiles_at_most(shape));
  const Planner planner{shape, table, chunk_in_pages, section, count};
  const uint32_t sections = planner.divide(byte_sums, &total);
  uint32_t before = 0;
  for (uint32_t s = 0; s < sections; ++s) {
    count[threadIdx.x] = 0;
    __syncthreads();
    planner.each_tile(s, [&](uint32_t length, const PrefillWork&) { atomicAdd(&count[length], 1); });
    __syncthreads();
    const uint32_t mine = count[threadIdx.x], until = sum_up_to_me(mine, sums);
    count[threadIdx.x] = before + until - mine;
    __syncthreads();
    planner.each_tile(
        s, [&](uint32_t length, const PrefillWork& work) { list[atomicAdd(&count[length], 1)] = work; });
    __syncthreads();
    before = count[kLengths - 1];  // at this point the end of the shortest class
    __syncthreads();
  }
  if (threadIdx.x == 0) *plan = {before, 0, 0, 0};
}

}  // namespace

size_t prefill_plan_bytes(const PrefillShape& shape) {
  return sizeof(PrefillPlan) + tiles_at_most(shape) * sizeof(PrefillWork) +
         shape.sequences * sizeof(uint32_t);
}

cudaError_t plan_attention_prefill(const PrefillShape& shape, const PrefillArgs& args, cudaStream_t stream) {
  if (shape.group == 0 || shape.group > kPrefillGroupMax) return cudaErrorInvalidValue;
  if (shape.sequences == 0) return cudaSuccess;
  plan_kernel<<<1, kThreads, 0, stream>>>(shape, args.table, args.k == nullptr,
                                          static_cast<PrefillPlan*>(args.plan));
  return cudaGetLastError();
}

}  // namespace kvtwin
