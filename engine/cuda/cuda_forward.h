// The forward pass of engine/cpu/forward.h on a GPU, everything but attention's KV, which is behind
// LayerAttention (kv_cache.h): weights and what matrices multiply in bf16, the residual stream, sums and
// logits in fp32.
//
// It walks the step's list of operations (engine/steps/step_list.h): one stream, seven launches a layer
// besides attention, none of which depends on lengths; nothing waits for the host. The matrix products that
// write the residual stream add to it.

#ifndef KVTWIN_ENGINE_CUDA_CUDA_FORWARD_H_
#define KVTWIN_ENGINE_CUDA_CUDA_FORWARD_H_

#include <cstdint>
#include <memory>
#include <optional>

#include "engine/cuda/device/device_weights.h"
#include "engine/cuda/device/matmul.h"
#include "engine/cuda/kv_cache.h"

namespace kvtwin::cuda {

struct ForwardLimits {
  uint32_t rows = 0;     // of one step
  uint32_t samples = 0;  // the same for samples
};

class CudaForward {
 public:
  // `weights` must outlive this. Wrong: no room for activations.
  static Result<std::unique_ptr<CudaForward>> make(const DeviceWeights* weights, const ForwardLimits& limits);

  // Starts the step's work. REQUIRES: within the limits.
  void run(const DeviceRows& rows, LayerAttention* attention, const StepStream& on);

  // Runs rows through all layers: those of rows.tokens, or, if `values` is not null, rows as they enter the
  // first layer, [rows.padded_rows][hidden] on the host. REQUIRES: nothing is sampled.
  void pass(const DeviceRows& rows, const float* values, LayerAttention* attention, const StepStream& on);

  // For those that have products of their own, on the same stream: its workspace is shared.
  Matmul* matmul() { return matmul_.get(); }
  const DeviceWeights& weights() const { return weights_; }

  // Of the last run, on the device.
  const float* logits() const { return logits_.as<float>(); }  // [samples][vocab]
  // [samples], in pinned memory: the host may read them once the step has ended.
  const uint32_t* sampled() const { return sampled_.as<uint32_t>(); }

 private:
  CudaForward(const DeviceWeights* weights, const ForwardLimits& limits)
      : weights_(*weights), llm_(weights->llm()), limits_(limits) {}
  Result<void> allocate();
  static uint32_t head_rows(uint32_t samples);
  void walk(const DeviceRows& rows, const float* values, LayerAttention* attention, const StepStream& on);
  // Starts an operation of the model. `next`: that which follows it in the list.
  void start(const ListedOperation& one, Operation next, const DeviceRows& rows, const float* values,
             LayerAttention* attention, const StepStream& on);
  void embed_rows(const DeviceRows& rows, const float* values, cudaStream_t stream);
  void start_norm(uint32_t layer, Operation product, const DeviceRows& rows, cudaStream_t stream);
  void bias(const float* bias, uint32_t rows, cudaStream_t stream);
  void norm(const float* weight, const uint32_t* pick, uint32_t rows, cudaStream_t stream);

  const DeviceWeights& weights_;
  const LlmSpec& llm_;
  const ForwardLimits limits_;
  std::unique_ptr<Matmul> matmul_;
  std::optional<StepListSpec> spec_;  // of list_
  StepList list_;
  Buffer x_, normed_, qkv_, q_, attended_, gate_up_, activated_, logits_, sampled_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_CUDA_FORWARD_H_
