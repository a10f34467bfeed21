#include "kernels/common/kv_entry_heads.cuh"
#include "kernels/scoring/cuda/score_keys_cuda.h"

namespace kvtwin {
namespace {

using namespace device;

constexpr uint32_t kThreads = 256, kWarps = kThreads / 32;
constexpr uint32_t kRowsOfCta = 512;
constexpr int kAtOnce = 4;  // rows that a lane loads at once

// A CTA has kRowsOfCta rows of one head; kDim / 8 lanes share a row.
template <int kDim>
struct Rows {
  static constexpr uint32_t kLanes = kDim / 8,
                            kSide = 32 / kLanes;  // kSide: rows that a warp processes at a time
  const KvEntryPool& kv_entries;
  const KvEntryHead head;
  const uint32_t begin, end, chunk, which;

  __device__ Rows(const KvEntryPool& pool, const KvEntryHead& of)
      : kv_entries(pool),
        head(of),
        begin(min(blockIdx.x * kRowsOfCta, of.rows)),
        end(min(begin + kRowsOfCta, of.rows)),
        chunk(threadIdx.x % kLanes),
        which(threadIdx.x / kLanes) {}

  // visit(row, x): x is the lane's eight numbers of the row's key; with row >= end, those of the last row.
  template <typename Visit>
  __device__ void for_keys(Visit visit) const {
    constexpr uint32_t kStep = kWarps * kSide;
    for (uint32_t first = begin; first < end; first += kStep * kAtOnce) {
      uint4 held[kAtOnce];
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        const uint32_t row = min(first + k * kStep + which, end - 1);
        held[k] = *key_chunk<kDim>(kv_entries, place_of(kv_entries, head, row), chunk);
      }
#pragma unroll
      for (int k = 0; k < kAtOnce; ++k) {
        float x[8];
        widen(held[k], x);
        visit(first + k * kStep + which, x);
      }
    }
  }
  // Sum over the lanes of a row.
  static __device__ float sum_of_row(float x) {
#pragma unroll
    for (uint32_t by = kLanes / 2; by > 0; by /= 2) x += __shfl_xor_sync(kAllLanes, x, by);
    return x;
  }
};

__device__ float squares(const float (&x)[8]) {
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i) sum += x[i] * x[i];
  return sum;
}

template <int kDim>
__global__ void __launch_bounds__(kThreads) knorm_kernel(const __grid_constant__ KeyScoreArgs args) {
  const Rows<kDim> rows(args.kv_entries, args.heads[blockIdx.y]);
  float* const out = args.scores + blockIdx.y * args.stride;
  rows.for_keys([&](uint32_t row, const float(&x)[8]) {
    const float length = sqrtf(Rows<kDim>::sum_of_row(squares(x)));
    if (rows.chunk == 0 && row < rows.end) out[row] = -length;
  });
}

// Sums of unit keys, by CTA: [heads][gridDim.x][kDim].
template <int kDim>
__global__ void __launch_bounds__(kThreads) unit_sums_kernel(const __grid_constant__ KeyScoreArgs args) {
  constexpr uint32_t kGroups = kThreads / Rows<kDim>::kLanes;
  __shared__ float sums[kGroups][kDim];
  const Rows<kDim> rows(args.kv_entries, args.heads[blockIdx.y]);
  float mine[8] = {};
  rows.for_keys([&](uint32_t row, const float(&x)[8]) {
    const float length = sqrtf(Rows<kDim>::sum_of_row(squares(x)));
    const float scale = row < rows.end ? 1 / fmaxf(length, 1e-12f) : 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) mine[i] += x[i] * scale;
  });
#pragma unroll
  for (int i = 0; i < 8; ++i) sums[rows.which][8 * rows.chunk + i] = mine[i];
  __syncthreads();
  float* const out = args.workspace + (size_t{blockIdx.y} * gridDim.x + blockIdx.x) * kDim;
  for (uint32_t c = threadIdx.x; c < kDim; c += kThreads) {
    float sum = 0;
    for (uint32_t g = 0; g < kGroups; ++g) sum += sums[g][c];
    out[c] = sum;
  }
}

