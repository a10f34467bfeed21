#include "engine/cuda/row_attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/device/cuda_check.h"
#include "engine/cuda/device/device_lists.h"
#include "kernels/attention/attention_decode.h"
#include "kernels/attention/attention_prefill.h"
#include "kernels/attention/attention_rows.h"
#include "kernels/attention/decode_plan_layers.h"
#include "kernels/cache_ops/qkv_append.h"
#include "models/catalog/rope.h"

namespace kvtwin::cuda {

bool RowAttention::decode_takes() const {
  return (llm_->head_dim == 64 || llm_->head_dim == 128) &&
         (shape_.page_tokens == 1 || shape_.page_tokens % kDecodeBlockTokens == 0);
}

bool RowAttention::chunk_takes() const {
  return (llm_->head_dim == 64 || llm_->head_dim == 128) && shape_.page_tokens % 16 == 0 &&
         uint64_t{shape_.pages} * shape_.heads_per_page * 2 * shape_.page_tokens < uint64_t{1} << 31;
}

Result<RowAttention> RowAttention::make(const LlmSpec* llm, const RowAttentionShape& shape) {
  RowAttention out;
  out.llm_ = llm;
  out.shape_ = shape;
  int sms = 0;
  if (Result<void> ok = check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0),
                              "cudaDeviceGetAttribute", "multiprocessors");
      !ok)
    return tl::unexpected<Error>(ok.error());
  const uint32_t group = llm->query_heads / llm->kv_heads;
  const uint64_t sequences = uint64_t{shape.rows} * llm->kv_heads;
  out.decode_ = {llm->head_dim,
                 group,
                 shape.page_tokens,
                 shape.heads_per_page,
                 sequences > UINT32_MAX ? UINT32_MAX : static_cast<uint32_t>(sequences),
                 static_cast<uint32_t>(sms)};
  PrefillShape& prefill = out.prefill_;
  prefill.head_dim = llm->head_dim, prefill.group = group;
  prefill.kv_heads = llm->kv_heads, prefill.heads_per_page = shape.heads_per_page;
  prefill.page_tokens = shape.page_tokens;
  prefill.pool_blocks = shape.pages * shape.heads_per_page, prefill.ctas = out.decode_.ctas;
  prefill.q_stride = llm->query_heads * llm->head_dim;
  prefill.rows = shape.rows, prefill.sequences = out.decode_.sequences;  // maxima, for the size of the plan
  out.attention_scale_ = 1 / std::sqrt(static_cast<float>(llm->head_dim));
  out.plan_stride_ = div_ceil(uint64_t{decode_plan_bytes(out.decode_)}, uint64_t{256}) * 256;
  const struct {
    Buffer* buffer;
    uint64_t bytes;
    const char* what;
  } rows_of[] = {{&out.plan_, out.plan_stride_ * shape.layers, "the plan of decode attention"},
                 {&out.prefill_plan_, out.chunk_takes() ? prefill_plan_bytes(prefill) : 0,
                  "the plan of prefill attention"},
                 {&out.workspace_, decode_workspace_bytes(out.decode_), "decode attention"},
                 {&out.inv_freq_, uint64_t{llm->head_dim} / 2 * sizeof(float), "rotations"}};
  for (const auto& row : rows_of) {
    Result<Buffer> made =
        Buffer::make(Buffer::Kind::kDevice, row.bytes, row.what, fmt::format("{} rows", shape.rows));
    if (!made) {
      made.error().hint = "give fewer: --set=limits.step_tokens_max=N";
      return tl::unexpected<Error>(made.error());
    }
    *row.buffer = std::move(*made);
  }
  const RopeFrequencies rope = rope_frequencies(*llm);
  out.rope_scale_ = rope.scale;
  if (Result<void> ok =
          check(cudaMemcpy(out.inv_freq_.as<float>(), rope.inverse.data(), out.inv_freq_.bytes(),
                           cudaMemcpyHostToDevice),
                "copy of rotations", fmt::format("{} numbers", rope.inverse.size()), out.inv_freq_.bytes());
      !ok)
    return tl::unexpected<Error>(ok.error());
  return out;
}

