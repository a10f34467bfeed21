// Looking with so few query rows that bytes decide: keys are read once, logits are kept.
//
// Keys are the mma's 16 rows, (query head, query row) pairs its 8 columns. A product does not care in which
// order channels come, as long as both sides agree: so a lane loads sixteen adjacent bytes of its two keys
// and has two steps' operands, without shared memory. Floor: 2 * head_dim bytes and 16 bytes a column for
// each cell (a logit written and read, a sum written and read by who makes scores of it), at 4.69 TB/s.

#include "kernels/cell_heads.cuh"
#include "kernels/look_parts.cuh"

namespace kvtwin::device {
namespace {

constexpr uint32_t kWarps = 8, kThreads = kWarps * 32;
constexpr uint32_t kBlockKeys = 16;                           // of an mma
constexpr uint32_t kBlocks = kFewKeys / kWarps / kBlockKeys;  // of a warp
constexpr uint32_t kAtOnce = 2;                               // blocks on their way
static_assert(kBlocks % kAtOnce == 0);

// A lane's chunks of a key, or of a query: lane % 4 and every fourth one after it.
template <int kDim>
struct Chunks {
  static constexpr uint32_t kCount = kDim / 32;
  uint4 chunk[kCount];

  __device__ void load_key(const CellPool& cells, CellPlace place, uint32_t quarter) {
#pragma unroll
    for (uint32_t j = 0; j < kCount; ++j) chunk[j] = __ldcs(key_chunk<kDim>(cells, place, 4 * j + quarter));
  }
  __device__ void load_query(const __nv_bfloat16* q, uint32_t quarter) {
#pragma unroll
    for (uint32_t j = 0; j < kCount; ++j)
      chunk[j] = q == nullptr ? uint4{} : __ldg(reinterpret_cast<const uint4*>(q) + 4 * j + quarter);
  }
};
template <int kDim>
__device__ void multiply(float (&sum)[4], const Chunks<kDim>& above, const Chunks<kDim>& below,
                         const Chunks<kDim>& q) {
#pragma unroll
  for (uint32_t j = 0; j < Chunks<kDim>::kCount; ++j) {
    const uint4 &a = above.chunk[j], &b = below.chunk[j], &x = q.chunk[j];
    multiply_add(sum, {{a.x, b.x, a.y, b.y}}, x.x, x.y);
    multiply_add(sum, {{a.z, b.z, a.w, b.w}}, x.z, x.w);
  }
}

// Logits in powers of two, and a CTA's part of each column's softmax. A lane has keys lane / 4 and that + 8
// of each block, and columns 2 (lane % 4) and the next.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 2) logits_kernel(const __grid_constant__ LookArgs args) {
  __shared__ float2 parts[kWarps][kFewColumns];
  const LookHead head = args.heads[blockIdx.y];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, quarter = lane % 4;
  const uint32_t tile = blockIdx.x * kFewKeys;
  if (tile >= head.cells.rows || head.queries == 0) return;
  const uint32_t first = tile + warp * kBlocks * kBlockKeys + lane / 4;
  const FewWorkspace workspace(args);

