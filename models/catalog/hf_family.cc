#include "models/catalog/hf_family.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace kvtwin {
namespace {

using Json = nlohmann::json;
constexpr uint32_t kLayersMax = 1000;  // as check_llm(); a damaged config may state billions

constexpr HfFamily kFamilies[] = {
    {.model_type = "llama", .family = "llama"},
    {.model_type = "mistral", .family = "mistral", .window = HfWindow::kAll},
    {.model_type = "qwen2", .family = "qwen2", .window = HfWindow::kQwen, .qkv_bias = true},
    {.model_type = "qwen2_vl", .family = "qwen2", .window = HfWindow::kQwen, .qkv_bias = true},
    {.model_type = "qwen3", .family = "qwen3", .window = HfWindow::kQwen, .qk_norm = true},
    {.model_type = "qwen3_vl_text", .family = "qwen3", .window = HfWindow::kQwen, .qk_norm = true},
    {.model_type = "qwen3_moe",
     .family = "qwen3_moe",
     .moe = HfMoe::kQwen,
     .window = HfWindow::kQwen,
     .qk_norm = true},
    {.model_type = "qwen3_vl_moe_text",
     .family = "qwen3_moe",
     .moe = HfMoe::kQwen,
     .window = HfWindow::kQwen,
     .qk_norm = true},
    {.model_type = "gpt_oss",
     .family = "gpt_oss",
     .moe = HfMoe::kLocal,
     .window = HfWindow::kListed,
     .attention_sinks = true,
     .expert_bias = true,
     .router_bias = true},
    {.model_type = "mixtral", .family = "mixtral", .moe = HfMoe::kLocal, .window = HfWindow::kAll},
    {.model_type = "phi3", .family = "phi3", .window = HfWindow::kAll},
    {.model_type = "glm4_moe",
     .family = "glm4_moe",
     .moe = HfMoe::kRouted,
     .output_has_bias = false,
     .router_bias = true},
    {.model_type = "minimax_m2",
     .family = "minimax_m2",
     .moe = HfMoe::kLocal,
     .qk_norm = true,
     .router_bias = true},
    {.model_type = "step3p7",
     .family = "step3p7",
     .moe = HfMoe::kRouted,
     .window = HfWindow::kListed,
     .router_bias = true},
    {.model_type = "gemma3_text",
     .family = "gemma3_text",
     .window = HfWindow::kAllButSixth,
     .qk_norm = true,
     .tied_embeddings = true,
     .not_computed = "gelu MLPs"},
    {.model_type = "llama4_text",
     .family = "llama4_text",
     .moe = HfMoe::kLlama4,
     .window = HfWindow::kChunks,
     .not_computed = "attention in chunks"},
};

void read_qwen_moe(Fields* fields, LlmSpec* m) {
  MoeSpec& moe = m->moe;
  moe.experts = fields->count("num_experts");
  moe.active = fields->count("num_experts_per_tok");
  moe.intermediate = fields->count("moe_intermediate_size");
  const uint32_t stride = fields->count("decoder_sparse_step", 1);
  std::vector<bool> dense(std::min(m->layers, kLayersMax), false);
  if (stride == 0) return fields->fail("\"decoder_sparse_step\" is 0", "1 or more is right");
  // Layer i is a mixture of experts if (i + 1) is a multiple of the step, unless it is listed as MLP only.
  for (uint32_t i = 0; i < dense.size(); ++i) dense[i] = (i + 1) % stride != 0;
  if (const Json* listed = fields->find("mlp_only_layers"); listed != nullptr && listed->is_array()) {
    for (const Json& layer : *listed) {
      if (!layer.is_number_unsigned() || layer.get<uint64_t>() >= dense.size()) {
        return fields->fail("\"mlp_only_layers\" lists what is no layer", "numbers of layers are right");
      }
      dense[layer.get<size_t>()] = true;
    }
  }
  for (uint32_t i = 0; i < dense.size(); ++i) {
    if (dense[i]) moe.dense_layers.push_back(i);
  }
}

void read_routed_moe(Fields* fields, LlmSpec* m) {
  MoeSpec& moe = m->moe;
  moe.experts =
      fields->count(fields->find("n_routed_experts") != nullptr ? "n_routed_experts" : "num_experts");
  moe.active = fields->count("num_experts_per_tok");
  moe.intermediate = fields->count("moe_intermediate_size");
  moe.shared = fields->count("n_shared_experts", 0);
  if (moe.shared > 0) moe.shared_intermediate = fields->count("share_expert_dim", moe.intermediate);
  const uint32_t dense = fields->count("first_k_dense_replace", 0);
  for (uint32_t i = 0; i < std::min({dense, m->layers, kLayersMax}); ++i) moe.dense_layers.push_back(i);
}

void read_llama4_moe(Fields* fields, LlmSpec* m) {
  MoeSpec& moe = m->moe;
  moe.experts = fields->count("num_local_experts");
  moe.active = fields->count("num_experts_per_tok");
  moe.intermediate = moe.shared_intermediate = m->intermediate;
  moe.shared = 1;
  m->intermediate = fields->count("intermediate_size_mlp");
  const uint32_t stride = fields->count("interleave_moe_layer_step", 1);
  if (stride == 0) return fields->fail("\"interleave_moe_layer_step\" is 0", "1 or more is right");
  for (uint32_t i = 0; i < std::min(m->layers, kLayersMax); ++i) {
    if ((i + 1) % stride != 0) moe.dense_layers.push_back(i);
  }
}

bool slides(const HfFamily& family, uint32_t layer, uint32_t first, uint32_t pattern) {
  switch (family.window) {
    case HfWindow::kAll:
      return true;
    case HfWindow::kQwen:
      return layer >= first;
    case HfWindow::kAllButSixth:
    case HfWindow::kChunks:
      return (layer + 1) % pattern != 0;
    case HfWindow::kNone:
    case HfWindow::kListed:
      break;
  }
  return false;
}

// The width of the window in tokens; 0: the model has none.
uint32_t window_tokens(const HfFamily& family, Fields* fields) {
  if (family.window == HfWindow::kNone) return 0;
  if (family.window == HfWindow::kChunks) return fields->count("attention_chunk_size", 0);
  const uint32_t window = fields->count("sliding_window", 0);
  return fields->flag("use_sliding_window", family.window != HfWindow::kQwen) ? window : 0;
}

}  // namespace

