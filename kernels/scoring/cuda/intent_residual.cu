#include <cmath>

#include "engine/base/check.h"
#include "kernels/common/kv_entry_heads.cuh"
#include "kernels/scoring/cuda/intent_residual_cuda.h"

namespace kvtwin {
namespace {

using namespace device;

constexpr uint32_t kThreads = 256;
constexpr uint32_t kRows = 32;  // of a CTA that corrects
constexpr uint32_t kSide = 4;   // a thread computes kSide outputs of kSide rows at a time
constexpr uint32_t kRowTiles = kRows / kSide;

template <int kDim>
constexpr IntentResidualLayout kAt = intent_residual_layout(kDim);

struct Workspace {
  float* kbar;                     // [rows][dim]
  float *span_keys, *span_values;  // [span][dim]
  float* corrections;              // [rows]
  double2* norm;                   // what is subtracted from the rule, and its factor
  explicit Workspace(const IntentResidualArgs& args) {
    const size_t dim = args.rule.kv_entries.head_dim, span = args.span_end - args.span_begin;
    norm = reinterpret_cast<double2*>(args.workspace);
    kbar = args.workspace + 4;
    span_keys = kbar + args.rule.rows * dim, span_values = span_keys + span * dim;
    corrections = span_values + span * dim;
  }
};

__device__ bool is_candidate(const IntentScoreArgs& args, uint32_t row) {
  for (uint32_t i = 0; i < args.forced_count; ++i) {
    if (row >= args.forced[i].begin && row < args.forced[i].end) return false;
  }
  return true;
}

// Adjacent lanes take the chunks of a row.
template <int kDim>
__global__ void __launch_bounds__(kThreads)
    key_sums_kernel(const __grid_constant__ IntentScoreArgs args, float* kbar, uint32_t first, uint32_t count,
                    float split) {
  constexpr uint32_t kLanes = kDim / 8;
  const uint32_t row = (blockIdx.x * kThreads + threadIdx.x) / kLanes, chunk = threadIdx.x % kLanes;
  if (row >= args.rows) return;
  float* const to = kbar + size_t{row} * kDim + 8 * chunk;
  float sum[8] = {};
  if (first > 0) {
    for (uint32_t i = 0; i < 8; ++i) sum[i] = to[i];
  }
#pragma unroll 8
  for (uint32_t head = first * args.kv_heads; head < (first + count) * args.kv_heads; ++head) {
    float x[8];
    const KvEntryPlace place = place_of(args.kv_entries, args.heads[head], row);
    widen(load_once(key_chunk<kDim>(args.kv_entries, place, chunk)), x);
#pragma unroll
    for (uint32_t i = 0; i < 8; ++i) sum[i] += x[i] * split;
  }
  for (uint32_t i = 0; i < 8; ++i) to[i] = sum[i];
}

// Keys and values of the span's rows, one CTA a row.
template <int kDim>
__global__ void __launch_bounds__(kDim)
    span_kernel(const __grid_constant__ IntentResidualArgs args, const __grid_constant__ Workspace work) {
  __shared__ float from[kDim];
  const uint32_t out = threadIdx.x;
  from[out] = work.kbar[size_t{args.span_begin + blockIdx.x} * kDim + out];
  __syncthreads();
  float key = 0, value = 0;
#pragma unroll 8
  for (uint32_t k = 0; k < kDim; ++k) {
    key += __ldg(args.weights + kAt<kDim>.wk + k * kDim + out) * from[k];
    value += __ldg(args.weights + kAt<kDim>.wv + k * kDim + out) * from[k];
  }
  work.span_keys[size_t{blockIdx.x} * kDim + out] = key + __ldg(args.weights + kAt<kDim>.bk + out);
  work.span_values[size_t{blockIdx.x} * kDim + out] = value + __ldg(args.weights + kAt<kDim>.bv + out);
}

// Numbers of kRows rows: [width][kRows].
template <int kDim>
struct Shared {
  float features[4 * kDim][kRows];
  float query[kDim][kRows];
  float parts[kThreads][kSide];
};

// Calls done(output, rows' first, sums) for each tile of kSide outputs and kSide rows of w x + b.
template <uint32_t kIn, uint32_t kOut, typename Done>
__device__ void product(const float* w, const float* b, const float (*x)[kRows], const Done& done) {
  for (uint32_t tile = threadIdx.x; tile < kOut / kSide * kRowTiles; tile += kThreads) {
    const uint32_t out = tile / kRowTiles * kSide, row = tile % kRowTiles * kSide;
    float sums[kSide][kSide] = {};
#pragma unroll 8
    for (uint32_t k = 0; k < kIn; ++k) {
      const float4 weight = __ldg(reinterpret_cast<const float4*>(w + k * kOut + out));
      const float4 number = *reinterpret_cast<const float4*>(&x[k][row]);
      const float of[kSide] = {weight.x, weight.y, weight.z, weight.w};
      const float in[kSide] = {number.x, number.y, number.z, number.w};
#pragma unroll
      for (uint32_t i = 0; i < kSide; ++i) {
#pragma unroll
        for (uint32_t r = 0; r < kSide; ++r) sums[i][r] += of[i] * in[r];
      }
    }
#pragma unroll
    for (uint32_t i = 0; i < kSide; ++i) {
#pragma unroll
      for (uint32_t r = 0; r < kSide; ++r) sums[i][r] += __ldg(b + out + i);
    }
    done(out, row, sums);
  }
}

// Attention of a row's query of one head over the span. The result replaces the query. One thread per row and
// head.
template <int kDim>
__device__ void attend_span(const Workspace& work, uint32_t span, float (*query)[kRows]) {
  constexpr uint32_t kWidth = kDim / kIntentResidualHeads;
  if (threadIdx.x >= kRows * kIntentResidualHeads) return;
  const uint32_t row = threadIdx.x % kRows, lane = threadIdx.x / kRows * kWidth;
  const float scale = 1.0f / sqrtf(static_cast<float>(kWidth));
  float q[kWidth], mean[kWidth] = {}, largest = -INFINITY, total = 0;
#pragma unroll
  for (uint32_t c = 0; c < kWidth; ++c) q[c] = query[lane + c][row];
  for (uint32_t i = 0; i < span; ++i) {
    const float* const key = work.span_keys + size_t{i} * kDim + lane;
    float logit = 0;
#pragma unroll
    for (uint32_t c = 0; c < kWidth; ++c) logit += q[c] * __ldg(key + c);
    logit *= scale;
    const float before = largest;
    largest = fmaxf(largest, logit);
    const float shrink = expf(before - largest), weight = expf(logit - largest);
    total = total * shrink + weight;
    const float* const value = work.span_values + size_t{i} * kDim + lane;
#pragma unroll
    for (uint32_t c = 0; c < kWidth; ++c) mean[c] = mean[c] * shrink + weight * __ldg(value + c);
  }
#pragma unroll
  for (uint32_t c = 0; c < kWidth; ++c) query[lane + c][row] = mean[c] / total;
}

__device__ float gelu(float x) { return 0.5f * x * (1.0f + erff(x * 0.70710678f)); }

template <int kDim>
__device__ void load_features(const IntentResidualArgs& args, const Workspace& work, Shared<kDim>* s) {
  for (uint32_t i = threadIdx.x; i < kRows * kDim; i += kThreads) {
    const uint32_t c = i % kDim, r = i / kDim, row = min(blockIdx.x * kRows + r, args.rule.rows - 1);
    const float key = work.kbar[size_t{row} * kDim + c], memory = __ldg(args.mbar + c);
    s->features[c][r] = key, s->features[kDim + c][r] = memory, s->features[2 * kDim + c][r] = key * memory;
    s->features[3 * kDim + c][r] = 0;
  }
  __syncthreads();
}

template <int kDim>
__global__ void __launch_bounds__(kThreads)
    corrections_kernel(const __grid_constant__ IntentResidualArgs args,
                       const __grid_constant__ Workspace work) {
  extern __shared__ __align__(16) unsigned char memory[];
  Shared<kDim>* const s = reinterpret_cast<Shared<kDim>*>(memory);
  const float* const w = args.weights;
  load_features<kDim>(args, work, s);
  const uint32_t span = args.span_end - args.span_begin;
  const auto store = [](float(*to)[kRows]) {
    return [to](uint32_t out, uint32_t row, const float(&sums)[kSide][kSide]) {
      for (uint32_t i = 0; i < kSide; ++i) {
        for (uint32_t r = 0; r < kSide; ++r) to[out + i][row + r] = sums[i][r];
      }
    };
  };
  if (args.cross_attention && span > 0) {
    product<3 * kDim, kDim>(w + kAt<kDim>.wq, w + kAt<kDim>.bq, s->features, store(s->query));
    __syncthreads();
    attend_span<kDim>(work, span, s->query);
    __syncthreads();
    product<kDim, kDim>(w + kAt<kDim>.wo, w + kAt<kDim>.bo, s->query, store(s->features + 3 * kDim));
    __syncthreads();
  }
  float mine[kSide] = {};
  product<4 * kDim, kIntentResidualHidden>(w + kAt<kDim>.w1, w + kAt<kDim>.b1, s->features,
                                           [&](uint32_t out, uint32_t, const float(&sums)[kSide][kSide]) {
                                             for (uint32_t i = 0; i < kSide; ++i) {
                                               for (uint32_t r = 0; r < kSide; ++r)
                                                 mine[r] +=
                                                     __ldg(w + kAt<kDim>.w2 + out + i) * gelu(sums[i][r]);
                                             }
                                           });
  for (uint32_t r = 0; r < kSide; ++r) s->parts[threadIdx.x][r] = mine[r];
  __syncthreads();
  const uint32_t row = blockIdx.x * kRows + threadIdx.x;
  if (threadIdx.x >= kRows || row >= args.rule.rows) return;
  float sum = 0;
  for (uint32_t t = threadIdx.x / kSide; t < kThreads; t += kRowTiles)
    sum += s->parts[t][threadIdx.x % kSide];
  work.corrections[row] = sum + args.b2;
}

__device__ double sum_of_cta(double mine, double* shared) {
  shared[threadIdx.x] = mine;
  __syncthreads();
  for (uint32_t by = kThreads / 2; by > 0; by /= 2) {
    if (threadIdx.x < by) shared[threadIdx.x] += shared[threadIdx.x + by];
    __syncthreads();
  }
  const double sum = shared[0];
  __syncthreads();
  return sum;
}

// Mean and deviation of the candidates' rule (RuleNorm::kZScore), by one CTA.
__global__ void __launch_bounds__(kThreads)
    norm_kernel(const __grid_constant__ IntentScoreArgs args, const float* scores, uint32_t candidates,
                double2* norm) {
  __shared__ double shared[kThreads];
  double sum = 0, squares = 0;
  for (uint32_t row = threadIdx.x; row < args.rows; row += kThreads)
    sum += is_candidate(args, row) ? double{scores[row]} : 0;
  const double mean = sum_of_cta(sum, shared) / candidates;
  for (uint32_t row = threadIdx.x; row < args.rows; row += kThreads) {
    const double off = double{scores[row]} - mean;
    squares += is_candidate(args, row) ? off * off : 0;
  }
  const double deviation = sqrt(sum_of_cta(squares, shared) / candidates);
  if (threadIdx.x == 0) *norm = {mean, deviation};
}

__device__ float normed(const IntentResidualArgs& args, const Workspace& work, float rule) {
  if (args.norm == kernels::RuleNorm::kNone) return rule;
  if (args.norm == kernels::RuleNorm::kTimesCandidates) return rule * static_cast<float>(args.candidates);
  const double2 norm = *work.norm;
  return norm.y > 0 ? static_cast<float>((double{rule} - norm.x) / norm.y) : 0;
}

__global__ void __launch_bounds__(kThreads)
    correct_kernel(const __grid_constant__ IntentResidualArgs args, const __grid_constant__ Workspace work,
                   float* scores, uint64_t stride, uint32_t copies) {
  const uint32_t row = blockIdx.x * kThreads + threadIdx.x;
  if (row >= args.rule.rows) return;
  const float score =
      is_candidate(args.rule, row) ? normed(args, work, scores[row]) + args.gain * work.corrections[row] : 0;
  for (uint32_t c = 0; c < copies; ++c) scores[c * stride + row] = score;
}

bool right(const IntentResidualArgs& args) {
  const uint32_t dim = args.rule.kv_entries.head_dim;
  return (dim == 64 || dim == 128) && args.span_begin <= args.span_end && args.span_end <= args.rule.rows &&
         args.candidates <= args.rule.rows && args.rule.layers > 0 && args.rule.kv_heads > 0;
}

template <int kDim>
cudaError_t correct(const IntentResidualArgs& args, const Workspace& work, cudaStream_t stream) {
  const uint32_t span = args.span_end - args.span_begin;
  if (args.cross_attention && span > 0) span_kernel<kDim><<<span, kDim, 0, stream>>>(args, work);
  const cudaError_t room =
      cudaFuncSetAttribute(corrections_kernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                           static_cast<int>(sizeof(Shared<kDim>)));
  if (room != cudaSuccess) return room;
  corrections_kernel<kDim>
      <<<(args.rule.rows + kRows - 1) / kRows, kThreads, sizeof(Shared<kDim>), stream>>>(args, work);
  return cudaGetLastError();
}

}  // namespace

std::vector<float> intent_residual_weights(const kernels::IntentResidual& head) {
  KVT_CHECK(head.heads == kIntentResidualHeads && head.hidden == kIntentResidualHidden);
  const uint32_t dim = head.dim;
  const IntentResidualLayout at = intent_residual_layout(dim);
  std::vector<float> out(at.total);
  const auto put = [&](uint32_t to, const std::vector<float>& w, uint32_t inputs) {
    const size_t outputs = w.size() / inputs;
    for (size_t o = 0; o < outputs; ++o) {
      for (size_t k = 0; k < inputs; ++k) out[to + k * outputs + o] = w[o * inputs + k];
    }
  };
  put(at.wq, head.wq, 3 * dim), put(at.bq, head.bq, 1);
  put(at.wk, head.wk, dim), put(at.bk, head.bk, 1), put(at.wv, head.wv, dim), put(at.bv, head.bv, 1);
  put(at.wo, head.wo, dim), put(at.bo, head.bo, 1);
  put(at.w1, head.w1, 4 * dim), put(at.b1, head.b1, 1), put(at.w2, head.w2, 1);
  return out;
}

size_t intent_residual_floats(const IntentResidualArgs& args) {
  const size_t dim = args.rule.kv_entries.head_dim;
  return 4 + args.rule.rows * (dim + 1) + 2 * (args.span_end - args.span_begin) * dim;
}

cudaError_t intent_key_sums(const IntentResidualArgs& args, uint32_t first, uint32_t count,
                            cudaStream_t stream) {
  if (!right(args) || first + count > args.rule.layers) return cudaErrorInvalidValue;
  if (args.rule.rows == 0) return cudaSuccess;
  const Workspace work(args);
  const uint32_t dim = args.rule.kv_entries.head_dim, each = kThreads / (dim / 8);
  const uint32_t grid = (args.rule.rows + each - 1) / each;
  const float split = 1.0f / (static_cast<float>(args.rule.layers) * static_cast<float>(args.rule.kv_heads));
  dim == 64 ? key_sums_kernel<64><<<grid, kThreads, 0, stream>>>(args.rule, work.kbar, first, count, split)
            : key_sums_kernel<128><<<grid, kThreads, 0, stream>>>(args.rule, work.kbar, first, count, split);
  return cudaGetLastError();
}

cudaError_t intent_correct_scores(const IntentResidualArgs& args, float* scores, uint64_t stride,
                                  uint32_t copies, cudaStream_t stream) {
  if (!right(args)) return cudaErrorInvalidValue;
  if (args.rule.rows == 0 || copies == 0) return cudaSuccess;
  const Workspace work(args);
  const cudaError_t corrected = args.rule.kv_entries.head_dim == 64 ? correct<64>(args, work, stream)
                                                                    : correct<128>(args, work, stream);
  if (corrected != cudaSuccess) return corrected;
  if (args.norm == kernels::RuleNorm::kZScore && args.candidates > 0)
    norm_kernel<<<1, kThreads, 0, stream>>>(args.rule, scores, args.candidates, work.norm);
  correct_kernel<<<(args.rule.rows + kThreads - 1) / kThreads, kThreads, 0, stream>>>(args, work, scores,
                                                                                      stride, copies);
  return cudaGetLastError();
}

}  // namespace kvtwin
