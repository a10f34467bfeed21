// RowAttention runs a step's lists over a pool of bf16 pages: rows of q, k, v are rotated and written, then
// every row reads what its list says. It knows lists, blocks and kernels; which requests they are of it does
// not know, so every KvCache whose KV entries are bf16 can use it.
//
// Three kinds of rows: `decodes` are attention_decode's, `chunks` attention_prefill's, `others`
// attention_rows' (any shape, slowly). Who writes the lists asks decode_takes() and chunk_takes().

#ifndef KVTWIN_ENGINE_CUDA_ROW_ATTENTION_H_
#define KVTWIN_ENGINE_CUDA_ROW_ATTENTION_H_

#include <cstdint>

#include "engine/cuda/decode_partition.h"
#include "engine/cuda/device/buffer.h"
#include "engine/cuda/device/device_weights.h"
#include "engine/cuda/device/operation_timer.h"
#include "engine/cuda/device/step_rows.h"

namespace kvtwin::cuda {

// Of the workspace of attention_decode and its packed forms: how many parts have arrived, by sequence and
// query head. Zero before the first launch of a step: where they lie depends on how many sequences it has.
inline uint64_t decode_counter_bytes(uint64_t sequences) {
  return sequences * kDecodeGroupMax * sizeof(uint32_t);
}

// The kernels of attention that have rows.
inline AttentionRows rows_present(const DeviceRows& rows) {
  return {rows.decodes_count > 0, rows.chunks_count > 0, rows.other_rows > 0};
}

// What the products of one layer gave, and where attention's result goes: on the device.
struct LayerRows {
  const DeviceLayer* weights = nullptr;   // the norms of heads
  const __nv_bfloat16* hidden = nullptr;  // [padded rows][hidden], normed: what the products saw
  const __nv_bfloat16* qkv = nullptr;     // [rows][query_heads + 2 * kv_heads][head_dim], not rotated yet
  __nv_bfloat16* q = nullptr;             // [rows][query_heads][head_dim], for what is rotated
  __nv_bfloat16* out = nullptr;           // the same; of padding rows it may stay as it was
};

struct RowAttentionShape {
  uint32_t page_tokens = 16;
  uint32_t heads_per_page = 1;  // page p, column c is block p * heads_per_page + c of the pool
  uint32_t pages = 0;           // of the pool
  uint32_t rows = 0;            // of one step, at most
  bool by_head = false;  // heads hold different KV entries: lists name heads, slots are one per head, and
                         // tables of `others` name KV entries (attention_rows.h, listed)
  uint32_t layers = 1;   // that plan_layers() plans
};

class RowAttention {
 public:
  RowAttention() = default;
  // `llm` must outlive it. Wrong: no room for plans.
  static Result<RowAttention> make(const LlmSpec* llm, const RowAttentionShape& shape);

  // Whether attention_decode takes a row that is alone of its request, and attention_prefill a chunk; what
  // neither takes is attention_rows'.
  bool decode_takes() const;
  bool chunk_takes() const;
  // Rows [first, first + count) of one request read `context` KV entries of the pages at rows->pages[table],
  // and themselves, each the ones before it and itself: adds them to the list that takes them.
  void add(uint32_t first, uint32_t table, uint32_t context, uint32_t count, StepRows* rows) const;

  // Adds decodes without a request until there are `size` rows. REQUIRES: decode_takes(), not by_head.
  void fill_up(uint32_t size, StepRows* rows) const;

  // `size` rows on page 0 without a request: one decode and, where there is room for it, a chunk. (What the
  // others read does not matter.)
  void add_warm_up(uint32_t size, StepRows* rows) const;

  // The lists are on the device: cuts the work. One plan serves every layer. With `splits` they are what
  // decodes are cut into. REQUIRES: there is room for them.
  void plan(const DeviceRows& rows, const __nv_bfloat16* pool, cudaStream_t stream,
            const DecodePartition::Splits& splits = {});
  uint32_t decode_ctas() const { return decode_.ctas; }  // that run at once
  // Makes room for that many sequences and splits of a layer. REQUIRES: no step is in flight.
  void reserve_splits(uint32_t sequences, uint32_t splits);
  // Layers that read different KV entries: `rows` are the first one's, its decodes are followed by those of
  // the layers behind it, as many in each. REQUIRES: no chunks.
  void plan_layers(const DeviceRows& rows, const __nv_bfloat16* pool, cudaStream_t stream);
  // `keys` [rows][kv_heads][head_dim], rotated, next to the pages; null: not wanted. REQUIRES (wanted):
  // head_dim is 64, 128 or 256, pages are 1 or a multiple of 8 tokens.
  void append(const LayerRows& tensors, const DeviceRows& rows, __nv_bfloat16* pool, cudaStream_t stream,
              __nv_bfloat16* keys = nullptr);
  // Starts one of kAttentionKernels, or append() without `keys`. REQUIRES: a kernel has rows, and all KV of
  // the step is in `pool`, the layer's.
  void start(const ListedOperation& one, const LayerRows& tensors, const DeviceRows& rows,
             __nv_bfloat16* pool, cudaStream_t stream);

 private:
  void clear_counters(uint32_t sequences, cudaStream_t stream);
  DecodeArgs decode_args(const DeviceRows& rows, const __nv_bfloat16* pool) const;
  DecodeShape split_shape() const;
  PrefillArgs prefill_args(const DeviceRows& rows, const __nv_bfloat16* pool) const;

  const LlmSpec* llm_ = nullptr;
  RowAttentionShape shape_;
  float rope_scale_ = 1, attention_scale_ = 1;
  DecodeShape decode_;
  uint64_t plan_stride_ = 0;  // between the plans of layers
  bool by_layer_ = false;     // each has its own
  uint32_t splits_ = 0;       // given ones of the layer at hand; 0: equal ones
  PrefillShape prefill_;
  Buffer inv_freq_;
  Buffer plan_, workspace_;  // attention_decode's
  Buffer prefill_plan_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_ROW_ATTENTION_H_