const HfFamily* find_hf_family(std::string_view model_type) {
  for (const HfFamily& family : kFamilies) {
    if (family.model_type == model_type) return &family;
  }
  return nullptr;
}

std::string hf_family_list() {
  std::string text;
  for (const HfFamily& family : kFamilies)
    text += (text.empty() ? "" : ", ") + std::string(family.model_type);
  return text;
}

void read_hf_moe(const HfFamily& family, Fields* fields, LlmSpec* m) {
  switch (family.moe) {
    case HfMoe::kNone:
      return;
    case HfMoe::kQwen:
      read_qwen_moe(fields, m);
      break;
    case HfMoe::kLocal:
      m->moe.experts = fields->count("num_local_experts");
      m->moe.active = fields->count("num_experts_per_tok");
      m->moe.intermediate = m->intermediate;
      break;
    case HfMoe::kRouted:
      read_routed_moe(fields, m);
      break;
    case HfMoe::kLlama4:
      read_llama4_moe(fields, m);
      break;
  }
  m->moe.expert_bias = family.expert_bias;
  m->moe.router_bias = family.router_bias;
}

void read_hf_window(const HfFamily& family, Fields* fields, LlmSpec* m) {
  const uint32_t window = window_tokens(family, fields);
  if (window == 0) return;
  const uint32_t layers = std::min(m->layers, kLayersMax);
  const Json* types = fields->find("layer_types");
  const Json* rotated = family.window == HfWindow::kChunks ? fields->find("no_rope_layers") : nullptr;
  for (const Json* list : {types, rotated}) {
    if (list == nullptr || (list == rotated && list->empty())) continue;
    if (!list->is_array() || list->size() != m->layers) {
      return fields->fail(
          fmt::format("\"{}\" does not list every layer", list == types ? "layer_types" : "no_rope_layers"),
          "one entry per layer is right");
    }
  }
  if (rotated != nullptr && rotated->empty()) rotated = nullptr;
  // The first max_window_layers layers of Qwen2 and Qwen3 have full attention.
  const uint32_t first = family.window == HfWindow::kQwen ? fields->count("max_window_layers", layers) : 0;
  const uint32_t pattern =
      family.window == HfWindow::kChunks ? 4 : std::max(1u, fields->count("sliding_window_pattern", 6));
  for (uint32_t i = 0; i < layers; ++i) {
    bool sliding = false;
    if (types != nullptr) {
      sliding = (*types)[i] == "sliding_attention" || (*types)[i] == "chunked_attention";
    } else if (rotated != nullptr) {
      sliding = (*rotated)[i] == 1;  // layers without rotation see the whole context
    } else {
      sliding = slides(family, i, first, pattern);
    }
    if (sliding) m->sliding_layers.push_back(i);
  }
  if (!m->sliding_layers.empty()) m->window = window;
}

}  // namespace kvtwin
