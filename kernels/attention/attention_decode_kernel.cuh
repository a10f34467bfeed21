// The persistent decode kernel (attention_decode.h); splits are those of decode_plan.cuh.
//
// Each warp processes its split alone, as producer and consumer of a ring of stages in shared memory that
// bulk copies fill, with its own accumulators: warps synchronise only once, at the end. Per block of 16
// tokens:
//   S[16 tokens x 8 heads] = K (A operand, 16 x 16 at a time) x Q (B operand, heads as columns)
//   P = exp2(S - max), converted from C to B layout by movmatrix
//   O[16 channels x 8 heads] += V^T (A operand, by a transposing load) x P
// Query heads are the short side (N = 8), so a group of 4 leaves half of N idle and none of M.
//
// Bound by memory: a block of 8 KB takes 405 cycles of an SM at 4.69 TB/s; its 16 mma take 24 and its 16
// ldmatrix
// 64. 8 warps x 3 stages x 8 KB in flight are three times what hides the latency.

#ifndef KVTWIN_KERNELS_ATTENTION_ATTENTION_DECODE_KERNEL_CUH_
#define KVTWIN_KERNELS_ATTENTION_ATTENTION_DECODE_KERNEL_CUH_

#include "kernels/attention/attention_decode.h"
#include "kernels/attention/attention_decode_merge.cuh"

namespace kvtwin::device {

// Position of a warp's producer or consumer side.
struct Cursor {
  uint32_t sequence = 0;
  uint32_t block = 0;   // index in the sequence
  uint32_t blocks = 0;  // blocks of the sequence
  DecodeSequence info;

  __device__ void open(uint32_t at, uint32_t first, const uint4& raw) {
    sequence = at;
    block = first;
    info = {raw.x, raw.y, raw.z, raw.w};
    blocks = blocks_of(info.tokens);
  }
  // REQUIRES: a later sequence has blocks.
  __device__ void open_next(const DecodeSequence* table) {
    do {
      open(sequence + 1, 0, __ldg(reinterpret_cast<const uint4*>(table + sequence + 1)));
    } while (blocks == 0);
  }
};

template <class DecodeGeometryOf>
struct Worker {
  using Geometry = DecodeGeometryOf;
  static constexpr int kDim = Geometry::kDim, kTiles = kDim / 16;
  static constexpr Tables kTables = Geometry::kTables;
  static constexpr uint32_t kSlotBits = 4;  // bits per stage in `slots`
  static_assert(kSlotBits * Geometry::kStages <= 32);

  const DecodeShape& shape;
  const DecodeArgs& args;
  const uint32_t lane, ring, barriers;  // shared addresses of this warp's stages and barriers
  Cursor reading;
  uint32_t reading_left = 0;  // blocks of the split not read yet
  // Table entries [page_base, page_base + 32) of the producer's sequence, one per lane. Listed tables also
  // hold the next 32, because two blocks use up 32 entries.
  uint32_t page_base = 0, page = 0, page_ahead = 0;
  uint32_t slots = 0;  // listed tables: slot % 8 of row lane % 16 of each stage

  __device__ Worker(const DecodeShape& s, const DecodeArgs& a, uint32_t ring_at, uint32_t barriers_at)
      : shape(s), args(a), lane(threadIdx.x % 32), ring(ring_at), barriers(barriers_at) {}

  __device__ uint32_t entry_tokens() const { return kTables == Tables::kListed ? 1 : shape.page_tokens; }
  __device__ uint32_t entry(uint32_t at) const {
    const uint32_t entries = (reading.info.tokens + entry_tokens() - 1) / entry_tokens();
    return at < entries ? __ldg(args.pages + reading.info.table + at) : 0;
  }
  __device__ void load_pages(uint32_t first) {
    page_base = first;
    page = entry(first + lane);
    if constexpr (kTables == Tables::kListed) page_ahead = entry(first + 32 + lane);
  }
  __device__ void load_next_pages(uint32_t first) {
    if constexpr (kTables != Tables::kListed) return load_pages(first);
    page_base = first;
    page = page_ahead;
    page_ahead = entry(first + 32 + lane);
  }
  __device__ void start(const WarpSplit& split) {
    reading.open(split.sequence, split.block,
                 {split.info.q_row, split.info.table, split.info.tokens, split.info.column});
    reading_left = split.blocks;
    load_pages(split.block * kDecodeBlockTokens / entry_tokens());
  }
  __device__ const char* block_of(uint32_t page_number) const {
    const size_t at = size_t{page_number} * shape.heads_per_page + reading.info.column;
    return reinterpret_cast<const char*>(args.pool) + at * (size_t{4} * kDim * shape.page_tokens);
  }

