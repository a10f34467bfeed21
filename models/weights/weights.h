// ModelWeights: the values of a dense decoder's tensors, by role.
//
// Loaded from a checkpoint (its files stay mapped and are the storage) or drawn from a seed. Matrices are
// [out][in], as Hugging Face stores them: y = W x.
//
// Random weights are a pure function of (seed, tensor's name, index), drawn with integers and rounded to
// bf16: the same bytes on every machine, whatever the order. Matrices have deviation 1/sqrt(in), so that
// activations keep their size; those that write to the residual stream are 1/sqrt(2 layers) smaller;
// query weights (with q/k norm: its gain) are twice as large, so that attention prefers some KV entries.

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

// Biases and q/k norms are not present() in models that have none. A tensor's shape is in the comment.
struct LayerWeights {
  TensorView attention_norm;          // [hidden]
  TensorView q, k, v;                 // [heads * head_dim][hidden]
  TensorView q_bias, k_bias, v_bias;  // [heads * head_dim]
  TensorView q_norm, k_norm;          // [head_dim], of each head, before the rotation
  TensorView o, o_bias;               // [hidden][query_heads * head_dim], [hidden]
  TensorView mlp_norm;                // [hidden]
  TensorView gate, up, down;          // [intermediate][hidden], likewise, [hidden][intermediate]
  TensorView gate_bias, up_bias, down_bias;
};

class ModelWeights {
 public:
  // Draws everything. REQUIRES: check_dense(llm).
  static ModelWeights random(const LlmSpec& llm, uint64_t seed);
  // The same values, matrices left to whoever needs them: they
  // have a `drawing` and no data.
  static ModelWeights random_outline(const LlmSpec& llm, uint64_t seed);
  // Takes what `llm` needs; other tensors are ignored. Wrong: a tensor is missing, of another shape, or no
  // float; `llm` is not dense.
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
  std::unique_ptr<Checkpoint> checkpoint_;    // what the views point into, or
  std::vector<std::vector<uint16_t>> drawn_;  // bf16
  std::deque<TensorDraw> drawings_;           // of matrices that were not drawn
};

// Whether it is one of the models whose values we compute: llama, qwen2, qwen3 and mistral without
// experts, sliding windows or attention sinks, at most 8 query heads on a KV head, RoPE default, llama3,
// linear or yarn.
Result<void> check_dense(const LlmSpec& llm, const std::string& where);

// Elements [first, first + count) as they are drawn, bf16. One thread.
void draw_bf16(const TensorDraw& drawing, uint64_t first, uint64_t count, uint16_t* out);

// config.json for `llm`, as import_hf_config() and transformers read it. REQUIRES: check_dense(llm).
std::string hf_config_json(const LlmSpec& llm);
// Writes config.json and model.safetensors into the folder, which is made if need be.
Result<void> write_model(const ModelWeights& weights, const std::string& folder);
// Reads both: a folder as write_model() or transformers leaves it.
Result<ModelWeights> load_model(const std::string& folder);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_WEIGHTS_WEIGHTS_H_
