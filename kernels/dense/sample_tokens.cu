#include "kernels/common/block_sum.cuh"
#include "kernels/common/exact_exp.h"
#include "kernels/dense/sample_tokens.h"

namespace kvtwin {
namespace {

using namespace device;

constexpr uint32_t kThreads = 1024, kWarps = kThreads / 32;

struct Shared {
  uint64_t sums[kWarps];
  unsigned long long histogram[256];
  uint64_t above;
  uint32_t digit, token;
  float values[kWarps];
  uint32_t places[kWarps];
};

__device__ uint32_t ordered(float logit) {  // ascending with the logit; NaN as -inf (select.h)
  const uint32_t bits = __float_as_uint(logit != logit ? -INFINITY : logit);
  return bits ^ ((bits >> 31) != 0 ? 0xffffffffu : 0x80000000u);
}

// The token of argmax_ref.
__device__ uint32_t best_of(Shared& shared, const float* logits, uint32_t count) {
  float best = -INFINITY;
  uint32_t at = threadIdx.x == 0 ? 0 : count;
  for (uint32_t i = threadIdx.x; i < count; i += kThreads) {
    if (logits[i] > best) best = logits[i], at = i;
  }
  const auto take = [&](float other, uint32_t other_at) {
    if (other > best || (other == best && other_at < at)) best = other, at = other_at;
  };
#pragma unroll
  for (int by = 16; by > 0; by /= 2) {
    const float other = __shfl_xor_sync(kAllLanes, best, by);
    take(other, __shfl_xor_sync(kAllLanes, at, by));
  }
  if (threadIdx.x % 32 == 0) shared.values[threadIdx.x / 32] = best, shared.places[threadIdx.x / 32] = at;
  __syncthreads();
  best = shared.values[0], at = shared.places[0];
  for (uint32_t w = 1; w < kWarps; ++w) take(shared.values[w], shared.places[w]);
  return at;
}

// The logits of a row as keys and weights.
struct Row {
  const float* logits;
  uint32_t count;
  float largest, inverse_temperature;

  __device__ uint64_t weight(float logit) const {
    return static_cast<uint64_t>(kernels::exact_exp((logit - largest) * inverse_temperature) * 1073741824.0f);
  }
};

// The retained tokens: those with keys above `key`, and the first `equal` of those with this key.
struct Retained {
  uint32_t key = 0, equal = 0xffffffffu;
};

// The key at which the sum of what(logit), in descending order of keys, reaches `enough`, among keys of at
// least `from`; *above is the sum before it. Radix search, eight bits per pass.
template <typename What>
__device__ uint32_t key_at(Shared& shared, const Row& row, uint32_t from, uint64_t enough, const What& what,
                           uint64_t* above) {
  uint32_t key = 0;
  uint64_t sum = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    __syncthreads();
    if (threadIdx.x < 256) shared.histogram[threadIdx.x] = 0;
    __syncthreads();
    const uint32_t known = shift == 24 ? 0 : 0xffffffffu << (shift + 8);
    for (uint32_t i = threadIdx.x; i < row.count; i += kThreads) {
      const float logit = row.logits[i];
      const uint32_t one = ordered(logit);
      if (one < from || ((one ^ key) & known) != 0) continue;
      const uint64_t add = what(logit);
      if (add > 0) atomicAdd(&shared.histogram[one >> shift & 255], static_cast<unsigned long long>(add));
    }
    __syncthreads();
    const uint64_t own = threadIdx.x < 256 ? shared.histogram[255 - threadIdx.x] : 0, left = enough - sum;
    uint64_t all;
    const uint64_t before = sum_before<kWarps>(own, shared.sums, &all);
    if (before < left && left <= before + own) shared.digit = 255 - threadIdx.x, shared.above = before;
    __syncthreads();
    key |= shared.digit << shift, sum += shared.above;
  }
  *above = sum;
  return key;
}

// This thread's part of the row, in order of index.
struct VocabPart {
  uint32_t first, end;
  uint64_t equal_before;  // logits with the threshold key in lower parts
};

template <typename Take>
__device__ void each_retained(const Row& row, const Retained& retained, const VocabPart& split,
                              const Take& take) {
  uint64_t equal = split.equal_before;
  for (uint32_t i = split.first; i < split.end; ++i) {
    const float logit = row.logits[i];
    const uint32_t key = ordered(logit);
    if (key > retained.key || (key == retained.key && equal++ < retained.equal)) take(i, row.weight(logit));
  }
}

__device__ uint64_t kept_weight(Shared& shared, const Row& row, const Retained& retained, VocabPart* split,
                                uint64_t* before) {
  const uint32_t each = (row.count + kThreads - 1) / kThreads;
  split->first = min(threadIdx.x * each, row.count), split->end = min(split->first + each, row.count);
  uint64_t equal = 0, all;
  for (uint32_t i = split->first; i < split->end; ++i) equal += ordered(row.logits[i]) == retained.key;
  split->equal_before = sum_before<kWarps>(equal, shared.sums, &all);
  uint64_t own = 0;
  each_retained(row, retained, *split, [&](uint32_t, uint64_t weight) { own += weight; });
  *before = sum_before<kWarps>(own, shared.sums, &all);
  return all;
}

__global__ void __launch_bounds__(kThreads) sample_kernel(const __grid_constant__ SampleArgs args) {
  __shared__ Shared shared;
  Row row{args.logits + size_t{blockIdx.x} * args.count, args.count, 0, args.spec.inverse_temperature};
  const uint32_t best = best_of(shared, row.logits, row.count);
  row.largest = row.logits[best];
  Retained retained;
  if (args.spec.top_k > 0 && args.spec.top_k < row.count) {
    uint64_t above;
    retained.key = key_at(
        shared, row, 0, args.spec.top_k, [](float) { return uint64_t{1}; }, &above);
    retained.equal = args.spec.top_k - static_cast<uint32_t>(above);
  }
  VocabPart split;
  uint64_t before;
  uint64_t total = kept_weight(shared, row, retained, &split, &before);
  if (total > 0 && args.spec.top_p_q32 > 0) {
    const uint64_t part = __umul64hi(total, uint64_t{args.spec.top_p_q32} << 32),
                   enough = part > 0 ? part : 1;
    uint64_t above;
    const uint32_t key = key_at(
        shared, row, retained.key, enough, [&](float logit) { return row.weight(logit); }, &above);
    // Equal logits have equal weights.
    const uint32_t bits = key & 0x80000000u ? key ^ 0x80000000u : ~key;
    const uint64_t each = row.weight(__uint_as_float(bits));
    retained = {key, static_cast<uint32_t>((enough - above + each - 1) / each)};
    total = kept_weight(shared, row, retained, &split, &before);
  }
  if (threadIdx.x == 0) shared.token = best;
  __syncthreads();
  const uint64_t at = __umul64hi(args.draws[blockIdx.x], total);
  uint64_t sum = before;
  each_retained(row, retained, split, [&](uint32_t i, uint64_t weight) {
    if (sum <= at && sum + weight > at) shared.token = i;
    sum += weight;
  });
  __syncthreads();
  if (threadIdx.x == 0) args.out[blockIdx.x] = shared.token;
}

}  // namespace

cudaError_t sample_tokens(const SampleArgs& args, cudaStream_t stream) {
  if (args.count == 0 || args.count > 1u << 18) return cudaErrorInvalidValue;
  if (args.rows == 0) return cudaSuccess;
  sample_kernel<<<args.rows, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace kvtwin