  // Starts the copy of the producer's next block to `stage`.
  __device__ void fill(uint32_t stage) {
    const uint32_t bar = barriers + 8 * stage, target = ring + stage * Geometry::kStage;
    const uint32_t token = reading.block * kDecodeBlockTokens;
    if constexpr (kTables == Tables::kListed) {
      fill_listed(stage, token);
    } else if constexpr (kTables == Tables::kSingle) {
      const uint32_t valid = min(kDecodeBlockTokens, reading.info.tokens - token);
      if (token - page_base >= 32) load_next_pages(token);
      const uint32_t mine = __shfl_sync(kAllLanes, page, token - page_base + lane % 16);
      if (lane == 0) barrier_arrive_expecting(bar, valid * 4 * kDim);
      __syncwarp();
      const uint32_t row = lane % 16, values = lane / 16;
      if (row < valid) {
        copy_bulk_once(target + values * Geometry::kHalf + row * Geometry::kRow,
                       block_of(mine) + values * 2 * kDim, 2 * kDim, bar);
      }
    } else {
      const uint32_t index = token / shape.page_tokens;
      if (index - page_base >= 32) load_next_pages(index);
      const uint32_t mine = __shfl_sync(kAllLanes, page, index - page_base);
      if (lane == 0) {
        barrier_arrive_expecting(bar, Geometry::kStage);
        const char* from = block_of(mine) + (token % shape.page_tokens) * 2 * kDim;
        if (shape.page_tokens == kDecodeBlockTokens) {  // values directly follow the keys
          copy_bulk_once(target, from, Geometry::kStage, bar);
        } else {
          copy_bulk_once(target, from, Geometry::kHalf, bar);
          copy_bulk_once(target + Geometry::kHalf, from + size_t{2} * kDim * shape.page_tokens,
                         Geometry::kHalf, bar);
        }
      }
    }
  }
  // One copy per run of consecutive KV entries of a page: lane i copies the run that starts at row i % 16, if
  // one does; lanes below 16 copy keys, the others values.
  __device__ void fill_listed(uint32_t stage, uint32_t token) {
    const uint32_t bar = barriers + 8 * stage, target = ring + stage * Geometry::kStage;
    const uint32_t valid = min(kDecodeBlockTokens, reading.info.tokens - token);
    if (token - page_base >= 32) load_next_pages(token);
    const uint32_t row = lane % 16, values = lane / 16;
    const uint32_t kv_entry = __shfl_sync(kAllLanes, page, token - page_base + row);
    const uint32_t before = __shfl_up_sync(kAllLanes, kv_entry, 1), at = kv_entry % shape.page_tokens;
    const bool first = row < valid && (row == 0 || at == 0 || kv_entry != before + 1);
    const uint32_t later = (__ballot_sync(kAllLanes, first) & 0xffff) >> row >> 1;
    slots = (slots & ~(7u << kSlotBits * stage)) | (kv_entry & 7) << kSlotBits * stage;
    if (lane == 0) barrier_arrive_expecting(bar, valid * 4 * kDim);
    __syncwarp();
    if (!first) return;
    const uint32_t rows = later != 0 ? __ffs(later) : valid - row;
    copy_bulk_once(target + values * Geometry::kHalf + row * Geometry::kRow,
                   block_of(kv_entry / shape.page_tokens) + (values * shape.page_tokens + at) * 2 * kDim,
                   rows * 2 * kDim, bar);
  }
  // The swizzle-relevant part of the slot whose entry is in row `row` of `stage`.
  __device__ uint32_t slot_of(uint32_t stage, uint32_t row) const {
    if constexpr (kTables != Tables::kListed) return row;
    return __shfl_sync(kAllLanes, slots, row) >> kSlotBits * stage;
  }
  __device__ void read_on() {
    if (--reading_left == 0 || ++reading.block < reading.blocks) return;
    reading.open_next(args.table);
    load_pages(0);
  }

