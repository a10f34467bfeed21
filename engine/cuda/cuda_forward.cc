#include "engine/cuda/cuda_forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/cuda_check.h"
#include "kernels/attention_decode.h"
#include "kernels/attention_prefill.h"
#include "kernels/attention_rows.h"
#include "kernels/dense_cuda.h"
#include "kernels/qkv_append.h"
#include "models/rope.h"

namespace kvtwin::cuda {
namespace {

// Of attention_decode's workspace: how many parts have arrived, by sequence and query head. Zero before the
// first launch of a step: where they lie depends on how many sequences it has.
uint64_t counter_bytes(uint32_t sequences) {
  return uint64_t{sequences} * kDecodeGroupMax * sizeof(uint32_t);
}

void started(cudaError_t error, const char* kernel, uint32_t rows, uint32_t width) {
  must(error, kernel, 0, [&] { return fmt::format("{} rows of {}", rows, width); });
}

}  // namespace

Result<std::unique_ptr<CudaForward>> CudaForward::make(const DeviceWeights* weights,
                                                       const ForwardLimits& limits) {
  std::unique_ptr<CudaForward> out(new CudaForward(weights, limits));
  Result<std::unique_ptr<Matmul>> matmul = Matmul::make();
  if (!matmul) return tl::unexpected<Mistake>(matmul.error());
  out->matmul_ = std::move(*matmul);
  if (Result<void> ok = out->allocate(); !ok) return tl::unexpected<Mistake>(ok.error());
  return out;
}

bool CudaForward::decode_takes(const LlmSpec& llm, uint32_t page_tokens) {
  return (llm.head_dim == 64 || llm.head_dim == 128) &&
         (page_tokens == 1 || page_tokens % kDecodeBlockTokens == 0);
}

bool CudaForward::prefill_takes(const LlmSpec& llm, uint32_t page_tokens, uint32_t pages) {
  return (llm.head_dim == 64 || llm.head_dim == 128) && page_tokens % 16 == 0 &&
         uint64_t{pages} * llm.kv_heads * 2 * page_tokens < uint64_t{1} << 31;
}

Result<void> CudaForward::allocate() {
  const uint64_t rows = limits_.rows, heads = llm_.query_heads + 2 * llm_.kv_heads;
  const uint64_t queries = uint64_t{llm_.query_heads} * llm_.head_dim;
  int sms = 0;
  if (Result<void> ok = check(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, 0),
                              "cudaDeviceGetAttribute", "multiprocessors");
      !ok)
    return ok;
  decode_ = {llm_.head_dim,
             llm_.query_heads / llm_.kv_heads,
             limits_.page_tokens,
             llm_.kv_heads,
             rows * llm_.kv_heads > UINT32_MAX ? UINT32_MAX : limits_.rows * llm_.kv_heads,
             static_cast<uint32_t>(sms)};
  prefill_.head_dim = llm_.head_dim, prefill_.group = llm_.query_heads / llm_.kv_heads;
  prefill_.kv_heads = prefill_.heads_per_page = llm_.kv_heads, prefill_.page_tokens = limits_.page_tokens;
  prefill_.pool_blocks = limits_.pages * llm_.kv_heads, prefill_.ctas = decode_.ctas;
  prefill_.q_stride = llm_.query_heads * llm_.head_dim;
  prefill_.rows = limits_.rows, prefill_.sequences = decode_.sequences;  // the most, for its plan's size
  attention_scale_ = 1 / std::sqrt(static_cast<float>(llm_.head_dim));
  const bool prefill = prefill_takes(llm_, limits_.page_tokens, limits_.pages);
  const struct {
    Buffer* buffer;
    uint64_t bytes;
    const char* what;
  } rows_of[] = {
      {&x_, rows * llm_.hidden * 4, "the residual stream"},
      {&normed_, std::max(rows, uint64_t{limits_.samples}) * llm_.hidden * 2, "normed rows"},
      {&qkv_, rows * heads * llm_.head_dim * 2, "queries, keys and values"},
      {&q_, rows * queries * 2, "queries"},
      {&attended_, rows * queries * 2, "what attention gives"},
      {&gate_up_, rows * 2 * llm_.intermediate * 2, "gates"},
      {&activated_, rows * llm_.intermediate * 2, "activations"},
      {&logits_, uint64_t{limits_.samples} * llm_.vocab * 4, "logits"},
      {&sampled_, uint64_t{limits_.samples} * 4, "sampled tokens"},
      {&plan_, decode_plan_bytes(decode_), "the plan of decode attention"},
      {&prefill_plan_, prefill ? prefill_plan_bytes(prefill_) : 0, "the plan of prefill attention"},
      {&workspace_, decode_workspace_bytes(decode_), "decode attention"},
      {&inv_freq_, uint64_t{llm_.head_dim} / 2 * sizeof(float), "rotations"}};
  for (const auto& row : rows_of) {
    Result<Buffer> made = Buffer::make(Buffer::Kind::kDevice, row.bytes, row.what,
                                       fmt::format("{} rows, {} samples", limits_.rows, limits_.samples));
    if (!made) {
      made.error().hint = "give fewer: --set=limits.step_tokens_max=N";
      return tl::unexpected<Mistake>(made.error());
    }
    *row.buffer = std::move(*made);
  }
  // Attention leaves out rows that only pad: what is read of them must be numbers.
  if (Result<void> ok = check(cudaMemset(attended_.as<void>(), 0, attended_.bytes()), "cudaMemset",
                              "what attention gives", attended_.bytes());
      !ok)
    return ok;
  const RopeFrequencies rope = rope_frequencies(llm_);
  rope_scale_ = rope.scale;
  return check(
      cudaMemcpy(inv_freq_.as<float>(), rope.inverse.data(), inv_freq_.bytes(), cudaMemcpyHostToDevice),
      "copy of rotations", fmt::format("{} numbers", rope.inverse.size()), inv_freq_.bytes());
}

