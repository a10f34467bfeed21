// DeviceWeights: a model's weights on the GPU. Matrices and per-head norms are bf16; weights that scale or
// shift the residual stream are fp32.
//
// They are one allocation. A checkpoint's files are streamed through two pinned buffers; random weights are
// drawn on the device (kernels/dense/dense_cuda.h). Matrices with a common input are adjacent, so that one
// product computes q, k and v, and one gate and up.

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
  // Fails if there is not enough memory.
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
