// DeviceWeights: a model's values on the GPU. Matrices and what scales heads are bf16, what scales or shifts
// the residual stream is fp32.
//
// One piece of memory. A checkpoint's files are streamed through two pinned buffers; random weights are drawn
// where they lie (kernels/dense/dense_cuda.h). Matrices that multiply the same input lie one behind the
// other, so that one product does for q, k, v, and one for gate and up.

#ifndef KVTWIN_ENGINE_CUDA_DEVICE_DEVICE_WEIGHTS_H_
#define KVTWIN_ENGINE_CUDA_DEVICE_DEVICE_WEIGHTS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cuda/device/matmul.h"
#include "models/weights/weights.h"

namespace kvtwin::cuda {

struct DeviceLayer {
  const float* attention_norm = nullptr;  // [hidden]
  const float* mlp_norm = nullptr;
  const __nv_bfloat16* q_norm = nullptr;  // [head_dim], or null
  const __nv_bfloat16* k_norm = nullptr;
  Matrix qkv, o, gate_up, down;
  const float* o_bias = nullptr;  // [hidden], or null: added to the residual stream, which is fp32
  const float* down_bias = nullptr;
};

class DeviceWeights {
 public:
  // Wrong: no room for them.
  static Result<std::unique_ptr<DeviceWeights>> make(const ModelWeights& weights);

  const LlmSpec& llm() const { return llm_; }
  const DeviceLayer& layer(uint32_t index) const { return layers_[index]; }
  const __nv_bfloat16* embedding() const { return embedding_; }  // [vocab][hidden]
  const float* final_norm() const { return final_norm_; }
  const Matrix& lm_head() const { return lm_head_; }
  uint64_t bytes() const { return memory_.bytes(); }

 private:
  class Upload;
  explicit DeviceWeights(const LlmSpec& llm) : llm_(llm), layers_(llm.layers) {}
  Result<void> place(const ModelWeights& weights, Upload* upload);

  const LlmSpec llm_;
  Buffer memory_;
  std::vector<DeviceLayer> layers_;
  const __nv_bfloat16* embedding_ = nullptr;
  const float* final_norm_ = nullptr;
  Matrix lm_head_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_DEVICE_DEVICE_WEIGHTS_H_
