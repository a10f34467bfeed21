// attention_rows (attention_rows.h) for adjacent rows with one table: sixteen rows at a time on tensor cores.
// A warp has 16 rows of one query head; the warps of a CTA share a tile of 64 KV entries, whose addresses are
// looked up one by one. Tiles without a KV entry that a row of the CTA sees are skipped.

#include "kernels/attention/attention_rows.h"
#include "kernels/common/kv_entry_heads.cuh"

namespace kvtwin {
namespace {

using namespace device;

constexpr uint32_t kTile = 64;      // KV entries
constexpr uint32_t kRows = 16;      // rows of a warp
constexpr uint32_t kWarpsMost = 8;  // most warps of a CTA; at least one per query head

__device__ void copy_async(uint32_t target, const void* source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(target), "l"(source) : "memory");
}
__device__ void wait_async_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Consecutive list entries that read the same KV entries of the same head, and the KV entries that any of
// them sees: [0, sinks) and [from, end).
struct Run {
  uint32_t first, end_row;  // indices in the list
  uint32_t sinks = 0, from = UINT32_MAX, end = 0;
};

__device__ Run next_run(const AttentionRowsArgs& args, uint32_t first, uint32_t last) {
  const QueryRow head = args.list[first];
  Run run{first, first};
  for (; run.end_row < last; ++run.end_row) {
    const QueryRow row = args.list[run.end_row];
    if (row.table != head.table || row.head != head.head || row.column != head.column) break;
    run.sinks = max(run.sinks, min(row.sinks, row.kv_entries));
    if (row.kv_entries <= row.sinks) continue;
    run.from = min(run.from, row.sinks + row.gap), run.end = max(run.end, row.gap + row.kv_entries);
  }
  run.end = max(run.end, run.sinks);
  return run;
}

__device__ bool sees(const QueryRow& row, uint32_t kv_entry) {
  if (kv_entry < row.sinks) return kv_entry < row.kv_entries;
  return kv_entry >= row.sinks + row.gap && kv_entry - row.gap < row.kv_entries;
}

template <int kDim>
struct Worker {
  static constexpr uint32_t kChunks = kDim / 8, kSteps = kDim / 16;
  struct Shared {
    uint4 keys[kTile * kChunks], values[kTile * kChunks];
  };

  const AttentionRowsArgs& args;
  Shared* const shared;
  const KvEntryPool kv_entries;
  const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const uint32_t group = args.query_heads / args.kv_heads;
  QueryRow rows[2];  // rows lane / 4 and lane / 4 + 8 of the warp; kv_entries is 0 outside the run
  float most[2], sum[2], out[kDim / 8][4];
  Fragment4 q[kSteps];

  __device__ Worker(const AttentionRowsArgs& a, Shared* s)
      : args(a), shared(s), kv_entries{a.pool,           a.pages,    a.page_tokens,
                                       a.heads_per_page, a.head_dim, a.listed} {}

  static __device__ uint32_t at(uint32_t row, uint32_t chunk) { return row * kChunks + (chunk ^ (row & 7)); }
  __device__ size_t query_at(const QueryRow& row) const {
    return (size_t{row.row} * args.query_heads + size_t{row.head} * group + warp % group) * kDim;
  }

  // Loads the warp's rows of the CTA's window that belong to the run. Returns whether there are any.
  __device__ bool take(const Run& run, uint32_t window) {
    const uint32_t base = window + warp / group * kRows;
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      const uint32_t entry = base + lane / 4 + 8 * r;
      const bool mine = entry >= run.first && entry < run.end_row;
      rows[r] = args.list[mine ? entry : run.first];
      if (!mine) rows[r].kv_entries = 0;
      most[r] = -INFINITY, sum[r] = 0;
    }
#pragma unroll
    for (uint32_t step = 0; step < kSteps; ++step) {
#pragma unroll
      for (uint32_t i = 0; i < 4; ++i)
        q[step].r[i] = *reinterpret_cast<const uint32_t*>(args.q + query_at(rows[i % 2]) + step * 16 +
                                                          i / 2 * 8 + lane % 4 * 2);
    }
#pragma unroll
    for (uint32_t b = 0; b < kDim / 8; ++b) out[b][0] = out[b][1] = out[b][2] = out[b][3] = 0;
    return base < run.end_row && base + kRows > run.first;
  }

  __device__ void load(const Run& run, uint32_t first) {
    const KvEntryHead head{rows[0].table, rows[0].column, 0, run.end};
    for (uint32_t i = threadIdx.x; i < kTile * kChunks; i += blockDim.x) {
      const uint32_t kv_entry = i / kChunks, chunk = i % kChunks;
      const uint4* const key =
          key_chunk<kDim>(kv_entries, place_of(kv_entries, head, min(first + kv_entry, run.end - 1)), chunk);
      copy_async(shared_address(&shared->keys[at(kv_entry, chunk)]), key);
      copy_async(shared_address(&shared->values[at(kv_entry, chunk)]),
                 key + size_t{kv_entries.page_tokens} * kChunks);
    }
    wait_async_copies();
    __syncthreads();
  }