void CudaForward::norm(const float* weight, const uint32_t* pick, uint32_t rows, cudaStream_t stream) {
  started(rms_norm({x_.as<float>(), pick, weight, static_cast<float>(llm_.norm_eps), rows, llm_.hidden,
                    normed_.as<__nv_bfloat16>()},
                   stream),
          "rms_norm", rows, llm_.hidden);
}

// Rows that the output head runs on: a batch of any size would bring cuBLASLt a product it has not seen,
// which costs milliseconds. What the rows behind `samples` hold, nobody reads.
uint32_t CudaForward::head_rows(uint32_t samples) {
  return samples <= 2 ? samples : samples <= 4 ? 4 : (samples + 7) / 8 * 8;
}

void CudaForward::run(const DeviceRows& rows, const DevicePages& pages, cudaStream_t stream,
                      OperationTimer* timer) {
  KVT_CHECK(rows.rows <= rows.padded_rows && rows.padded_rows <= limits_.rows &&
            rows.samples <= limits_.samples);
  timer->begin(Operation::kEmbed);
  started(embed({weights_.embedding(), rows.tokens, rows.padded_rows, llm_.hidden, x_.as<float>()}, stream),
          "embed", rows.padded_rows, llm_.hidden);
  timer->begin(Operation::kPlan);
  plan_attention(rows, pages, stream);
  for (uint32_t i = 0; i < llm_.layers; ++i) {
    attention_block(i, rows, pages, stream, timer);
    mlp_block(i, rows.padded_rows, stream, timer);
  }
  if (rows.samples == 0) return;
  timer->begin(Operation::kNorm, llm_.layers);
  norm(weights_.final_norm(), rows.sampling, rows.samples, stream);
  timer->begin(Operation::kLogits);
  matmul_->run(weights_.lm_head(), normed_.as<__nv_bfloat16>(),
               std::min(head_rows(rows.samples), limits_.samples), Matmul::Into::kFloat, logits_.as<float>(),
               stream);
  timer->begin(Operation::kSample);
  started(argmax({logits(), rows.samples, llm_.vocab, sampled_.as<uint32_t>()}, stream), "argmax",
          rows.samples, llm_.vocab);
}

DecodeArgs CudaForward::decode_args(const DeviceRows& rows, const __nv_bfloat16* pool) const {
  DecodeArgs args;
  args.pool = pool;
  args.pages = rows.pages;
  args.table = rows.decodes;
  args.q = q_.as<__nv_bfloat16>();
  args.out = attended_.as<__nv_bfloat16>();
  args.scale = attention_scale_;
  args.plan = plan_.as<void>();
  args.workspace = workspace_.as<void>();
  return args;
}

PrefillArgs CudaForward::prefill_args(const DeviceRows& rows, const __nv_bfloat16* pool) const {
  PrefillArgs args;
  args.pool = pool;
  args.pages = rows.pages;
  args.table = rows.chunks;
  args.q = q_.as<__nv_bfloat16>();
  args.out = attended_.as<__nv_bfloat16>();
  args.scale = attention_scale_;
  args.plan = prefill_plan_.as<void>();
  return args;
}

// One plan for all layers: their lengths are the same.
void CudaForward::plan_attention(const DeviceRows& rows, const DevicePages& pages, cudaStream_t stream) {
  if (rows.chunks_count > 0) {
    prefill_.sequences = rows.chunks_count, prefill_.rows = rows.rows;
    must(plan_attention_prefill(prefill_, prefill_args(rows, pages.layer(0)), stream),
         "plan_attention_prefill", 0, [&] { return fmt::format("{} sequences", rows.chunks_count); });
  }
  if (rows.decodes_count == 0) return;
  decode_.sequences = rows.decodes_count;
  const auto shape = [&] { return fmt::format("{} sequences", rows.decodes_count); };
  must(cudaMemsetAsync(workspace_.as<void>(), 0, counter_bytes(rows.decodes_count), stream),
       "counters of decode attention", counter_bytes(rows.decodes_count), shape);
  must(plan_attention_decode(decode_, decode_args(rows, pages.layer(0)), stream), "plan_attention_decode", 0,
       shape);
}

