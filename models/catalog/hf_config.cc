#include "models/catalog/hf_config.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

namespace kvtwin {
namespace {

using Json = nlohmann::json;

// Reads fields of one JSON object and records the first error, so that callers can read on without checks.
class Fields {
 public:
  Fields(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const Json* find(const char* key) const {
    const auto it = object_.find(key);
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }
  uint32_t count(const char* key, std::optional<uint32_t> absent = {}) {
    const Json* value = find(key);
    if (value == nullptr) {
      if (!absent) fail(fmt::format("no \"{}\"", key), "this model family needs it");
      return absent.value_or(0);
    }
    if (!value->is_number_unsigned() || value->get<uint64_t>() > UINT32_MAX) {
      fail(fmt::format("\"{}\" is {}", key, clip(*value)), "a whole number below 2^32 is right");
      return 0;
    }
    return value->get<uint32_t>();
  }
  double real(const char* key, double absent) {
    const Json* value = find(key);
    if (value == nullptr) return absent;
    if (value->is_number() && std::isfinite(value->get<double>())) return value->get<double>();
    fail(fmt::format("\"{}\" is {}", key, clip(*value)), "a number is right");
    return absent;
  }
  bool flag(const char* key, bool absent) {
    const Json* value = find(key);
    if (value == nullptr) return absent;
    if (value->is_boolean()) return value->get<bool>();
    fail(fmt::format("\"{}\" is {}", key, clip(*value)), "true or false is right");
    return absent;
  }
  std::string text(const char* key) {
    const Json* value = find(key);
    if (value == nullptr) return {};
    if (value->is_string()) return value->get<std::string>();
    fail(fmt::format("\"{}\" is {}", key, clip(*value)), "a string is right");
    return {};
  }
  void fail(std::string what, std::string hint) {
    if (!error_) error_ = Error{where_, std::move(what), std::move(hint)};
  }
  const std::optional<Error>& first_error() const { return error_; }

 private:
  static std::string clip(const Json& value) {
    if (value.is_structured()) return value.is_array() ? "an array" : "an object";  // dump() recurses
    const std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
    return text.size() <= 60 ? text : text.substr(0, 57) + "...";
  }
  const Json& object_;
  std::string where_;
  std::optional<Error> error_;
};

void read_rope(Fields& fields, const std::string& where, LlmSpec* m) {
  // transformers 5 writes everything into rope_parameters; older versions have rope_theta and rope_scaling.
  const char* key = fields.find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  m->rope.theta = fields.real("rope_theta", 10000);
  const Json* scaling = fields.find(key);
  if (scaling == nullptr) return;
  if (!scaling->is_object())
    return fields.fail(fmt::format("\"{}\" is no object", key), "an object or null is right");
  Fields rope(*scaling, where + ": " + key);
  m->rope.theta = rope.real("rope_theta", m->rope.theta);
  m->rope.scaling = rope.text("rope_type");
  if (m->rope.scaling.empty()) m->rope.scaling = rope.text("type");
  if (m->rope.scaling == "default") m->rope.scaling.clear();
  m->rope.factor = rope.real("factor", 1);
  m->rope.original_context_window = rope.count("original_max_position_embeddings", 0);
  m->rope.low_freq_factor = rope.real("low_freq_factor", 0);
  m->rope.high_freq_factor = rope.real("high_freq_factor", 0);
  m->rope.beta_fast = rope.real("beta_fast", 32);
  m->rope.beta_slow = rope.real("beta_slow", 1);
  m->rope.attention_factor = rope.real("attention_factor", 0);
  m->rope.truncate = rope.flag("truncate", true);
  if (const auto& first = rope.first_error()) fields.fail(first->what, first->hint);
}

void read_moe(Fields& fields, LlmSpec* m) {
  MoeSpec& moe = m->moe;
  if (m->family == "gpt_oss") {
    moe.experts = fields.count("num_local_experts");
    moe.active = fields.count("num_experts_per_tok");
    moe.intermediate = m->intermediate;
    moe.expert_bias = moe.router_bias = true;
    return;
  }
  if (m->family != "qwen3_moe") return;
  moe.experts = fields.count("num_experts");
  moe.active = fields.count("num_experts_per_tok");
  moe.intermediate = fields.count("moe_intermediate_size");
  const uint32_t stride = fields.count("decoder_sparse_step", 1);
  std::vector<bool> dense(std::min(m->layers, 1000u), false);
  if (stride == 0) return fields.fail("\"decoder_sparse_step\" is 0", "1 or more is right");
  // Layer i is a mixture of experts if (i + 1) is a multiple of the step, unless it is listed as MLP only.
  for (uint32_t i = 0; i < dense.size(); ++i) dense[i] = (i + 1) % stride != 0;
  if (const Json* listed = fields.find("mlp_only_layers"); listed != nullptr && listed->is_array()) {
    for (const Json& layer : *listed) {
      if (!layer.is_number_unsigned() || layer.get<uint64_t>() >= dense.size()) {
        return fields.fail("\"mlp_only_layers\" lists what is no layer", "numbers of layers are right");
      }
      dense[layer.get<size_t>()] = true;
    }
  }
  for (uint32_t i = 0; i < dense.size(); ++i) {
    if (dense[i]) moe.dense_layers.push_back(i);
  }
}

void read_window(Fields& fields, LlmSpec* m) {
  const uint32_t window = fields.count("sliding_window", 0);
  const bool used = fields.flag("use_sliding_window", m->family == "mistral" || m->family == "gpt_oss");
  if (window == 0 || !used) return;
  const Json* types = fields.find("layer_types");
  const uint32_t layers = std::min(m->layers, 1000u);
  if (types != nullptr) {
    if (!types->is_array() || types->size() != m->layers) {
      return fields.fail("\"layer_types\" does not list every layer", "one entry per layer is right");
    }
    for (uint32_t i = 0; i < layers; ++i) {
      if ((*types)[i] == "sliding_attention") m->sliding_layers.push_back(i);
    }
  } else {
    // The first max_window_layers layers of Qwen2 and Qwen3 have full attention.
    const uint32_t first = m->family == "mistral" ? 0 : fields.count("max_window_layers", layers);
    for (uint32_t i = first; i < layers; ++i) m->sliding_layers.push_back(i);
  }
  if (!m->sliding_layers.empty()) m->window = window;
}

void read_quantisation(Fields& fields, const std::string& where, LlmSpec* m) {
  const Json* config = fields.find("quantization_config");
  if (config == nullptr) return;
  if (!config->is_object()) return fields.fail("\"quantization_config\" is no object", "an object is right");
  Fields q(*config, where + ": quantization_config");
  const std::string method = q.text("quant_method");
  if (method == "mxfp4") {
    m->expert_weights = {NumberFormat::kMxfp4, 32, 8, 0};  // OCP MX: 32 values share an 8-bit exponent
  } else if (method == "fp8" || method == "fbgemm_fp8") {
    m->weights = m->expert_weights = {NumberFormat::kFp8, 0, 0, 0};
  } else if ((method == "gptq" || method == "awq") && q.count("bits", 4) == 4) {
    m->weights = m->expert_weights = {NumberFormat::kInt4, q.count("group_size", 128), 16, 4};
  } else {
    fields.fail(fmt::format("quant_method \"{}\" is not known", method.substr(0, 40)),
                "mxfp4, fp8, gptq or awq with 4 bits; or remove it and set weights by hand");
  }
  if (const auto& first = q.first_error()) fields.fail(first->what, first->hint);
}

Result<LlmSpec> import_object(const Json& config, const Json& outer, const std::string& where) {
  Fields fields(config, where), outer_fields(outer, where);
  LlmSpec m;
  m.family = fields.text("model_type");
  if (m.family == "qwen3_vl_text") m.family = "qwen3";
  const bool known = m.family == "llama" || m.family == "qwen2" || m.family == "qwen3" ||
                     m.family == "qwen3_moe" || m.family == "mistral" || m.family == "gpt_oss";
  if (!known && !fields.first_error()) {
    return make_error(where, fmt::format("model_type \"{}\" is not understood", m.family.substr(0, 40)),
                      "llama, qwen2, qwen3, qwen3_moe, mistral, gpt_oss and qwen3_vl are");
  }
  m.layers = fields.count("num_hidden_layers");
  m.query_heads = fields.count("num_attention_heads");
  m.kv_heads = fields.count("num_key_value_heads", m.query_heads);
  m.hidden = fields.count("hidden_size");
  m.intermediate = fields.count("intermediate_size");
  m.vocab = fields.count("vocab_size");
  m.context_window = fields.count("max_position_embeddings");
  m.head_dim = fields.count("head_dim", m.query_heads == 0 ? 0 : m.hidden / m.query_heads);
  m.tied_embeddings = fields.flag("tie_word_embeddings", outer_fields.flag("tie_word_embeddings", false));
  const bool bias = fields.flag("attention_bias", false);
  // Qwen2 always has biases, and its config does not mention them.
  m.qkv_bias = bias || m.family == "qwen2";
  m.output_bias = bias;
  m.mlp_bias = fields.flag("mlp_bias", false);
  m.qk_norm = m.family == "qwen3" || m.family == "qwen3_moe";
  m.attention_sinks = m.family == "gpt_oss";
  const std::string act = fields.text("hidden_act");
  if (!act.empty() && act != "silu")
    fields.fail(fmt::format("\"hidden_act\" is \"{}\"", act.substr(0, 40)), "these families have silu");
  if (fields.real("partial_rotary_factor", 1) != 1)
    fields.fail("\"partial_rotary_factor\" is not 1", "these families rotate whole heads");
  // Defaults of transformers.
  m.norm_eps = fields.real("rms_norm_eps", m.family == "gpt_oss" ? 1e-5 : 1e-6);
  read_rope(fields, where, &m);
  read_moe(fields, &m);
  read_window(fields, &m);
  read_quantisation(fields, where, &m);
  for (const Fields* f : {&fields, &outer_fields}) {
    if (f->first_error()) return tl::unexpected<Error>(*f->first_error());
  }
  if (auto r = check_llm(m, where); !r) return tl::unexpected<Error>(r.error());
  return m;
}

}  // namespace

Result<LlmSpec> import_hf_config(std::string_view json, const std::string& where) {
  Json config = Json::parse(json, nullptr, false);
  if (config.is_discarded())
    return make_error(where, "is not JSON", "give the config.json of a Hugging Face model");
  if (!config.is_object())
    return make_error(where, "is no JSON object", "give the config.json of a Hugging Face model");
  const auto text_part = config.find("text_config");
  const bool nested = text_part != config.end() && text_part->is_object();
  return import_object(nested ? *text_part : config, config, where);
}

}  // namespace kvtwin
