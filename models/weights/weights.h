// ModelWeights: the tensors of a dense decoder, by role.
//
// They are loaded from a checkpoint, whose files stay mapped as the storage, or drawn from a seed. Matrices
// are [out][in], as Hugging Face stores them: y = W x.
//
// Random weights are a pure function of (seed, name of the tensor, index), drawn with integers and rounded to
// bf16: the same bytes on every machine, in any order. Matrices have deviation 1/sqrt(in), so that
// activations keep their magnitude. Matrices that write to the residual stream are smaller by 1/sqrt(2
// layers). Query weights (with q/k norm: its gain) are twice as large, so that attention distinguishes KV
// entries.

#ifndef KVTWIN_MODELS_WEIGHTS_WEIGHTS_H_
#define KVTWIN_MODELS_WEIGHTS_WEIGHTS_H_

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "models/catalog/llm.h"
#include "models/weights/safetensors.h"

namespace kvtwin {

// Tensors of one layer. Biases and q/k norms are not present() in models without them.
struct LayerWeights {
  TensorView attention_norm;          // [hidden]
  TensorView q, k, v;                 // [heads * head_dim][hidden]
  TensorView q_bias, k_bias, v_bias;  // [heads * head_dim]
  TensorView q_norm, k_norm;          // [head_dim], of each head, before the rotation
  TensorView o, o_bias;               // [hidden][query_heads * head_dim], [hidden]
  TensorView mlp_norm;                // [hidden]
  TensorView gate, up, down;          // [intermediate][hidden] twice, [hidden][intermediate]
  TensorView gate_bias, up_bias, down_bias;
};

class ModelWeights {
 public:
  // Draws all tensors. REQUIRES: check_dense(llm).
  static ModelWeights random(const LlmSpec& llm, uint64_t seed);
  // The same, but matrices have a `drawing` and no data; they are drawn where they are needed.
  static ModelWeights random_outline(const LlmSpec& llm, uint64_t seed);
  // Loads the tensors that `llm` needs and ignores others. Fails if one is missing, has another shape or is
  // not of floating point, or if `llm` is not dense.
  static Result<ModelWeights> load(const LlmSpec& llm, const std::string& path);

  const LlmSpec& llm() const { return llm_; }
  const TensorView& embedding() const { return embedding_; }    // [vocab][hidden]
  const TensorView& final_norm() const { return final_norm_; }  // [hidden]
  const TensorView& lm_head() const {
    return llm_.tied_embeddings ? embedding_ : lm_head_;
  }  // [vocab][hidden]
  const LayerWeights& layer(uint32_t index) const { return layers_[index]; }

  // Every tensor with its name in Hugging Face checkpoints, in a fixed order.
  std::vector<NamedTensor> named() const;

 private:
  explicit ModelWeights(const LlmSpec& llm) : llm_(llm), layers_(llm.layers) {}
  static ModelWeights draw_tensors(const LlmSpec& llm, uint64_t seed, bool matrices);

  LlmSpec llm_;
  TensorView embedding_, final_norm_, lm_head_;
  std::vector<LayerWeights> layers_;
  std::unique_ptr<Checkpoint> checkpoint_;    // storage of loaded tensors
  std::vector<std::vector<uint16_t>> drawn_;  // storage of drawn tensors, bf16
  std::deque<TensorDraw> drawings_;           // of matrices that were not drawn
};

// Checks that our engines can compute this model: llama, qwen2, qwen3 or mistral without experts, sliding
// windows or attention sinks, at most 8 query heads per KV head, RoPE default, llama3, linear or yarn.
Result<void> check_dense(const LlmSpec& llm, const std::string& where);

// Draws elements [first, first + count) as bf16, on one thread.
void draw_bf16(const TensorDraw& drawing, uint64_t first, uint64_t count, uint16_t* out);

// The config.json of `llm`, as import_hf_config() and transformers read it. REQUIRES: check_dense(llm).
std::string hf_config_json(const LlmSpec& llm);
// Writes config.json and model.safetensors into the folder, and creates the folder if needed.
Result<void> write_model(const ModelWeights& weights, const std::string& folder);
// Reads both from a folder that write_model() or transformers wrote.
Result<ModelWeights> load_model(const std::string& folder);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_WEIGHTS_WEIGHTS_H_