  // Zeroes values beyond the sequence's end, which may be NaN or infinite: 0 * NaN is not 0.
  __device__ void clear_values_from(uint32_t stage, uint32_t valid) const {
    constexpr uint32_t kChunks = kDim / 8;
    for (uint32_t i = valid * kChunks + lane; i < 16 * kChunks; i += 32) {
      const uint32_t at =
          ring + stage * Geometry::kStage + Geometry::kHalf + i / kChunks * Geometry::kRow + i % kChunks * 16;
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(0) : "memory");
    }
    fence_before_bulk();
    __syncwarp();
  }

  __device__ void load_query(const DecodeSequence& info, uint32_t (&query)[2 * kTiles]) const {
    const uint32_t head = lane / 4;
    const auto* row = reinterpret_cast<const uint32_t*>(args.q + size_t{info.q_row + head} * kDim);
#pragma unroll
    for (int i = 0; i < 2 * kTiles; ++i) query[i] = head < shape.group ? __ldg(row + 4 * i + lane % 4) : 0;
  }

  // Adds the block in `stage` to `part`. `valid`: its tokens within the sequence.
  __device__ void attend(uint32_t stage, uint32_t valid, const uint32_t (&query)[2 * kTiles],
                         Partial<kDim>* part) const {
    const uint32_t keys = ring + stage * Geometry::kStage, row = lane % 16, slot = slot_of(stage, row);
    float s[4] = {};
#pragma unroll
    for (int kt = 0; kt < kTiles; ++kt) {
      const Fragment4 k = load_matrices(keys + Geometry::chunk(row, slot, 2 * kt + lane / 16));
      multiply_add(s, k, query[2 * kt], query[2 * kt + 1]);
    }
    const uint32_t token = lane / 4;
    const float scale = args.scale * 1.4426950408889634f;
#pragma unroll
    for (int i = 0; i < 4; ++i) s[i] = token + 8 * (i / 2) < valid ? s[i] * scale : -INFINITY;
    part->raise(fmaxf(s[0], s[2]), fmaxf(s[1], s[3]));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      s[i] = exp2_fast(s[i] - part->max[i % 2]);
      part->sum[i % 2] += s[i];
    }
    const uint32_t p0 = transpose(pack_bf16(s[0], s[1])), p1 = transpose(pack_bf16(s[2], s[3]));
    const uint32_t values = keys + Geometry::kHalf, value_row = lane % 8 + lane / 16 * 8;
    const uint32_t value_slot = slot_of(stage, value_row);
#pragma unroll
    for (int mt = 0; mt < kTiles; ++mt) {
      const Fragment4 v =
          load_matrices_transposed(values + Geometry::chunk(value_row, value_slot, 2 * mt + lane / 8 % 2));
      multiply_add(part->out[mt], v, p0, p1);
    }
  }
};

template <class Geometry>
__device__ void work(Worker<Geometry>& worker, const WarpSplit& split, Merger<Geometry>& merger) {
  constexpr int kDim = Geometry::kDim;
  worker.start(split);
  Cursor here = worker.reading;
  uint32_t query[kDim / 8];
  worker.load_query(here.info, query);
  for (uint32_t i = 0; i < Geometry::kStages && worker.reading_left > 0; ++i) {
    worker.fill(i);
    worker.read_on();
  }
  uint32_t stage = 0, parity = 0, first = here.block, begin = split.first - here.block;
  Partial<kDim> part;
  for (uint32_t left = split.blocks; left > 0;) {
    barrier_wait(worker.barriers + 8 * stage, parity);
    const uint32_t valid = here.info.tokens - here.block * kDecodeBlockTokens;
    if (valid < kDecodeBlockTokens) worker.clear_values_from(stage, valid);
    worker.attend(stage, valid, query, &part);
    __syncwarp();
    if (worker.reading_left > 0) {
      worker.fill(stage);
      worker.read_on();
    }
    if (++stage == Geometry::kStages) stage = 0, parity ^= 1;
    ++here.block, --left;
    if (here.block < here.blocks && left > 0) continue;
    merger.take({here.sequence, here.info.q_row, begin, begin + here.blocks}, first > 0,
                here.block == here.blocks, &part);
    if (left == 0) break;
    begin += here.blocks;
    here.open_next(worker.args.table);
    worker.load_query(here.info, query);
    first = 0;
    part = {};
  }
}

