// Attention scores for few query rows (attention_scores_few.cu): the logits, and each CTA's partial softmax.
//
// Keys are the 16 rows of an mma, (query head, query row) pairs its 8 columns. The order of channels in a
// product is free as long as both operands use the same one: for scattered keys, a lane loads sixteen
// adjacent bytes of its two keys and has the operands of two steps, without shared memory.
//
// Bound: 2 * head_dim bytes and 16 bytes per column for each KV entry (a logit written and read, a sum
// written and read when it becomes a score), at 4.69 TB/s.

#include "kernels/common/kv_entry_heads.cuh"
#include "kernels/scoring/cuda/attention_scores_parts.cuh"

namespace kvtwin::device {
namespace {

constexpr uint32_t kWarps = 4, kThreads = kWarps * 32;
constexpr uint32_t kBlockKeys = 16;                           // keys of an mma
constexpr uint32_t kBlocks = kFewKeys / kWarps / kBlockKeys;  // blocks of a warp

// A lane's chunks of a key or of a query: chunk lane % 4 and every fourth one after it.
template <int kDim>
struct Chunks {
  static constexpr uint32_t kCount = kDim / 32;
  uint4 chunk[kCount];

  // `row`: row of the pool, which has page_tokens rows of keys, then of values, per block. Chunks are
  // swizzled (kv_block.cuh).
  __device__ void load_key(const KvEntryPool& kv_entries, uint32_t row, uint32_t quarter) {
    const auto* const key = reinterpret_cast<const uint4*>(kv_entries.pool) + size_t{row} * (kDim / 8);
    const uint32_t swizzle = KvBlockShape{kv_entries.page_tokens, kDim}.swizzle(row);
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

// The columns of one lane, 2 (lane % 4) and the next: how many keys they see, and their partial softmax.
class LaneColumns {
 public:
  __device__ LaneColumns(const AttentionScoreArgs& args, const AttentionScoreHead& head,
                         const FewWorkspace& workspace)
      : rows_(head.kv_entries.rows), scale_(args.scale * kLog2e) {
#pragma unroll
    for (uint32_t c = 0; c < 2; ++c) {
      const uint32_t column = threadIdx.x % 4 * 2 + c, i = column % args.queries_max;
      const bool real = column < workspace.columns && i < head.queries;
      sees_[c] = real ? __ldg(args.visible + head.visible + i) : 0;
      part_[c] = {-INFINITY, 0};
      logits_[c] = real ? workspace.logits_of(args, blockIdx.y, column) : nullptr;
    }
  }
  // Adds the products of keys `row` and `row` + 8 and stores them as base-2 logits. Invisible keys may hold
  // NaN.
  __device__ void take(uint32_t row, const float (&s)[4]) {
#pragma unroll
    for (uint32_t c = 0; c < 2; ++c) {
      const float x = row < sees_[c] ? s[c] * scale_ : -INFINITY;
      const float y = row + 8 < sees_[c] ? s[2 + c] * scale_ : -INFINITY;
      const float most = fmaxf(part_[c].x, fmaxf(x, y)), from = most == -INFINITY ? 0 : most;
      part_[c] = {most, part_[c].y * exp2f(part_[c].x - from) + exp2f(x - from) + exp2f(y - from)};
      if (logits_[c] == nullptr) continue;
      if (row < rows_) logits_[c][row] = x;
      if (row + 8 < rows_) logits_[c][row + 8] = y;
    }
  }
  // Merges the partials of lanes with equal columns, then those of the warps, to the CTA's.
  __device__ void join(float2 (&parts)[kWarps][kFewColumns], float2* out) {
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (uint32_t c = 0; c < 2; ++c) {
      float2 part = part_[c];
#pragma unroll
      for (uint32_t by = 4; by < 32; by *= 2) {
        const float2 other = {__shfl_xor_sync(kAllLanes, part.x, by), __shfl_xor_sync(kAllLanes, part.y, by)};
        // The lower lane's first, so that both lanes get the same bits.
        part = (lane & by) == 0 ? joined(part, other) : joined(other, part);
      }
      if (lane < 4) parts[warp][2 * lane + c] = part;
    }
    __syncthreads();
    if (threadIdx.x >= kFewColumns) return;
    float2 all = parts[0][threadIdx.x];
    for (uint32_t w = 1; w < kWarps; ++w) all = joined(all, parts[w][threadIdx.x]);
    out[threadIdx.x] = all;
  }

 private:
  uint32_t sees_[2];  // number of keys that each column sees; 0: no such column
  float2 part_[2];
  float* logits_[2];
  const uint32_t rows_;
  const float scale_;
};

// The query of this lane's column of an mma, lane / 4; null if there is none.
__device__ const __nv_bfloat16* query_of(const AttentionScoreArgs& args, const AttentionScoreHead& head) {
  const uint32_t column = threadIdx.x % 32 / 4, g = column / args.queries_max, i = column % args.queries_max;
  if (g >= args.group || i >= head.queries) return nullptr;
  return args.q + size_t{head.q_row + i} * args.q_stride + size_t{head.q_head + g} * args.kv_entries.head_dim;
}

// Base-2 logits, and a CTA's partial softmax of each column. For any table of KV entries, key by key.
template <int kDim>
__global__ void __launch_bounds__(kThreads, 3)
    logits_kernel(const __grid_constant__ AttentionScoreArgs args) {
  __shared__ float2 parts[kWarps][kFewColumns];
  const AttentionScoreHead head = args.heads[blockIdx.y];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, quarter = lane % 4;
  const uint32_t tile = blockIdx.x * kFewKeys;
  if (tile >= head.kv_entries.rows || head.queries == 0) return;
  const uint32_t first = tile + warp * kBlocks * kBlockKeys + lane / 4;
  const FewWorkspace workspace(args);
  Chunks<kDim> q;
  q.load_query(query_of(args, head), quarter);
  LaneColumns columns(args, head, workspace);
  // First the addresses of all keys; then each block is loaded while the previous one is multiplied. Keys
  // beyond the last repeat the last.
  const uint32_t last = head.kv_entries.rows - 1;
  uint32_t places[kBlocks][2];
#pragma unroll
  for (uint32_t b = 0; b < 2 * kBlocks; ++b) {
    const KvEntryPlace place = place_of(args.kv_entries, head.kv_entries, min(first + b * 8, last));
    places[b / 2][b % 2] = place.block * 2 * args.kv_entries.page_tokens + place.slot;
  }
  Chunks<kDim> keys[2][2];
  const auto load = [&](uint32_t b) {
    keys[b % 2][0].load_key(args.kv_entries, places[b][0], quarter);
    keys[b % 2][1].load_key(args.kv_entries, places[b][1], quarter);
  };
  load(0);
#pragma unroll
  for (uint32_t b = 0; b < kBlocks; ++b) {
    if (b + 1 < kBlocks) load(b + 1);
    float s[4] = {};
    multiply<kDim>(s, keys[b % 2][0], keys[b % 2][1], q);
    columns.take(first + b * kBlockKeys, s);
  }
  columns.join(parts, workspace.parts_of(args, blockIdx.y) + blockIdx.x * kFewColumns);
}

// The same for contiguous keys of a page (a multiple of 8 tokens, not listed): a CTA starts bulk copies of
// all its keys at once, one per run of keys within a page.
template <int kDim>
class KeyBlocks {
 public:
  static constexpr uint32_t kRow = kDim * 2, kBytes = kFewKeys * kRow;

  // Starts the copies of this warp's blocks; lane b those of block b.
  __device__ KeyBlocks(const AttentionScoreArgs& args, const KvEntryHead& head, char* shared,
                       uint64_t* arrived, uint32_t first)
      : turn_(head.first),
        at_(shared_address(shared) + threadIdx.x / 32 * kBlocks * kBlockKeys * kRow),
        arrived_(shared_address(arrived)) {
    const uint32_t b = threadIdx.x % 32, begin = first + b * kBlockKeys;
    if (b >= kBlocks || begin >= head.rows) return;
    barrier_init(arrived_ + 8 * b, 1);
    barrier_init_done();
    const uint32_t count = min(kBlockKeys, head.rows - begin), page = args.kv_entries.page_tokens;
    barrier_arrive_expecting(arrived_ + 8 * b, count * kRow);
    for (uint32_t done = 0; done < count;) {
      const KvEntryPlace place = place_of(args.kv_entries, head, begin + done);
      const uint32_t run = min(count - done, page - place.slot);
      const auto* const from = reinterpret_cast<const char*>(args.kv_entries.pool) +
                               (size_t{place.block} * 2 * page + place.slot) * kRow;
      copy_bulk_once(at_ + (b * kBlockKeys + done) * kRow, from, run * kRow, arrived_ + 8 * b);
      done += run;
    }
  }
  // Products of block b with the query, once its copy completes. Called by all lanes.
  __device__ void multiply(uint32_t b, const uint32_t (&q)[kDim / 8], float (&s)[4]) const {
    barrier_wait(arrived_ + 8 * b, 0);
    const uint32_t lane = threadIdx.x % 32, key = lane % 16, row = at_ + (b * kBlockKeys + key) * kRow;
    const uint32_t swizzle = (turn_ + key) & 7;  // of its slot: page_tokens is a multiple of eight
#pragma unroll
    for (uint32_t kt = 0; kt < kDim / 16; ++kt)
      multiply_add(s, load_matrices(row + ((2 * kt + lane / 16) ^ swizzle) * 16), q[2 * kt], q[2 * kt + 1]);
  }

 private:
  const uint32_t turn_, at_, arrived_;
};

template <int kDim>
__global__ void __launch_bounds__(kThreads)
    paged_logits_kernel(const __grid_constant__ AttentionScoreArgs args) {
  extern __shared__ __align__(128) char keys[];
  __shared__ __align__(8) uint64_t arrived[kWarps][kBlocks];
  __shared__ float2 parts[kWarps][kFewColumns];
  const AttentionScoreHead head = args.heads[blockIdx.y];
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, tile = blockIdx.x * kFewKeys;
  if (tile >= head.kv_entries.rows || head.queries == 0) return;
  const uint32_t first = tile + warp * kBlocks * kBlockKeys;
  const KeyBlocks<kDim> blocks(args, head.kv_entries, keys, arrived[warp], first);
  __syncwarp();
  const FewWorkspace workspace(args);
  const auto* const query = reinterpret_cast<const uint32_t*>(query_of(args, head));
  uint32_t q[kDim / 8];
#pragma unroll
  for (uint32_t i = 0; i < kDim / 8; ++i) q[i] = query == nullptr ? 0 : __ldg(query + 4 * i + lane % 4);
  LaneColumns columns(args, head, workspace);
#pragma unroll
  for (uint32_t b = 0; b < kBlocks; ++b) {
    if (first + b * kBlockKeys >= head.kv_entries.rows) break;
    float s[4] = {};
    blocks.multiply(b, q, s);
    columns.take(first + b * kBlockKeys + lane / 4, s);
  }
  columns.join(parts, workspace.parts_of(args, blockIdx.y) + blockIdx.x * kFewColumns);
}

template <int kDim>
cudaError_t launch_logits(const AttentionScoreArgs& args, cudaStream_t stream) {
  const dim3 grid(tiles_of(args.rows_max, kFewKeys), args.count);
  if (args.kv_entries.listed || args.kv_entries.page_tokens % 8 != 0) {
    logits_kernel<kDim><<<grid, kThreads, 0, stream>>>(args);
    return cudaGetLastError();
  }
  constexpr int kBytes = KeyBlocks<kDim>::kBytes;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(paged_logits_kernel<kDim>, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  if (allowed != cudaSuccess) return allowed;
  paged_logits_kernel<kDim><<<grid, kThreads, kBytes, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

cudaError_t few_logits(const AttentionScoreArgs& args, cudaStream_t stream) {
  return args.kv_entries.head_dim == 64 ? launch_logits<64>(args, stream) : launch_logits<128>(args, stream);
}

}  // namespace kvtwin::device
