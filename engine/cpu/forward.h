// Forward is the forward pass of a Llama-family model in fp32. It covers everything but attention over the KV
// cache, which is behind LayerAttention, because KV placement and reads are what kvtwin varies.
//
//   x = embedding[token]
//   each layer:  q, k, v = W norm(x) + b, q and k normed per head (Qwen3);  x += Wo attend(q, k, v);
//                x += down(silu(gate(norm(x))) * up(norm(x)))
//   logits = lm_head(norm(x)), of the rows that sample
//
// Rows affect one another only through KV: the values of a token do not depend, to the bit, on the other
// tokens of the step (kernels/dense/gemm.h).

#ifndef KVTWIN_ENGINE_CPU_FORWARD_H_
#define KVTWIN_ENGINE_CPU_FORWARD_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/dense/gemm.h"
#include "models/catalog/rope.h"
#include "models/weights/weights.h"

namespace kvtwin::cpu {

// Attention of one layer over all rows of a batch. The caller of Forward and the implementation agree on the
// meaning of rows.
class LayerAttention {
 public:
  virtual ~LayerAttention() = default;
  // Called before attend(): the input of the layer's projections, x [rows][hidden], normed.
  virtual void hidden(uint32_t /*layer*/, const float* /*x*/) {}
  // Called before the rotation, which the implementation applies: some methods store unrotated keys.
  //   q, out [rows][query_heads][head_dim]; k, v [rows][kv_heads][head_dim]; q and k may be modified.
  virtual void attend(uint32_t layer, float* q, float* k, const float* v, float* out) = 0;
};

class Forward {
 public:
  // `weights` must outlive this. Matrices are stored in fp32 if all of them fit `keep_bytes_max`; otherwise
  // each is converted when it is used, with bit-identical results.
  explicit Forward(const ModelWeights* weights, uint64_t keep_bytes_max = uint64_t{8} << 30);

  const LlmSpec& llm() const { return weights_->llm(); }
  const RopeFrequencies& rope() const { return rope_; }

  // Returns the input rows [tokens][hidden] of the first layer. REQUIRES: tokens are below vocab.
  std::vector<float> embed(std::span<const uint32_t> tokens) const;
  // Runs rows through all layers, without sampling.
  void pass(std::vector<float> rows, LayerAttention* attention);

  // Runs the rows of one step. `sampling` lists rows, ascending; logits become [sampling.size()][vocab].
  // REQUIRES: tokens are below vocab.
  void run(std::span<const uint32_t> tokens, std::span<const uint32_t> sampling, LayerAttention* attention,
           std::vector<float>* logits);

 private:
  struct Linear {
    const TensorView* weight = nullptr;
    std::vector<float> bias;
    kernels::PackedMatrix retained;
  };
  struct Layer {
    std::vector<float> attention_norm, mlp_norm, q_norm, k_norm;
    Linear q, k, v, o, gate, up, down;
  };

  Linear linear(const TensorView& weight, const TensorView& bias) const;
  void apply(const Linear& linear, const float* x, uint32_t rows, std::vector<float>* y);
  void attention_block(uint32_t index, uint32_t rows, LayerAttention* attention);
  void mlp_block(uint32_t index, uint32_t rows);
  void norm(const std::vector<float>& weight, const float* x, uint64_t rows, uint32_t width,
            float* out) const;

  const ModelWeights* const weights_;
  const RopeFrequencies rope_;
  bool keep_ = false;
  std::vector<Layer> layers_;
  std::vector<float> final_norm_;
  Linear lm_head_;
  // Buffers of the current step.
  std::vector<float> x_, normed_, q_, k_, v_, attended_, gate_, up_, added_;
  kernels::PackedMatrix widened_;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_FORWARD_H_
