#include <cmath>

#include "kernels/decode_plan.cuh"
#include "kernels/select_cells.h"

namespace kvtwin {
namespace {

constexpr uint32_t kThreads = 1024, kDigits = 256;
// Rows whose keys are kept in shared memory.
constexpr uint32_t kHeldMax = 53248;

// Larger: kept first (select.h, order_key). Forced rows are no candidates: they have the key 0, which no
// score has, because -inf is 0x007fffff and NaN counts as -inf.
constexpr uint32_t kForced = 0;
__device__ uint32_t key_of(float score) {
  const uint32_t bits = __float_as_uint(isnan(score) ? -INFINITY : score);
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}

// Where the key of a row comes from.
struct Keys {
  const SelectHead head;
  const RowRange* const forced;
  const float* const scores;
  uint32_t* const held;  // null: not held

  __device__ bool is_forced(uint32_t row) const {
    for (uint32_t i = 0; i < head.forced_count; ++i) {
      if (row >= forced[i].begin && row < forced[i].end) return true;
    }
    return false;
  }
  __device__ uint32_t compute(uint32_t row) const { return is_forced(row) ? kForced : key_of(scores[row]); }
  __device__ uint32_t operator()(uint32_t row) const { return held != nullptr ? held[row] : compute(row); }
};

struct Shared {
  uint32_t histogram[kDigits];
  uint32_t sums[32];
  uint32_t prefix, left;  // of the last key that is kept; how many equal to it so far are
  uint32_t forced, nan;
  uint32_t base, ties;
};

// One of eight bits: lanes of a warp that have the same digit add once.
__device__ void count(uint32_t digit, bool counts, uint32_t* histogram) {
  const uint32_t lane = threadIdx.x % 32;
  const uint32_t active = __ballot_sync(0xffffffffu, counts);
  if (!counts) return;
  const uint32_t same = __match_any_sync(active, digit);
  if (lane == static_cast<uint32_t>(__ffs(static_cast<int>(same)) - 1))
    atomicAdd(&histogram[digit], __popc(same));
}

// The digit at `shift` of the key of rank s->left (from the largest) among keys that begin with s->prefix.
__device__ void narrow(const Keys& keys, int shift, Shared* s) {
  const uint32_t t = threadIdx.x;
  if (t < kDigits) s->histogram[t] = 0;
  __syncthreads();
  const uint32_t prefix = s->prefix, left = s->left;
  for (uint32_t base = 0; base < keys.head.rows; base += kThreads) {
    const uint32_t row = base + t;
    const uint32_t key = row < keys.head.rows ? keys(row) : kForced;
    const bool counts = key != kForced && (shift == 24 || key >> (shift + 8) == prefix);
    count(key >> shift & 255, counts, s->histogram);
  }
  __syncthreads();
  // Thread t has the t-th digit from the top.
  const uint32_t mine = t < kDigits ? s->histogram[kDigits - 1 - t] : 0;
  const uint32_t up_to = device::sum_up_to_me(mine, s->sums);
  __syncthreads();
  if (t < kDigits && up_to >= left && up_to - mine < left) {
    s->prefix = prefix << 8 | (kDigits - 1 - t);
    s->left = left - (up_to - mine);
  }
  __syncthreads();
}

// Rows above `last`, the largest `left` of the rows that equal it, and forced ones, in ascending order.
__device__ void write(const Keys& keys, uint32_t last, uint32_t ties, uint32_t left, bool all, uint32_t* kept,
                      Shared* s) {
  const uint32_t t = threadIdx.x;
  if (t == 0) s->base = s->ties = 0;
  __syncthreads();
  for (uint32_t first = 0; first < keys.head.rows; first += kThreads) {
    const uint32_t row = first + t;
    const bool valid = row < keys.head.rows;
    const uint32_t key = valid ? keys(row) : kForced;
    const bool tie = valid && !all && key != kForced && key == last;
    const uint32_t before = s->ties, base = s->base;
    const uint32_t tie_rank = before + device::sum_up_to_me(tie ? 1 : 0, s->sums) - (tie ? 1 : 0);
    const bool stays = valid && (all || key == kForced || key > last || (tie && tie_rank >= ties - left));
    const uint32_t place = device::sum_up_to_me(stays ? 1 : 0, s->sums);
    if (stays) kept[base + place - 1] = row;
    __syncthreads();
    if (t == kThreads - 1) s->base = base + place, s->ties = tie_rank + (tie ? 1 : 0);
    __syncthreads();
  }
}

__global__ void __launch_bounds__(kThreads)
    select_kernel(const __grid_constant__ SelectArgs args, uint32_t held_max) {
  extern __shared__ uint32_t held[];
  __shared__ Shared s;
  const SelectHead head = args.heads[blockIdx.x];
  if (head.rows == 0) return;
  const Keys keys{head, args.forced + head.forced_first, args.scores + blockIdx.x * args.stride,
                  head.rows <= held_max ? held : nullptr};
  const uint32_t t = threadIdx.x;
  if (t == 0) s.forced = s.nan = 0, s.prefix = 0;
  __syncthreads();
  uint32_t forced = 0, nan = 0;
  for (uint32_t row = t; row < head.rows; row += kThreads) {
    const uint32_t key = keys.compute(row);
    forced += key == kForced;
    nan += key != kForced && isnan(keys.scores[row]);
    if (keys.held != nullptr) held[row] = key;
  }
  if (forced > 0) atomicAdd(&s.forced, forced);
  if (nan > 0) atomicAdd(&s.nan, nan);
  __syncthreads();
  if (t == 0 && s.nan > 0 && args.nan != nullptr) atomicAdd(args.nan, s.nan);
  uint32_t* const kept = args.kept + head.kept;
  const uint32_t candidates = head.rows - s.forced;
  if (head.keep >= candidates) return write(keys, 0, 0, 0, true, kept, &s);
  if (head.keep == 0) return write(keys, 0xffffffffu, 0, 0, false, kept, &s);
  if (t == 0) s.left = head.keep;
  __syncthreads();
  for (int shift = 24; shift >= 0; shift -= 8) narrow(keys, shift, &s);
  // What equals the last key was counted in the last round.
  write(keys, s.prefix, s.histogram[s.prefix & 255], s.left, false, kept, &s);
}

}  // namespace

cudaError_t select_cells(const SelectArgs& args, cudaStream_t stream) {
  if (args.count == 0) return cudaSuccess;
  const uint32_t held = args.rows_max <= kHeldMax ? args.rows_max : 0;
  const size_t bytes = held * sizeof(uint32_t);
  if (const cudaError_t error =
          cudaFuncSetAttribute(select_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               static_cast<int>(kHeldMax * sizeof(uint32_t)));
      error != cudaSuccess)
    return error;
  select_kernel<<<args.count, kThreads, bytes, stream>>>(args, held);
  return cudaGetLastError();
}

}  // namespace kvtwin