void RowAttention::add(uint32_t first, uint32_t table, uint32_t context, uint32_t count,
                       StepRows* rows) const {
  const uint32_t group = llm_->query_heads / llm_->kv_heads;
  const uint64_t kv_entries = uint64_t{count} * context + uint64_t{count} * (count + 1) / 2;
  if (count == 1 && decode_takes()) {
    for (uint32_t head = 0; head < llm_->kv_heads; ++head)
      rows->decodes.push_back({first * llm_->query_heads + head * group, table, context + 1, head});
    rows->decode_entries += kv_entries;
    return;
  }
  rows->chunk_entries += kv_entries;
  if (chunk_takes()) {
    for (uint32_t head = 0; head < llm_->kv_heads; ++head)
      rows->chunks.push_back({first, count, head, context, table, head});
    return;
  }
  for (uint32_t i = 0; i < count; ++i) rows->others.push_back({first + i, table, context + i + 1});
}

void RowAttention::fill_up(uint32_t size, StepRows* rows) const {
  KVT_CHECK(decode_takes() && !shape_.by_head);
  const uint32_t group = llm_->query_heads / llm_->kv_heads;
  for (auto row = static_cast<uint32_t>(rows->positions.size()); row < size; ++row, ++rows->padding) {
    rows->positions.push_back(0);
    rows->slots.push_back({kNoBlock, 0});
    for (uint32_t head = 0; head < llm_->kv_heads; ++head)
      rows->decodes.push_back({row * llm_->query_heads + head * group, 0, 0, head});
  }
}

void RowAttention::add_warm_up(uint32_t size, StepRows* rows) const {
  const auto table = static_cast<uint32_t>(rows->pages.size());
  rows->pages.push_back(0);
  for (uint32_t row = 0; row < size; ++row) {
    rows->positions.push_back(0);
    rows->slots.push_back({0, row % shape_.page_tokens});
  }
  add(0, table, 0, 1, rows);
  if (size > 2 && shape_.page_tokens > 1) add(1, table, 0, 2, rows);
}

DecodeArgs RowAttention::decode_args(const DeviceRows& rows, const __nv_bfloat16* pool) const {
  DecodeArgs args;
  args.pool = pool;
  args.pages = rows.pages;
  args.table = rows.decodes;
  args.scale = attention_scale_;
  args.plan = plan_.as<void>();
  args.workspace = workspace_.as<void>();
  return args;
}

PrefillArgs RowAttention::prefill_args(const DeviceRows& rows, const __nv_bfloat16* pool) const {
  PrefillArgs args;
  args.pool = pool;
  args.pages = rows.pages;
  args.table = rows.chunks;
  args.scale = attention_scale_;
  args.plan = prefill_plan_.as<void>();
  return args;
}

DecodeShape RowAttention::split_shape() const {
  DecodeShape out = decode_;
  out.ctas = splits_;
  return out;
}

void RowAttention::reserve_splits(uint32_t sequences, uint32_t splits) {
  DecodeShape shape = decode_;
  shape.sequences = sequences, shape.ctas = splits;
  grow(&plan_, Buffer::Kind::kDevice, decode_splits_bytes(shape), "the plan of given splits");
  grow(&workspace_, Buffer::Kind::kDevice, decode_workspace_bytes(shape), "decode attention");
}

void RowAttention::plan(const DeviceRows& rows, const __nv_bfloat16* pool, cudaStream_t stream,
                        const DecodePartition::Splits& splits) {
  if (rows.chunks_count > 0) {
    prefill_.sequences = rows.chunks_count, prefill_.rows = rows.rows;
    must(plan_attention_prefill(prefill_, prefill_args(rows, pool), stream), "plan_attention_prefill", 0,
         [&] { return fmt::format("{} sequences", rows.chunks_count); });
  }
  by_layer_ = false, splits_ = splits.count;
  if (rows.decodes_count == 0) return;
  clear_counters(rows.decodes_count, stream);
  if (splits_ > 0) {
    return must(plan_decode_splits(split_shape(), decode_args(rows, pool), splits.list, stream),
                "plan_decode_splits", 0,
                [&] { return fmt::format("{} sequences, {} splits", rows.decodes_count, splits_); });
  }
  must(plan_attention_decode(decode_, decode_args(rows, pool), stream), "plan_attention_decode", 0,
       [&] { return fmt::format("{} sequences", rows.decodes_count); });
}

