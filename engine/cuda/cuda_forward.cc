#include "engine/cuda/cuda_forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
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
  KVT_CHECK(rows.samples == 0);
  walk(rows, values, attention, on);
}

void CudaForward::run(const DeviceRows& rows, LayerAttention* attention, const StepStream& on) {
  walk(rows, nullptr, attention, on);
}

void CudaForward::walk(const DeviceRows& rows, const float* values, LayerAttention* attention,
                       const StepStream& on) {
  KVT_CHECK(rows.rows <= rows.padded_rows && rows.padded_rows <= limits_.rows);
  KVT_CHECK(rows.samples <= limits_.samples);
  StepListSpec spec = attention->listed(rows);
  spec.samples = rows.samples > 0;
  if (spec_ != spec) spec_ = spec, list_ = list_step(spec);
  const std::span<const ListedOperation> operations = list_.operations();
  uint32_t attended = 0;  // layers
  for (size_t i = 0; i < operations.size(); ++i) {
    const ListedOperation& one = operations[i];
    // Started before the layers, by those that made the lists.
    if (one.kind == Operation::kUpload || one.kind == Operation::kRequantise) continue;
    if (!is_attention(one)) {
      on.timer->begin(one);
      start(one, i + 1 < operations.size() ? operations[i + 1].kind : one.kind, rows, values, attention, on);
    } else if (one.layer == attended) {  // the rest of the layer's operations are the cache's
      ++attended;
      const DeviceLayer& layer = weights_.layer(one.layer);
      attention->attend(one.layer,
                        {&layer, normed_.as<__nv_bfloat16>(), qkv_.as<__nv_bfloat16>(),
                         q_.as<__nv_bfloat16>(), attended_.as<__nv_bfloat16>()},
                        rows, on);
    }
  }
}

void CudaForward::start(const ListedOperation& one, Operation next, const DeviceRows& rows,
                        const float* values, LayerAttention* attention, const StepStream& on) {
  const uint32_t padded = rows.padded_rows;
  const cudaStream_t stream = on.stream;
  const auto product = [&](const Matrix& weights, const Buffer& of, Matmul::Into into, void* to,
                           uint32_t count) {
    matmul_->run(weights, of.as<__nv_bfloat16>(), count, into, to, stream);
  };
  switch (one.kind) {
    case Operation::kEmbed:
      return embed_rows(rows, values, stream);
    case Operation::kPlan:
      return attention->plan(rows, on);
    case Operation::kNorm:
      return start_norm(one.layer, next, rows, stream);
    case Operation::kQkv:
      return product(weights_.layer(one.layer).qkv, normed_, Matmul::Into::kBf16, qkv_.as<void>(), padded);
    case Operation::kAttentionOut:
      product(weights_.layer(one.layer).o, attended_, Matmul::Into::kAddFloat, x_.as<void>(), padded);
      return bias(weights_.layer(one.layer).o_bias, padded, stream);
    case Operation::kGateUp:
      return product(weights_.layer(one.layer).gate_up, normed_, Matmul::Into::kBf16, gate_up_.as<void>(),
                     padded);
    case Operation::kActivation:
      return started(
          silu_mul({gate_up_.as<__nv_bfloat16>(), padded, llm_.intermediate, activated_.as<__nv_bfloat16>()},
                   stream),
          "silu_mul", padded, llm_.intermediate);
    case Operation::kDown:
      product(weights_.layer(one.layer).down, activated_, Matmul::Into::kAddFloat, x_.as<void>(), padded);
      return bias(weights_.layer(one.layer).down_bias, padded, stream);
    case Operation::kLogits:
      return product(weights_.lm_head(), normed_, Matmul::Into::kFloat, logits_.as<void>(),
                     std::min(head_rows(rows.samples), limits_.samples));
    case Operation::kSample:
      return started(argmax({logits(), rows.samples, llm_.vocab, sampled_.as<uint32_t>()}, stream), "argmax",
                     rows.samples, llm_.vocab);
    default:
      KVT_CHECK(!"the model has no such operation");
  }
}

void CudaForward::embed_rows(const DeviceRows& rows, const float* values, cudaStream_t stream) {
  if (values != nullptr) {
    const uint64_t bytes = uint64_t{rows.padded_rows} * llm_.hidden * sizeof(float);
    must(cudaMemcpyAsync(x_.as<float>(), values, bytes, cudaMemcpyHostToDevice, stream), "copy of rows",
         bytes, [&] { return fmt::format("{} rows", rows.padded_rows); });
    return;
  }
  started(embed({weights_.embedding(), rows.tokens, rows.padded_rows, llm_.hidden, x_.as<float>()}, stream),
          "embed", rows.padded_rows, llm_.hidden);
}

// A norm belongs to the product that follows it.
void CudaForward::start_norm(uint32_t layer, Operation product, const DeviceRows& rows, cudaStream_t stream) {
  if (product == Operation::kLogits) return norm(weights_.final_norm(), rows.sampling, rows.samples, stream);
  const DeviceLayer& of = weights_.layer(layer);
  KVT_CHECK(product == Operation::kQkv || product == Operation::kGateUp);
  norm(product == Operation::kQkv ? of.attention_norm : of.mlp_norm, nullptr, rows.padded_rows, stream);
}

void CudaForward::bias(const float* bias, uint32_t rows, cudaStream_t stream) {
  if (bias == nullptr) return;
  started(add_bias({bias, rows, llm_.hidden, x_.as<float>()}, stream), "add_bias", rows, llm_.hidden);
}

}  // namespace kvtwin::cuda