// A head's mean of unit keys, written over the sums of its first CTA. One thread per channel; CTAs in order.
__global__ void anchor_kernel(const __grid_constant__ KeyScoreArgs args, uint32_t ctas) {
  const uint32_t rows = args.heads[blockIdx.x].rows, parts = (rows + kRowsOfCta - 1) / kRowsOfCta;
  float* const sums = args.workspace + size_t{blockIdx.x} * ctas * blockDim.x + threadIdx.x;
  float sum = 0;
#pragma unroll 8
  for (uint32_t part = 0; part < parts; ++part) sum += sums[part * blockDim.x];
  if (rows > 0) sums[0] = sum / static_cast<float>(rows);
}

template <int kDim>
__global__ void __launch_bounds__(kThreads) keydiff_kernel(const __grid_constant__ KeyScoreArgs args) {
  const Rows<kDim> rows(args.kv_entries, args.heads[blockIdx.y]);
  if (rows.begin == rows.end) return;
  const float* const anchor = args.workspace + size_t{blockIdx.y} * gridDim.x * kDim + 8 * rows.chunk;
  float mine[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) mine[i] = __ldg(anchor + i);
  const float length = fmaxf(sqrtf(Rows<kDim>::sum_of_row(squares(mine))), 1e-8f);
  float* const out = args.scores + blockIdx.y * args.stride;
  rows.for_keys([&](uint32_t row, const float(&x)[8]) {
    float product = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) product += x[i] * mine[i];
    product = Rows<kDim>::sum_of_row(product);
    const float own = fmaxf(sqrtf(Rows<kDim>::sum_of_row(squares(x))), 1e-8f);
    if (rows.chunk == 0 && row < rows.end) out[row] = -product / (own * length);
  });
}

template <int kDim>
cudaError_t keydiff(const KeyScoreArgs& args, dim3 grid, cudaStream_t stream) {
  unit_sums_kernel<kDim><<<grid, kThreads, 0, stream>>>(args);
  anchor_kernel<<<grid.y, kDim, 0, stream>>>(args, grid.x);
  keydiff_kernel<kDim><<<grid, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

uint32_t ctas_of(uint32_t rows_max) { return (rows_max + kRowsOfCta - 1) / kRowsOfCta; }
bool right(const KvEntryPool& kv_entries) {
  return kv_entries.page_tokens > 0 &&
         (kv_entries.head_dim == 64 || kv_entries.head_dim == 128 || kv_entries.head_dim == 256);
}

}  // namespace

cudaError_t score_knorm_entries(const KeyScoreArgs& args, cudaStream_t stream) {
  if (!right(args.kv_entries)) return cudaErrorInvalidValue;
  const dim3 grid(ctas_of(args.rows_max), args.count);
  if (grid.x == 0 || grid.y == 0) return cudaSuccess;
  const auto kernel = args.kv_entries.head_dim == 64    ? knorm_kernel<64>
                      : args.kv_entries.head_dim == 128 ? knorm_kernel<128>
                                                        : knorm_kernel<256>;
  kernel<<<grid, kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

size_t keydiff_floats(uint32_t heads, uint32_t rows_max, uint32_t head_dim) {
  return size_t{heads} * ctas_of(rows_max) * head_dim;
}

cudaError_t score_keydiff_entries(const KeyScoreArgs& args, cudaStream_t stream) {
  if (!right(args.kv_entries)) return cudaErrorInvalidValue;
  const dim3 grid(ctas_of(args.rows_max), args.count);
  if (grid.x == 0 || grid.y == 0) return cudaSuccess;
  return args.kv_entries.head_dim == 64    ? keydiff<64>(args, grid, stream)
         : args.kv_entries.head_dim == 128 ? keydiff<128>(args, grid, stream)
                                           : keydiff<256>(args, grid, stream);
}

}  // namespace kvtwin