void CudaForward::attention_block(uint32_t index, const DeviceRows& rows, const DevicePages& pages,
                                  cudaStream_t stream, OperationTimer* timer) {
  const DeviceLayer& layer = weights_.layer(index);
  timer->begin(Operation::kNorm, index);
  norm(layer.attention_norm, nullptr, rows.padded_rows, stream);
  timer->begin(Operation::kQkv, index);
  matmul_->run(layer.qkv, normed_.as<__nv_bfloat16>(), rows.padded_rows, Matmul::Into::kBf16,
               qkv_.as<__nv_bfloat16>(), stream);
  attend(index, rows, pages, stream, timer);
  timer->begin(Operation::kAttentionOut, index);
  matmul_->run(layer.o, attended_.as<__nv_bfloat16>(), rows.padded_rows, Matmul::Into::kAddFloat,
               x_.as<float>(), stream);
  if (layer.o_bias != nullptr)
    started(add_bias({layer.o_bias, rows.padded_rows, llm_.hidden, x_.as<float>()}, stream), "add_bias",
            rows.padded_rows, llm_.hidden);
}

void CudaForward::append(const DeviceLayer& layer, const DeviceRows& rows, __nv_bfloat16* pool,
                         cudaStream_t stream) {
  RopeAppendArgs args;
  args.qkv = qkv_.as<__nv_bfloat16>();
  args.positions = rows.positions, args.slots = rows.slots;
  args.inv_freq = inv_freq_.as<float>(), args.rope_scale = rope_scale_;
  args.q_norm = layer.q_norm, args.k_norm = layer.k_norm, args.eps = static_cast<float>(llm_.norm_eps);
  args.rows = rows.rows, args.query_heads = llm_.query_heads, args.kv_heads = llm_.kv_heads;
  args.head_dim = llm_.head_dim, args.page_tokens = limits_.page_tokens;
  args.q = q_.as<__nv_bfloat16>(), args.q_stride = llm_.query_heads * llm_.head_dim;
  args.pool = pool;
  const bool head = llm_.head_dim == 64 || llm_.head_dim == 128 || llm_.head_dim == 256;
  const bool page = limits_.page_tokens == 1 || limits_.page_tokens % 8 == 0;
  started(head && page ? rope_append(args, stream) : qkv_append(args, stream), "rope_append", rows.rows,
          llm_.head_dim);
}

// All KV of the step is written before any is read, so that a call may read pages that another call of the
// same step fills.
void CudaForward::attend(uint32_t index, const DeviceRows& rows, const DevicePages& pages,
                         cudaStream_t stream, OperationTimer* timer) {
  const DeviceLayer& layer = weights_.layer(index);
  timer->begin(Operation::kAppend, index);
  append(layer, rows, pages.layer(index), stream);
  const __nv_bfloat16* const pool = pages.layer(index);
  const auto shape = [&] {
    return fmt::format("{} rows, {} decode and {} chunk sequences, head_dim {}, pages of {}", rows.rows,
                       rows.decodes_count, rows.chunks_count, llm_.head_dim, limits_.page_tokens);
  };
  if (rows.decodes_count > 0) {
    timer->begin(Operation::kDecodeAttention, index);
    must(attention_decode(decode_, decode_args(rows, pool), stream), "attention_decode", 0, shape);
  }
  if (rows.chunks_count > 0) {
    timer->begin(Operation::kChunkAttention, index);
    must(attention_prefill(prefill_, prefill_args(rows, pool), stream), "attention_prefill", 0, shape);
  }
  if (rows.other_rows == 0) return;
  timer->begin(Operation::kRowAttention, index);
  must(attention_rows({pool, rows.pages, rows.others, q_.as<__nv_bfloat16>(), attended_.as<__nv_bfloat16>(),
                       attention_scale_, rows.other_rows, llm_.query_heads, llm_.kv_heads, llm_.head_dim,
                       limits_.page_tokens},
                      stream),
       "attention_rows", 0, shape);
}

void CudaForward::mlp_block(uint32_t index, uint32_t rows, cudaStream_t stream, OperationTimer* timer) {
  const DeviceLayer& layer = weights_.layer(index);
  timer->begin(Operation::kNorm, index);
  norm(layer.mlp_norm, nullptr, rows, stream);
  timer->begin(Operation::kGateUp, index);
  matmul_->run(layer.gate_up, normed_.as<__nv_bfloat16>(), rows, Matmul::Into::kBf16,
               gate_up_.as<__nv_bfloat16>(), stream);
  timer->begin(Operation::kActivation, index);
  started(silu_mul({gate_up_.as<__nv_bfloat16>(), rows, llm_.intermediate, activated_.as<__nv_bfloat16>()},
                   stream),
          "silu_mul", rows, llm_.intermediate);
  timer->begin(Operation::kDown, index);
  matmul_->run(layer.down, activated_.as<__nv_bfloat16>(), rows, Matmul::Into::kAddFloat, x_.as<float>(),
               stream);
  if (layer.down_bias != nullptr)
    started(add_bias({layer.down_bias, rows, llm_.hidden, x_.as<float>()}, stream), "add_bias", rows,
            llm_.hidden);
}

}  // namespace kvtwin::cuda