void RowAttention::plan_layers(const DeviceRows& rows, const __nv_bfloat16* pool, cudaStream_t stream) {
  KVT_CHECK(rows.chunks_count == 0);
  by_layer_ = true, splits_ = 0;
  clear_counters(rows.decodes_count, stream);
  must(plan_decode_layers(decode_, decode_args(rows, pool), shape_.layers, plan_stride_, stream),
       "plan_decode_layers", 0,
       [&] { return fmt::format("{} sequences in each of {} layers", rows.decodes_count, shape_.layers); });
}

void RowAttention::clear_counters(uint32_t sequences, cudaStream_t stream) {
  decode_.sequences = sequences;
  must(cudaMemsetAsync(workspace_.as<void>(), 0, decode_counter_bytes(sequences), stream),
       "counters of decode attention", decode_counter_bytes(sequences),
       [&] { return fmt::format("{} sequences", sequences); });
}

void RowAttention::append(const LayerRows& tensors, const DeviceRows& rows, __nv_bfloat16* pool,
                          cudaStream_t stream, __nv_bfloat16* keys) {
  RopeAppendArgs args;
  args.qkv = tensors.qkv;
  args.positions = rows.positions, args.slots = rows.slots;
  args.inv_freq = inv_freq_.as<float>(), args.rope_scale = rope_scale_;
  args.q_norm = tensors.weights->q_norm, args.k_norm = tensors.weights->k_norm;
  args.eps = static_cast<float>(llm_->norm_eps);
  args.rows = rows.rows, args.query_heads = llm_->query_heads, args.kv_heads = llm_->kv_heads;
  args.head_dim = llm_->head_dim, args.page_tokens = shape_.page_tokens;
  args.q = tensors.q, args.q_stride = llm_->query_heads * llm_->head_dim;
  args.k = keys, args.k_stride = llm_->kv_heads * llm_->head_dim;
  args.pool = pool;
  args.slots_per_row = shape_.by_head ? llm_->kv_heads : 1;
  const bool head = llm_->head_dim == 64 || llm_->head_dim == 128 || llm_->head_dim == 256;
  const bool page = shape_.page_tokens == 1 || shape_.page_tokens % 8 == 0;
  must(head && page ? rope_append(args, stream) : qkv_append(args, stream), "rope_append", 0,
       [&] { return fmt::format("{} rows of {}", rows.rows, llm_->head_dim); });
}

void RowAttention::start(const ListedOperation& one, const LayerRows& tensors, const DeviceRows& rows,
                         __nv_bfloat16* pool, cudaStream_t stream) {
  if (one.kind == Operation::kAppend) return append(tensors, rows, pool, stream);
  const auto shape = [&] {
    return fmt::format("{} rows, {} decode and {} chunk sequences, head_dim {}, pages of {}", rows.rows,
                       rows.decodes_count, rows.chunks_count, llm_->head_dim, shape_.page_tokens);
  };
  KVT_CHECK(has_rows(rows_present(rows), one.kind));
  if (one.kind == Operation::kDecodeAttention) {
    DecodeArgs args = decode_args(rows, pool);
    args.q = tensors.q, args.out = tensors.out;
    decode_.listed = rows.listed;
    if (by_layer_) args.plan = plan_.as<void>(one.layer * plan_stride_);
    if (splits_ > 0) {
      must(attention_decode_splits(split_shape(), args, stream), "attention_decode_splits", 0, shape);
    } else {
      must(attention_decode(decode_, args, stream), "attention_decode", 0, shape);
    }
  } else if (one.kind == Operation::kChunkAttention) {
    PrefillArgs args = prefill_args(rows, pool);
    args.q = tensors.q, args.out = tensors.out;
    must(attention_prefill(prefill_, args, stream), "attention_prefill", 0, shape);
  } else {
    must(attention_rows({pool, rows.pages, rows.others, tensors.q, tensors.out, attention_scale_,
                         rows.other_rows, llm_->query_heads, llm_->kv_heads, llm_->head_dim,
                         shape_.page_tokens, shape_.heads_per_page, shape_.by_head, shape_.by_head},
                        stream),
         "attention_rows", 0, shape);
  }
}

}  // namespace kvtwin::cuda