  Chunks<kDim> q;
  const uint32_t own_g = lane / 4 / args.queries_max, own_i = lane / 4 % args.queries_max;
  const bool real = own_g < args.group && own_i < head.queries;
  q.load_query(!real
                   ? nullptr
                   : args.q + size_t{head.q_row + own_i} * args.q_stride + size_t{head.q_head + own_g} * kDim,
               quarter);
  uint32_t sees[2];  // how many keys the columns see; 0: no such column
  float2 part[2];
  float* logits[2];
#pragma unroll
  for (uint32_t c = 0; c < 2; ++c) {
    const uint32_t column = 2 * quarter + c, i = column % args.queries_max;
    const bool column_real = column < workspace.columns && i < head.queries;
    sees[c] = column_real ? __ldg(args.visible + head.visible + i) : 0;
    part[c] = {-INFINITY, 0};
    logits[c] = column_real ? workspace.logits_of(args, blockIdx.y, column) : nullptr;
  }
  // Keys beyond the last are seen by nobody, but must be numbers.
  const uint32_t last = head.cells.rows - 1;
  const float scale = args.scale * kLog2e;
#pragma unroll
  for (uint32_t base = 0; base < kBlocks; base += kAtOnce) {
    Chunks<kDim> keys[kAtOnce][2];
#pragma unroll
    for (uint32_t b = 0; b < kAtOnce; ++b) {
#pragma unroll
      for (uint32_t half = 0; half < 2; ++half) {
        const uint32_t row = min(first + (base + b) * kBlockKeys + half * 8, last);
        keys[b][half].load_key(args.cells, place_of(args.cells, head.cells, row), quarter);
      }
    }
#pragma unroll
    for (uint32_t b = 0; b < kAtOnce; ++b) {
      float s[4] = {};
      multiply<kDim>(s, keys[b][0], keys[b][1], q);
#pragma unroll
      for (uint32_t c = 0; c < 2; ++c) {
        const uint32_t row = first + (base + b) * kBlockKeys;
        const float x = row < sees[c] ? s[c] * scale : -INFINITY;
        const float y = row + 8 < sees[c] ? s[2 + c] * scale : -INFINITY;
        const float most = fmaxf(part[c].x, fmaxf(x, y)), from = most == -INFINITY ? 0 : most;
        part[c] = {most, part[c].y * exp2f(part[c].x - from) + exp2f(x - from) + exp2f(y - from)};
        if (logits[c] == nullptr) continue;
        if (row <= last) logits[c][row] = x;
        if (row + 8 <= last) logits[c][row + 8] = y;
      }
    }
  }
#pragma unroll
  for (uint32_t c = 0; c < 2; ++c) {
#pragma unroll
    for (uint32_t by = 4; by < 32; by *= 2) {
      const float2 other = {__shfl_xor_sync(kAllLanes, part[c].x, by),
                            __shfl_xor_sync(kAllLanes, part[c].y, by)};
      // The lower lane's first, so that both have the same bits.
      part[c] = (lane & by) == 0 ? joined(part[c], other) : joined(other, part[c]);
    }
    if (lane < 4) parts[warp][2 * lane + c] = part[c];
  }
  __syncthreads();
  if (threadIdx.x >= kFewColumns) return;
  float2 all = parts[0][threadIdx.x];
  for (uint32_t w = 1; w < kWarps; ++w) all = joined(all, parts[w][threadIdx.x]);
  workspace.parts_of(args, blockIdx.y)[blockIdx.x * kFewColumns + threadIdx.x] = all;
}

// Columns of a head as sums need them: a weight, and the logarithm of the sum, in powers of two.
struct Column {
  float weight, total;
};

// A warp a column. What nobody sees: infinity, so that its probabilities are 0.
__device__ Column column_of(const LookArgs& args, const LookHead& head, const FewWorkspace& workspace,
                            uint32_t column) {
  const uint32_t lane = threadIdx.x % 32, i = column % args.queries_max;
  if (column >= workspace.columns || i >= head.queries) return {0, INFINITY};
  const float2* const parts = workspace.parts_of(args, blockIdx.y) + column;
  const uint32_t tiles = tiles_of(head.cells.rows, kFewKeys);
  float2 all = {-INFINITY, 0};
  for (uint32_t t = lane; t < tiles; t += 32) all = joined(all, parts[t * kFewColumns]);
#pragma unroll
  for (uint32_t by = 1; by < 32; by *= 2) {
    const float2 other = {__shfl_xor_sync(kAllLanes, all.x, by), __shfl_xor_sync(kAllLanes, all.y, by)};
    all = (lane & by) == 0 ? joined(all, other) : joined(other, all);
  }
  const float weight = args.weigh_visible ? static_cast<float>(__ldg(args.visible + head.visible + i)) : 1.0f;
  return {weight, all.y > 0 ? all.x + log2f(all.y) : INFINITY};
}

// Four rows a thread: of each lane the sum (or the largest) of its columns' probabilities.
__global__ void __launch_bounds__(kThreads) few_sums_kernel(const __grid_constant__ LookArgs args) {
  __shared__ Column columns[kFewColumns];
  const LookHead head = args.heads[blockIdx.y];
  const uint32_t row = (blockIdx.x * kThreads + threadIdx.x) * 4, rows = head.cells.rows;
  if (blockIdx.x * kThreads * 4 >= rows) return;
  const FewWorkspace workspace(args);
  const Column mine = column_of(args, head, workspace, threadIdx.x / 32);
  if (threadIdx.x % 32 == 0) columns[threadIdx.x / 32] = mine;
  __syncthreads();
  if (row >= rows) return;
  const bool whole =
      args.stride % 4 == 0 && reinterpret_cast<uint64_t>(args.sums) % 16 == 0 && row + 4 <= rows;
#pragma unroll 4
  for (uint32_t g = 0; g < args.group; ++g) {
    float sum[4] = {};
    for (uint32_t i = 0; i < head.queries; ++i) {
      const uint32_t column = g * args.queries_max + i;
      const Column of = columns[column];
      const float4 x =
          __ldcs(reinterpret_cast<const float4*>(workspace.logits_of(args, blockIdx.y, column) + row));
      const float logits[4] = {x.x, x.y, x.z, x.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        const float p = of.weight * exp2f(logits[k] - of.total);
        sum[k] = args.largest ? fmaxf(sum[k], p) : sum[k] + p;
      }
    }
    float* const out = args.sums + (size_t{blockIdx.y} * args.group + g) * args.stride + row;
    if (whole) {
      *reinterpret_cast<float4*>(out) = {sum[0], sum[1], sum[2], sum[3]};
    } else {
      for (uint32_t k = 0; k < 4 && row + k < rows; ++k) out[k] = sum[k];
    }
  }
}

}  // namespace

cudaError_t look_with_few(const LookArgs& args, cudaStream_t stream) {
  const dim3 grid(tiles_of(args.rows_max, kFewKeys), args.count);
  if (args.cells.head_dim == 64) {
    logits_kernel<64><<<grid, kThreads, 0, stream>>>(args);
  } else {
    logits_kernel<128><<<grid, kThreads, 0, stream>>>(args);
  }
  few_sums_kernel<<<dim3(tiles_of(args.rows_max, kThreads * 4), args.count), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace kvtwin::device
