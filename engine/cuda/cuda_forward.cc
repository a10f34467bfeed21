#include "engine/cuda/cuda_forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/device/cuda_check.h"
#include "kernels/dense/dense_cuda.h"

namespace kvtwin::cuda {
namespace {

void started(cudaError_t error, const char* kernel, uint32_t rows, uint32_t width) {
  must(error, kernel, 0, [&] { return fmt::format("{} rows of {}", rows, width); });
}

}  // namespace

Result<std::unique_ptr<CudaForward>> CudaForward::make(const DeviceWeights* weights,
                                                       const ForwardLimits& limits) {
  std::unique_ptr<CudaForward> out(new CudaForward(weights, limits));
  Result<std::unique_ptr<Matmul>> matmul = Matmul::make();
  if (!matmul) return tl::unexpected<Error>(matmul.error());
  out->matmul_ = std::move(*matmul);
  if (Result<void> ok = out->allocate(); !ok) return tl::unexpected<Error>(ok.error());
  return out;
}

Result<void> CudaForward::allocate() {
  const uint64_t rows = limits_.rows, heads = llm_.query_heads + 2 * llm_.kv_heads;
  const uint64_t queries = uint64_t{llm_.query_heads} * llm_.head_dim;
  const struct {
    Buffer* buffer;
    uint64_t bytes;
    const char* what;
    Buffer::Kind kind = Buffer::Kind::kDevice;
  } rows_of[] = {{&x_, rows * llm_.hidden * 4, "the residual stream"},
                 {&normed_, std::max(rows, uint64_t{limits_.samples}) * llm_.hidden * 2, "normed rows"},
                 {&qkv_, rows * heads * llm_.head_dim * 2, "queries, keys and values"},
                 {&q_, rows * queries * 2, "queries"},
                 {&attended_, rows * queries * 2, "what attention gives"},
                 {&gate_up_, rows * 2 * llm_.intermediate * 2, "gates"},
                 {&activated_, rows * llm_.intermediate * 2, "activations"},
                 {&logits_, uint64_t{limits_.samples} * llm_.vocab * 4, "logits"},
                 // In the host's memory, where the kernel writes them: a copy would queue behind pages on
                 // their way to the host, and the step with it.
                 {&sampled_, uint64_t{limits_.samples} * 4, "sampled tokens", Buffer::Kind::kPinned}};
  for (const auto& row : rows_of) {
    Result<Buffer> made = Buffer::make(row.kind, row.bytes, row.what,
                                       fmt::format("{} rows, {} samples", limits_.rows, limits_.samples));
    if (!made) {
      made.error().hint = "give fewer: --set=limits.step_tokens_max=N";
      return tl::unexpected<Error>(made.error());
    }
    *row.buffer = std::move(*made);
  }
  // Attention leaves out rows that only pad: what is read of them must be numbers.
  return check(cudaMemset(attended_.as<void>(), 0, attended_.bytes()), "cudaMemset", "what attention gives",
               attended_.bytes());
}

void CudaForward::norm(const float* weight, const uint32_t* pick, uint32_t rows, cudaStream_t stream) {
  started(rms_norm({x_.as<float>(), pick, weight, static_cast<float>(llm_.norm_eps), rows, llm_.hidden,
                    normed_.as<__nv_bfloat16>()},
                   stream),
          "rms_norm", rows, llm_.hidden);
}

// Rows that the output head runs on: a batch of any size would bring cuBLASLt a product it has not seen,
// which costs milliseconds. The rows after `samples` are not read.
uint32_t CudaForward::head_rows(uint32_t samples) {
  return samples <= 2 ? samples : samples <= 4 ? 4 : (samples + 7) / 8 * 8;
}

void CudaForward::pass(const DeviceRows& rows, const float* values, LayerAttention* attention,
                       const StepStream& on) {
  KVT_CHECK(rows.padded_rows <= limits_.rows);
  on.timer->begin(Operation::kEmbed);
  if (values != nullptr) {
    const uint64_t bytes = uint64_t{rows.padded_rows} * llm_.hidden * sizeof(float);
    must(cudaMemcpyAsync(x_.as<float>(), values, bytes, cudaMemcpyHostToDevice, on.stream), "copy of rows",
         bytes, [&] { return fmt::format("{} rows", rows.padded_rows); });
  } else {
    started(
        embed({weights_.embedding(), rows.tokens, rows.padded_rows, llm_.hidden, x_.as<float>()}, on.stream),
        "embed", rows.padded_rows, llm_.hidden);
  }
  on.timer->begin(Operation::kPlan);
  attention->plan(rows, on);
  for (uint32_t i = 0; i < llm_.layers; ++i) {
    attention_block(i, rows, attention, on);
    mlp_block(i, rows.padded_rows, on);
  }
}

void CudaForward::run(const DeviceRows& rows, LayerAttention* attention, const StepStream& on) {
  const cudaStream_t stream = on.stream;
  OperationTimer* const timer = on.timer;
  KVT_CHECK(rows.rows <= rows.padded_rows && rows.samples <= limits_.samples);
  pass(rows, nullptr, attention, on);
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

void CudaForward::attention_block(uint32_t index, const DeviceRows& rows, LayerAttention* attention,
                                  const StepStream& on) {
  const cudaStream_t stream = on.stream;
  OperationTimer* const timer = on.timer;
  const DeviceLayer& layer = weights_.layer(index);
  timer->begin(Operation::kNorm, index);
  norm(layer.attention_norm, nullptr, rows.padded_rows, stream);
  timer->begin(Operation::kQkv, index);
  matmul_->run(layer.qkv, normed_.as<__nv_bfloat16>(), rows.padded_rows, Matmul::Into::kBf16,
               qkv_.as<__nv_bfloat16>(), stream);
  attention->attend(index,
                    {&layer, normed_.as<__nv_bfloat16>(), qkv_.as<__nv_bfloat16>(), q_.as<__nv_bfloat16>(),
                     attended_.as<__nv_bfloat16>()},
                    rows, on);
  timer->begin(Operation::kAttentionOut, index);
  matmul_->run(layer.o, attended_.as<__nv_bfloat16>(), rows.padded_rows, Matmul::Into::kAddFloat,
               x_.as<float>(), stream);
  if (layer.o_bias != nullptr)
    started(add_bias({layer.o_bias, rows.padded_rows, llm_.hidden, x_.as<float>()}, stream), "add_bias",
            rows.padded_rows, llm_.hidden);
}

void CudaForward::mlp_block(uint32_t index, uint32_t rows, const StepStream& on) {
  const cudaStream_t stream = on.stream;
  OperationTimer* const timer = on.timer;
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
