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

constexpr uint32_t kWarps = 4, kThreads = kWarps * 32;
constexpr uint32_t kBlockKeys = 16;                           // of an mma
constexpr uint32_t kBlocks = kFewKeys / kWarps / kBlockKeys;  // of a warp

// A lane's chunks of a key, or of a query: lane % 4 and every fourth one after it.
template <int kDim>
struct Chunks {
  static constexpr uint32_t kCount = kDim / 32;
  uint4 chunk[kCount];

  // `row`: of the pool, counted in rows of keys and values. Its chunks are swizzled (kv_block.cuh).
  __device__ void load_key(const CellPool& cells, uint32_t row, uint32_t quarter) {
    const auto* const key = reinterpret_cast<const uint4*>(cells.pool) + size_t{row} * (kDim / 8);
    const uint32_t swizzle = KvBlockShape{cells.page_tokens, kDim}.swizzle(row);
#pragma unroll
    for (uint32_t j = 0; j < kCount; ++j) chunk[j] = __ldcs(key + ((4 * j + quarter) ^ swizzle));
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

// Parts of the lanes that have the same columns, then those of the warps, become the CTA's.
__device__ void join_parts(float2 (&part)[2], float2 (&parts)[kWarps][kFewColumns], float2* out) {
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
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
  out[threadIdx.x] = all;
}

// Logits in powers of two, and a CTA's part of each column's softmax. A lane has keys lane / 4 and that + 8
// of each block, and columns 2 (lane % 4) and the next.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 3) logits_kernel(const __grid_constant__ LookArgs args) {
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
  // Where all keys lie, then a block's on their way while the one before is multiplied. Keys beyond the last
  // are seen by nobody, but must be numbers.
  const uint32_t last = head.cells.rows - 1;
  uint32_t places[kBlocks][2];
#pragma unroll
  for (uint32_t b = 0; b < 2 * kBlocks; ++b) {
    const CellPlace place = place_of(args.cells, head.cells, min(first + b * 8, last));
    places[b / 2][b % 2] = place.block * 2 * args.cells.page_tokens + place.slot;
  }
  Chunks<kDim> keys[2][2];
  const auto load = [&](uint32_t b) {
    keys[b % 2][0].load_key(args.cells, places[b][0], quarter);
    keys[b % 2][1].load_key(args.cells, places[b][1], quarter);
  };
  const float scale = args.scale * kLog2e;
  load(0);
#pragma unroll
  for (uint32_t b = 0; b < kBlocks; ++b) {
    if (b + 1 < kBlocks) load(b + 1);
    float s[4] = {};
    multiply<kDim>(s, keys[b % 2][0], keys[b % 2][1], q);
#pragma unroll
    for (uint32_t c = 0; c < 2; ++c) {
      const uint32_t row = first + b * kBlockKeys;
      const float x = row < sees[c] ? s[c] * scale : -INFINITY;
      const float y = row + 8 < sees[c] ? s[2 + c] * scale : -INFINITY;
      const float most = fmaxf(part[c].x, fmaxf(x, y)), from = most == -INFINITY ? 0 : most;
      part[c] = {most, part[c].y * exp2f(part[c].x - from) + exp2f(x - from) + exp2f(y - from)};
      if (logits[c] == nullptr) continue;
      if (row <= last) logits[c][row] = x;
      if (row + 8 <= last) logits[c][row + 8] = y;
    }
  }
  join_parts(part, parts, workspace.parts_of(args, blockIdx.y) + blockIdx.x * kFewColumns);
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

// Four rows a thread: of each lane the sum (or the largest) of its columns' probabilities. Logits are on
// their way while the columns' sums are found.
constexpr uint32_t kSumThreads = kFewColumns * 32;
template <uint32_t kColumns>
__global__ void __launch_bounds__(kSumThreads) few_sums_kernel(const __grid_constant__ LookArgs args) {
  __shared__ Column columns[kFewColumns];
  const LookHead head = args.heads[blockIdx.y];
  const uint32_t row = (blockIdx.x * kSumThreads + threadIdx.x) * 4, rows = head.cells.rows;
  if (blockIdx.x * kSumThreads * 4 >= rows) return;
  const FewWorkspace workspace(args);
  float4 logits[kColumns];
#pragma unroll
  for (uint32_t c = 0; c < kColumns; ++c) {
    if (c < workspace.columns && row < rows)
      logits[c] = __ldcs(reinterpret_cast<const float4*>(workspace.logits_of(args, blockIdx.y, c) + row));
  }
  const Column mine = column_of(args, head, workspace, threadIdx.x / 32);
  if (threadIdx.x % 32 == 0) columns[threadIdx.x / 32] = mine;
  __syncthreads();
  if (row >= rows) return;
  const bool whole =
      args.stride % 4 == 0 && reinterpret_cast<uint64_t>(args.sums) % 16 == 0 && row + 4 <= rows;
  float* out = args.sums + size_t{blockIdx.y} * args.group * args.stride + row;
  float sum[4] = {};
  uint32_t left = args.queries_max;  // columns of this lane
#pragma unroll
  for (uint32_t c = 0; c < kColumns; ++c) {
    if (c >= workspace.columns) break;
    const Column of = columns[c];
    const float x[4] = {logits[c].x, logits[c].y, logits[c].z, logits[c].w};
    // A head may have fewer query rows: nobody wrote the logits of those columns.
    const bool real = args.queries_max - left < head.queries;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const float p = real ? of.weight * exp2f(x[k] - of.total) : 0;
      sum[k] = args.largest ? fmaxf(sum[k], p) : sum[k] + p;
    }
    if (--left > 0) continue;
    left = args.queries_max;
    if (whole) {
      *reinterpret_cast<float4*>(out) = {sum[0], sum[1], sum[2], sum[3]};
    } else {
#pragma unroll
      for (uint32_t k = 0; k < 4; ++k) {
        if (row + k < rows) out[k] = sum[k];
      }
    }
    out += args.stride;
#pragma unroll
    for (int k = 0; k < 4; ++k) sum[k] = 0;
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
  const dim3 rows(tiles_of(args.rows_max, kSumThreads * 4), args.count);
  if (args.group * args.queries_max <= 4) {
    few_sums_kernel<4><<<rows, kSumThreads, 0, stream>>>(args);
  } else {
    few_sums_kernel<8><<<rows, kSumThreads, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

}  // namespace kvtwin::device