// Writes the zeros of sequences without tokens: a warp checks 32 sequences, and neighbouring warps are on
// different SMs.
template <int kDim>
class EmptySequences {
 public:
  // The first 32 are loaded before the warp's split and used behind it, so that no warp waits for them.
  __device__ explicit EmptySequences(const DecodeArgs& args, const DecodeShape& shape)
      : args_(args), shape_(shape), lane_(threadIdx.x % 32), at_(threadIdx.x / 32 * gridDim.x + blockIdx.x) {
    load();
  }

  __device__ void clear() {
    while (at_ * 32 < shape_.sequences) {
      for (uint32_t empty = __ballot_sync(kAllLanes, tokens_ == 0); empty != 0; empty &= empty - 1)
        clear_rows(__shfl_sync(kAllLanes, q_row_, __ffs(empty) - 1));
      at_ += gridDim.x * kDecodeWarps;
      load();
    }
  }

 private:
  __device__ void load() {
    const uint32_t i = at_ * 32 + lane_;
    tokens_ = 1;
    if (i >= shape_.sequences) return;
    uint32_t table, column;  // of the same 16 bytes
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(q_row_), "=r"(table), "=r"(tokens_), "=r"(column)
                 : "l"(args_.table + i));
  }
  __device__ void clear_rows(uint32_t q_row) const {
    auto* const out = reinterpret_cast<uint4*>(args_.out + size_t{q_row} * kDim);
    for (uint32_t i = lane_; i < shape_.group * kDim / 8; i += 32) out[i] = {};
  }

  const DecodeArgs& args_;
  const DecodeShape& shape_;
  const uint32_t lane_;
  uint32_t at_;  // which 32 sequences
  uint32_t q_row_ = 0, tokens_ = 1;
};

template <class Geometry>
__global__ void __launch_bounds__(kDecodeWarps * 32, 1)
    decode_kernel(const __grid_constant__ DecodeShape shape, const __grid_constant__ DecodeArgs args) {
  using Plan = typename Geometry::Plan;
  extern __shared__ __align__(128) char shared[];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  auto* const planned = static_cast<Plan*>(args.plan);
  const WarpSplit split = fractions_of(planned)[blockIdx.x * kDecodeWarps + warp];
  const Plan plan = *planned;
  const uint32_t barriers = shared_address(shared) + Geometry::kBarriers + warp * Geometry::kStages * 8;
  if (lane == 0) {
    for (int i = 0; i < Geometry::kStages; ++i) barrier_init(barriers + 8 * i, 1);
    barrier_init_done();
  }
  __syncwarp();
  Merger<Geometry> merger({args.out, args.workspace, shape.sequences, shape.group}, plan, shared);
  merger.forget();
  EmptySequences<Geometry::kDim> empty(args, shape);
  if (split.blocks > 0) {
    Worker<Geometry> worker(shape, args, shared_address(shared) + warp * Geometry::kRing, barriers);
    work(worker, split, merger);
  }
  empty.clear();
  __syncthreads();
  merger.merge();
}

template <class Geometry>
cudaError_t launch_decode(const DecodeShape& shape, const DecodeArgs& args, cudaStream_t stream) {
  const auto kernel = decode_kernel<Geometry>;
  constexpr int kShared = Geometry::kShared;
  static const cudaError_t allowed =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kShared);
  if (allowed != cudaSuccess) return allowed;
  kernel<<<shape.ctas, kDecodeWarps * 32, kShared, stream>>>(shape, args);
  return cudaGetLastError();
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_ATTENTION_ATTENTION_DECODE_KERNEL_CUH_
