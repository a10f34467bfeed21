// The forward pass of engine/cpu/forward.h on a GPU, with paged attention in it: weights, KV and what
// matrices multiply in bf16, the residual stream, sums and logits in fp32.
//
// One stream, nine launches a layer, none of which depends on lengths; nothing waits for the host. The
// residual stream is added to by the matrix products that write to it.

#ifndef KVTWIN_ENGINE_CUDA_CUDA_FORWARD_H_
#define KVTWIN_ENGINE_CUDA_CUDA_FORWARD_H_

#include <cstdint>
#include <memory>

#include "engine/cuda/device_pages.h"
#include "engine/cuda/device_weights.h"
#include "engine/cuda/matmul.h"
#include "engine/cuda/operation_timer.h"
#include "engine/cuda/step_rows.h"

namespace kvtwin::cuda {

struct ForwardLimits {
  uint32_t rows = 0;     // of one step
  uint32_t samples = 0;  // likewise
  uint32_t page_tokens = 0;
  uint32_t pages = 0;  // of the GPU
};

class CudaForward {
 public:
  // `weights` must outlive this. Wrong: no room for activations.
  static Result<std::unique_ptr<CudaForward>> make(const DeviceWeights* weights, const ForwardLimits& limits);

  // Whether attention_decode takes rows, and attention_prefill chunks, of this model on these pages; what
  // neither takes is attention_rows'.
  static bool decode_takes(const LlmSpec& llm, uint32_t page_tokens);
  static bool prefill_takes(const LlmSpec& llm, uint32_t page_tokens, uint32_t pages);

  // Starts the step's work. REQUIRES: within the limits.
  void run(const DeviceRows& rows, const DevicePages& pages, cudaStream_t stream, OperationTimer* timer);

  // Of the last run, on the device.
  const float* logits() const { return logits_.as<float>(); }          // [samples][vocab]
  const uint32_t* sampled() const { return sampled_.as<uint32_t>(); }  // [samples]

 private:
  CudaForward(const DeviceWeights* weights, const ForwardLimits& limits)
      : weights_(*weights), llm_(weights->llm()), limits_(limits) {}
  Result<void> allocate();
  static uint32_t head_rows(uint32_t samples);
  void plan_attention(const DeviceRows& rows, const DevicePages& pages, cudaStream_t stream);
  void attention_block(uint32_t index, const DeviceRows& rows, const DevicePages& pages, cudaStream_t stream,
                       OperationTimer* timer);
  void attend(uint32_t index, const DeviceRows& rows, const DevicePages& pages, cudaStream_t stream,
              OperationTimer* timer);
  void append(const DeviceLayer& layer, const DeviceRows& rows, __nv_bfloat16* pool, cudaStream_t stream);
  void mlp_block(uint32_t index, uint32_t rows, cudaStream_t stream, OperationTimer* timer);
  void norm(const float* weight, const uint32_t* pick, uint32_t rows, cudaStream_t stream);
  DecodeArgs decode_args(const DeviceRows& rows, const __nv_bfloat16* pool) const;
  PrefillArgs prefill_args(const DeviceRows& rows, const __nv_bfloat16* pool) const;

  const DeviceWeights& weights_;
  const LlmSpec& llm_;
  const ForwardLimits limits_;
  std::unique_ptr<Matmul> matmul_;
  float rope_scale_ = 1;
  float attention_scale_ = 1;
  DecodeShape decode_;
  PrefillShape prefill_;
  Buffer inv_freq_;
  Buffer x_, normed_, qkv_, q_, attended_, gate_up_, activated_, logits_, sampled_;
  Buffer plan_, workspace_;  // attention_decode's
  Buffer prefill_plan_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_CUDA_FORWARD_H_
