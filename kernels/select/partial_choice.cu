#include "kernels/select/best_pages.cuh"
#include "kernels/select/partial_choice.h"

namespace kvtwin {
namespace {

using namespace device;
using kernels::PagePooling;

constexpr uint32_t kThreads = kChoiceThreads, kWarps = kChoiceWarps, kDimMax = 256, kGroupMax = 8;

__device__ float sum_of_warp(float x) {
#pragma unroll
  for (int by = 16; by > 0; by /= 2) x += __shfl_xor_sync(kAllLanes, x, by);
  return x;
}

// One head to shared memory, normed and rotated if that is wanted.
__device__ void load_head(const ProjectArgs& args, const ProjectedRow& row, uint32_t head, float* x) {
  const __nv_bfloat16* const from = args.x + (size_t{row.row} * args.heads + head) * args.head_dim;
  const uint32_t half = args.head_dim / 2, lane = threadIdx.x % 32;
  for (uint32_t i = threadIdx.x; i < args.head_dim; i += kThreads) x[i] = __bfloat162float(from[i]);
  __syncthreads();
  if (args.norm != nullptr) {
    float squares = 0;
    for (uint32_t i = lane; i < args.head_dim; i += 32) squares += x[i] * x[i];
    const float factor = 1 / sqrtf(sum_of_warp(squares) / static_cast<float>(args.head_dim) + args.norm_eps);
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < args.head_dim; i += kThreads)
      x[i] *= factor * __bfloat162float(args.norm[i]);
    __syncthreads();
  }
  if (args.inv_freq == nullptr) return;
  for (uint32_t i = threadIdx.x; i < half; i += kThreads) {
    float sine, cosine;
    sincosf(static_cast<float>(row.position) * args.inv_freq[i], &sine, &cosine);
    sine *= args.rope_scale, cosine *= args.rope_scale;
    const float a = x[i], b = x[i + half];
    x[i] = a * cosine - b * sine, x[i + half] = b * cosine + a * sine;
  }
  __syncthreads();
}

// CTA (head, row): a warp for each direction.
__global__ void __launch_bounds__(kThreads) project_kernel(const __grid_constant__ ProjectArgs args) {
  __shared__ float x[kDimMax];
  const ProjectedRow row = args.rows[blockIdx.y];
  const uint32_t head = blockIdx.x, lane = threadIdx.x % 32;
  load_head(args, row, head, x);
  const uint32_t kv_head = head / (args.heads / args.kv_heads);
  const float* const directions =
      args.directions + (size_t{row.state} * args.kv_heads + kv_head) * args.columns * args.head_dim;
  float* const out = args.out + (size_t{row.target} * args.heads + head) * args.columns;
  for (uint32_t c = threadIdx.x / 32; c < args.columns; c += kWarps) {
    float sum = 0;
    for (uint32_t i = lane; i < args.head_dim; i += 32) sum += x[i] * directions[c * args.head_dim + i];
    sum = sum_of_warp(sum);
    if (lane == 0) out[c] = sum;
  }
}

__device__ const float* partial_key(const TokenChoiceArgs& args, const TokenRow& row, uint32_t head,
                                    uint32_t candidate) {
  const uint32_t position = row.first + candidate;
  const size_t page = args.lists[row.partial + position / args.page_tokens];
  return args.partial +
         ((page * args.page_tokens + position % args.page_tokens) * args.kv_heads + head) * args.columns;
}

// CTA (tokens, KV head, row): a thread for each token.
__global__ void __launch_bounds__(kThreads)
    score_tokens_kernel(const __grid_constant__ TokenChoiceArgs args) {
  extern __shared__ float queries[];  // [group][columns]
  const TokenRow row = args.rows[blockIdx.z];
  const uint32_t head = blockIdx.y, token = blockIdx.x * kThreads + threadIdx.x;
  const size_t unit = size_t{blockIdx.z} * args.kv_heads + head;
  for (uint32_t i = threadIdx.x; i < args.group * args.columns; i += kThreads)
    queries[i] = args.queries[unit * args.group * args.columns + i];
  __syncthreads();
  if (token >= row.candidates) return;
  const float* const key = partial_key(args, row, head, token);
  float sum[kGroupMax] = {};
  for (uint32_t c = 0; c < args.columns; ++c) {
    const float x = key[c];
#pragma unroll
    for (uint32_t g = 0; g < kGroupMax; ++g) {
      if (g < args.group) sum[g] += x * queries[g * args.columns + c];
    }
  }
#pragma unroll
  for (uint32_t g = 0; g < kGroupMax; ++g) {
    if (g < args.group) args.scores[(unit * args.group + g) * args.score_stride + token] = sum[g];
  }
}

// CTA (query head, row): counts the tokens that are near its best one.
__global__ void __launch_bounds__(kThreads) count_kernel(const __grid_constant__ TokenChoiceArgs args) {
  __shared__ BestPages shared;
  const uint32_t candidates = args.rows[blockIdx.y].candidates;
  const float* const scores = args.scores + (size_t{blockIdx.y} * gridDim.x + blockIdx.x) * args.score_stride;
  float top = -INFINITY;
  for (uint32_t t = threadIdx.x; t < candidates; t += kThreads) top = fmaxf(top, scores[t] * args.scale);
  top = over_all<Largest>(shared, top);
  uint32_t near = 0, all;
  for (uint32_t t = threadIdx.x; t < candidates; t += kThreads)
    near += scores[t] * args.scale > top - args.margin;
  sum_before<kWarps>(near, shared.sums, &all);
  if (threadIdx.x == 0) atomicAdd(args.near + blockIdx.y, all);
}

// Scores of the group's pooled partial query, in place of the first query head's.
__device__ void score_pooled(const TokenChoiceArgs& args, const TokenRow& row, uint32_t head, size_t unit,
                             float* pooled, float* scores) {
  const float* const queries = args.queries + unit * args.group * args.columns;
  for (uint32_t c = threadIdx.x; c < args.columns; c += kThreads) {
    float x = queries[c];
    for (uint32_t g = 1; g < args.group; ++g) {
      const float y = queries[g * args.columns + c];
      x = args.pooling == PagePooling::kMaxQ ? fmaxf(x, y) : x + y;
    }
    pooled[c] = args.pooling == PagePooling::kMaxQ ? x : x / static_cast<float>(args.group);
  }
  __syncthreads();
  for (uint32_t t = threadIdx.x; t < row.candidates; t += kThreads) {
    const float* const key = partial_key(args, row, head, t);
    float sum = 0;
    for (uint32_t c = 0; c < args.columns; ++c) sum += key[c] * pooled[c];
    scores[t] = sum;
  }
}

// CTA (KV head, row).
__global__ void __launch_bounds__(kThreads)
    choose_tokens_kernel(const __grid_constant__ TokenChoiceArgs args) {
  __shared__ BestPages shared;
  __shared__ float pooled[kDimMax];
  const TokenRow row = args.rows[blockIdx.y];
  const uint32_t head = blockIdx.x;
  const size_t unit = size_t{blockIdx.y} * args.kv_heads + head;
  ChoiceShape shape;
  shape.group = args.group, shape.pooling = args.pooling, shape.scale = 1;
  shape.score_stride = args.score_stride;
  float* const scores = args.scores + unit * args.group * args.score_stride;
  if (shape.pools_queries()) {
    score_pooled(args, row, head, unit, pooled, scores);
  } else {
    pool(shape, shared, scores, row.candidates);
  }
  __syncthreads();
  const uint32_t count = min(max(args.near[blockIdx.y] / (args.kv_heads * args.group), 1u), args.most);
  choose(shared, scores, row.candidates, count, args.chosen + unit * args.most);
  if (threadIdx.x > 0) return;
  if (head == 0) args.numbers[blockIdx.y] = count;
  QueryRow& read = args.reads[unit];
  read.kv_entries = row.before + count + row.after;
  read.sinks = row.before + count, read.gap = args.most - count;
}

bool right(const TokenChoiceArgs& args) {
  return args.kv_heads > 0 && args.group > 0 && args.group <= kGroupMax && args.columns > 0 &&
         args.columns <= kDimMax && args.page_tokens > 0 && args.most > 0;
}

}  // namespace

cudaError_t project_rows(const ProjectArgs& args, cudaStream_t stream) {
  if (args.kv_heads == 0 || args.heads % args.kv_heads != 0 || args.head_dim > kDimMax ||
      args.head_dim % 2 != 0)
    return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  project_kernel<<<dim3(args.heads, args.count), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

cudaError_t score_tokens(const TokenChoiceArgs& args, cudaStream_t stream) {
  if (!right(args)) return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  const dim3 grid((args.score_stride + kThreads - 1) / kThreads, args.kv_heads, args.count);
  score_tokens_kernel<<<grid, kThreads, args.group * args.columns * sizeof(float), stream>>>(args);
  return cudaGetLastError();
}

cudaError_t choose_tokens(const TokenChoiceArgs& args, cudaStream_t stream) {
  if (!right(args)) return cudaErrorInvalidValue;
  if (args.count == 0) return cudaSuccess;
  count_kernel<<<dim3(args.kv_heads * args.group, args.count), kThreads, 0, stream>>>(args);
  choose_tokens_kernel<<<dim3(args.kv_heads, args.count), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace kvtwin
