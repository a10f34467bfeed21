// A model as a folder: config.json and its weights.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "models/catalog/hf_config.h"
#include "models/files/textproto.h"
#include "models/weights/weights.h"

namespace kvtwin {

Result<void> check_dense(const LlmSpec& m, const std::string& where) {
  if (Result<void> ok = check_llm(m, where); !ok) return ok;
  static const std::vector<std::string> kFamilies = {"llama", "qwen2", "qwen3", "mistral"};
  const auto no = [&](std::string what, std::string hint) {
    return make_error(where, std::move(what),
                      std::move(hint) + "; the simulated backend knows it: --backend=sim");
  };
  if (std::find(kFamilies.begin(), kFamilies.end(), m.family) == kFamilies.end())
    return no(fmt::format("family \"{}\" is not computed", m.family), "llama, qwen2, qwen3 and mistral are");
  if (!m.not_computed.empty())
    return no(fmt::format("has {}", m.not_computed),
              "llama, qwen2, qwen3 and mistral as they are published are computed");
  if (m.moe.experts > 0) return no("has experts", "models without are computed");
  if (!m.sliding_layers.empty())
    return no(fmt::format("has {} layers with a sliding window", m.sliding_layers.size()),
              "full attention is computed");
  if (m.attention_sinks) return no("has attention sinks", "models without are computed");
  if (m.query_heads / m.kv_heads > 8)
    return no(fmt::format("{} query heads share a KV head", m.query_heads / m.kv_heads),
              "at most 8 are computed");
  if (m.head_dim % 2 != 0 || m.head_dim > 512)
    return no(fmt::format("head_dim is {}", m.head_dim), "an even one up to 512 is computed");
  const RopeSpec& rope = m.rope;
  if (!(rope.theta > 1))
    return make_error(where, fmt::format("rope theta is {}", rope.theta), "more than 1 is right");
  if (!(m.norm_eps >= 0 && m.norm_eps < 1))
    return make_error(where, fmt::format("norm_eps is {}", m.norm_eps), "from 0 to 1 is right");
  if (rope.scaling.empty()) return {};
  if (rope.scaling != "llama3" && rope.scaling != "yarn" && rope.scaling != "linear")
    return no(fmt::format("rope scaling \"{}\" is not computed", rope.scaling),
              "llama3, yarn and linear are");
  if (!(rope.factor >= 1))
    return make_error(where, fmt::format("rope factor is {}", rope.factor), "1 or more is right");
  if (rope.scaling == "linear") return {};
  if (rope.original_context_window == 0)
    return make_error(where, fmt::format("rope scaling {} has no original context window", rope.scaling),
                      "original_max_position_embeddings in a config.json");
  if (rope.scaling == "llama3" && !(rope.low_freq_factor > 0 && rope.high_freq_factor > rope.low_freq_factor))
    return make_error(where, "rope's frequency factors are out of order",
                      "0 < low_freq_factor < high_freq_factor");
  if (rope.scaling == "yarn" && !(rope.beta_slow > 0 && rope.beta_fast > rope.beta_slow))
    return make_error(where, "rope's betas are out of order", "0 < beta_slow < beta_fast");
  return {};
}

std::string hf_config_json(const LlmSpec& m) {
  nlohmann::ordered_json out;
  const char* const architecture = m.family == "llama"   ? "LlamaForCausalLM"
                                   : m.family == "qwen2" ? "Qwen2ForCausalLM"
                                   : m.family == "qwen3" ? "Qwen3ForCausalLM"
                                                         : "MistralForCausalLM";
  out["architectures"] = {architecture};
  out["model_type"] = m.family;
  out["num_hidden_layers"] = m.layers;
  out["num_attention_heads"] = m.query_heads;
  out["num_key_value_heads"] = m.kv_heads;
  out["head_dim"] = m.head_dim;
  out["hidden_size"] = m.hidden;
  out["intermediate_size"] = m.intermediate;
  out["vocab_size"] = m.vocab;
  out["max_position_embeddings"] = m.context_window;
  out["rms_norm_eps"] = m.norm_eps;
  out["hidden_act"] = "silu";
  out["tie_word_embeddings"] = m.tied_embeddings;
  out["attention_bias"] = m.output_bias;
  out["mlp_bias"] = m.mlp_bias;
  out["torch_dtype"] = "bfloat16";
  if (m.family == "mistral") out["sliding_window"] = nullptr;
  out["rope_theta"] = m.rope.theta;
  if (!m.rope.scaling.empty()) {
    nlohmann::ordered_json rope;
    rope["rope_type"] = m.rope.scaling;
    rope["factor"] = m.rope.factor;
    if (m.rope.original_context_window > 0)
      rope["original_max_position_embeddings"] = m.rope.original_context_window;
    if (m.rope.scaling == "llama3") {
      rope["low_freq_factor"] = m.rope.low_freq_factor;
      rope["high_freq_factor"] = m.rope.high_freq_factor;
    }
    if (m.rope.scaling == "yarn") {
      rope["beta_fast"] = m.rope.beta_fast;
      rope["beta_slow"] = m.rope.beta_slow;
      if (m.rope.attention_factor > 0) rope["attention_factor"] = m.rope.attention_factor;
      rope["truncate"] = m.rope.truncate;
    }
    out["rope_scaling"] = rope;
  }
  return out.dump(2) + "\n";
}

Result<void> write_model(const ModelWeights& weights, const std::string& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  const std::string config = (std::filesystem::path(folder) / "config.json").string();
  std::ofstream file(config, std::ios::binary);
  file << hf_config_json(weights.llm());
  file.close();
  if (!file) return make_error(config, "cannot be written", "check the folder and its permissions");
  return write_safetensors((std::filesystem::path(folder) / "model.safetensors").string(), weights.named());
}

Result<ModelWeights> load_model(const std::string& folder) {
  const std::string config = (std::filesystem::path(folder) / "config.json").string();
  const Result<std::string> text = read_text_file(config, size_t{1} << 20);
  if (!text) return tl::unexpected<Error>(text.error());
  Result<LlmSpec> llm = import_hf_config(*text, config);
  if (!llm) return tl::unexpected<Error>(llm.error());
  llm->name = std::filesystem::path(folder).filename().string();
  llm->source = config;
  return ModelWeights::load(*llm, folder);
}

}  // namespace kvtwin
