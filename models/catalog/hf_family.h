// HfFamily: what a model_type of Hugging Face implies about the geometry and its config.json does not state.

#ifndef KVTWIN_MODELS_CATALOG_HF_FAMILY_H_
#define KVTWIN_MODELS_CATALOG_HF_FAMILY_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "models/catalog/json_fields.h"
#include "models/catalog/llm.h"

namespace kvtwin {

// Where a family states its experts.
enum class HfMoe : uint8_t {
  kNone,
  kQwen,    // num_experts of moe_intermediate_size, in layers by decoder_sparse_step and mlp_only_layers
  kLocal,   // num_local_experts of intermediate_size, in every layer
  kRouted,  // routed and shared experts of moe_intermediate_size, after first_k_dense_replace dense layers
  kLlama4,  // num_local_experts and a shared one, in every interleave_moe_layer_step-th layer
};

// Which layers see the latest `sliding_window` tokens only, unless layer_types lists them.
enum class HfWindow : uint8_t {
  kNone,
  kQwen,         // those after max_window_layers, if use_sliding_window
  kAll,          // all
  kListed,       // none
  kAllButSixth,  // all but every sliding_window_pattern-th, 6 by default
  kChunks,       // all but every fourth, or as no_rope_layers lists them; the window is attention_chunk_size
};

struct HfFamily {
  const char* model_type;
  const char* family;  // LlmSpec::family: text parts of vision models are those of another family
  HfMoe moe = HfMoe::kNone;
  HfWindow window = HfWindow::kNone;
  bool qkv_bias = false;        // always has biases, and its config does not mention them
  bool output_has_bias = true;  // attention_bias is of the output projection too
  bool qk_norm = false;         // unless use_qk_norm says otherwise
  bool attention_sinks = false;
  bool expert_bias = false;
  bool router_bias = false;
  bool tied_embeddings = false;   // unless tie_word_embeddings says otherwise
  const char* not_computed = "";  // LlmSpec::not_computed
};

// The family of a model_type; null: not known.
const HfFamily* find_hf_family(std::string_view model_type);
// The known model_types, for an error's hint.
std::string hf_family_list();

// Read `moe`, and the sliding layers, of a model whose other fields have been read.
void read_hf_moe(const HfFamily& family, Fields* fields, LlmSpec* m);
void read_hf_window(const HfFamily& family, Fields* fields, LlmSpec* m);

// The mechanisms of a config that LlmSpec cannot express, joined by "and"; "": none.
std::string missing_mechanisms(const Fields& fields);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_CATALOG_HF_FAMILY_H_