  __device__ void attend(uint32_t first) {
    constexpr uint32_t kBlocks = kTile / 8;
    float s[kBlocks][4];
#pragma unroll
    for (uint32_t b = 0; b < kBlocks; ++b) s[b][0] = s[b][1] = s[b][2] = s[b][3] = 0;
#pragma unroll
    for (uint32_t step = 0; step < kSteps; ++step) {
#pragma unroll
      for (uint32_t b = 0; b < kBlocks; b += 2) {
        const Fragment4 k = load_matrices(
            shared_address(&shared->keys[at(b * 8 + lane / 16 * 8 + lane % 8, 2 * step + lane / 8 % 2)]));
        multiply_add(s[b], q[step], k.r[0], k.r[1]);
        multiply_add(s[b + 1], q[step], k.r[2], k.r[3]);
      }
    }
    const float scale = args.scale * 1.4426950408889634f;
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      float top = most[r];
#pragma unroll
      for (uint32_t b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          float& x = s[b][2 * r + i];
          x = sees(rows[r], first + b * 8 + lane % 4 * 2 + i) ? x * scale : -INFINITY;
          top = fmaxf(top, x);
        }
      }
      for (uint32_t by = 1; by <= 2; by *= 2) top = fmaxf(top, __shfl_xor_sync(kAllLanes, top, by));
      const float from = top == -INFINITY ? 0 : top, retained = exp2_fast(most[r] - from);
      most[r] = top, sum[r] *= retained;
#pragma unroll
      for (uint32_t b = 0; b < kBlocks; ++b) {
#pragma unroll
        for (uint32_t i = 0; i < 2; ++i) {
          float& x = s[b][2 * r + i];
          x = exp2_fast(x - from), sum[r] += x;
        }
      }
#pragma unroll
      for (uint32_t b = 0; b < kDim / 8; ++b) out[b][2 * r] *= retained, out[b][2 * r + 1] *= retained;
    }
#pragma unroll
    for (uint32_t j = 0; j < kTile / 16; ++j) {
      const float(&low)[4] = s[2 * j];
      const float(&high)[4] = s[2 * j + 1];
      const Fragment4 p{{pack_bf16(low[0], low[1]), pack_bf16(low[2], low[3]), pack_bf16(high[0], high[1]),
                         pack_bf16(high[2], high[3])}};
#pragma unroll
      for (uint32_t b = 0; b < kDim / 8; b += 2) {
        const Fragment4 v = load_matrices_transposed(
            shared_address(&shared->values[at(16 * j + lane / 8 % 2 * 8 + lane % 8, b + lane / 16)]));
        multiply_add(out[b], p, v.r[0], v.r[1]);
        multiply_add(out[b + 1], p, v.r[2], v.r[3]);
      }
    }
  }

  __device__ void store(const Run& run, uint32_t window) {
    const uint32_t base = window + warp / group * kRows;
#pragma unroll
    for (uint32_t r = 0; r < 2; ++r) {
      for (uint32_t by = 1; by <= 2; by *= 2) sum[r] += __shfl_xor_sync(kAllLanes, sum[r], by);
      const uint32_t entry = base + lane / 4 + 8 * r;
      if (entry < run.first || entry >= run.end_row) continue;
      const float by = sum[r] > 0 ? 1 / sum[r] : 0;
      auto* const to = reinterpret_cast<uint32_t*>(args.out + query_at(rows[r]));
#pragma unroll
      for (uint32_t b = 0; b < kDim / 8; ++b)
        to[b * 4 + lane % 4] = pack_bf16(out[b][2 * r] * by, out[b][2 * r + 1] * by);
    }
  }

  __device__ void work(uint32_t window, uint32_t last) {
    for (uint32_t first = window; first < last;) {
      const Run run = next_run(args, first, last);
      const bool mine = take(run, window);
      for (uint32_t kv_entry = 0; kv_entry < run.end; kv_entry += kTile) {
        if (kv_entry >= run.sinks && kv_entry + kTile <= run.from) continue;
        load(run, kv_entry);
        if (mine) attend(kv_entry);
        __syncthreads();
      }
      if (mine) store(run, window);
      first = run.end_row;
    }
  }
};

template <int kDim>
__global__ void __launch_bounds__(kWarpsMost * 32)
    listed_kernel(const __grid_constant__ AttentionRowsArgs args) {
  __shared__ typename Worker<kDim>::Shared shared;
  const uint32_t group = args.query_heads / args.kv_heads, each = blockDim.x / 32 / group * kRows;
  const uint32_t window = blockIdx.x * each;
  Worker<kDim>(args, &shared).work(window, min(window + each, args.rows));
}

}  // namespace

// As attention_rows(), which has checked args.
cudaError_t attention_listed(const AttentionRowsArgs& args, cudaStream_t stream) {
  const uint32_t group = args.query_heads / args.kv_heads, tiles = group < 4 ? 4 / group : 1;
  const uint32_t each = tiles * kRows, ctas = (args.rows + each - 1) / each;
  if (args.head_dim == 64) {
    listed_kernel<64><<<ctas, tiles * group * 32, 0, stream>>>(args);
  } else {
    listed_kernel<128><<<ctas, tiles * group * 32, 0, stream>>>(args);
  }
  return cudaGetLastError();
}

}  // namespace kvtwin
