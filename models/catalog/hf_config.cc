#include "models/catalog/hf_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "models/catalog/hf_family.h"
#include "models/catalog/json_fields.h"

namespace kvtwin {
namespace {

using Json = nlohmann::json;

void read_rope(Fields& fields, const std::string& where, LlmSpec* m) {
  // transformers 5 writes everything into rope_parameters; older versions have rope_theta and rope_scaling.
  const char* key = fields.find("rope_parameters") != nullptr ? "rope_parameters" : "rope_scaling";
  m->rope.theta = fields.real("rope_theta", 10000);
  const Json* scaling = fields.find(key);
  if (scaling == nullptr) return;
  if (!scaling->is_object())
    return fields.fail(fmt::format("\"{}\" is no object", key), "an object or null is right");
  // Models with two kinds of layers may state one set for each.
  if (const auto full = scaling->find("full_attention"); full != scaling->end() && full->is_object())
    scaling = &*full;
  Fields rope(*scaling, where + ": " + key);
  m->rope.theta = rope.real("rope_theta", m->rope.theta);
  m->rope.scaling = rope.text("rope_type");
  if (m->rope.scaling.empty()) m->rope.scaling = rope.text("type");
  // The three positions of a text token are equal in multimodal RoPE, which makes it the ordinary one.
  if (m->rope.scaling == "default" || m->rope.scaling == "mrope") m->rope.scaling.clear();
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

// What our engines do not compute of a model, beyond what its family says; they compute silu and rotate whole
// heads.
std::string read_not_computed(const HfFamily& family, Fields& fields, LlmSpec* m) {
  std::vector<std::string> reasons;
  if (*family.not_computed != '\0') reasons.emplace_back(family.not_computed);
  std::string act = fields.text("hidden_act");
  if (act.empty()) act = fields.text("hidden_activation");
  // A gated MLP has three matrices whatever its activation is; these two are known to be gated.
  if (act.starts_with("gelu")) {
    if (reasons.empty()) reasons.push_back("gelu MLPs");
  } else if (!act.empty() && act != "silu") {
    fields.fail(fmt::format("\"hidden_act\" is \"{}\"", act.substr(0, 40)),
                "silu and gelu are understood, as activations of gated MLPs");
  }
  double rotated = fields.real("partial_rotary_factor", 1);
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const Json* rope = fields.find(key);
    if (rope != nullptr && rope->is_object())
      rotated = Fields(*rope, "").real("partial_rotary_factor", rotated);
  }
  const uint32_t width = fields.count("rotary_dim", m->head_dim);
  if (rotated != 1 || width != m->head_dim) reasons.emplace_back("heads that are rotated in part");
  return fmt::format("{}", fmt::join(reasons, ", "));
}

// The family by whose rules a config is read: that of `as` if it is given, else that of its model_type.
Result<const HfFamily*> family_of(const std::string& model_type, const std::string& as,
                                  const std::string& where) {
  const HfFamily* family = find_hf_family(as.empty() ? model_type : as);
  if (family != nullptr) return family;
  if (!as.empty())
    return make_error("--as", fmt::format("\"{}\" is not a known family", as.substr(0, 40)),
                      hf_family_list());
  return make_error(where, fmt::format("model_type \"{}\" is not understood", model_type.substr(0, 40)),
                    hf_family_list() + " are; --as=llama reads it by llama's rules, to be simulated only");
}

void read_geometry(const HfFamily& family, Fields& fields, Fields& outer, LlmSpec* m) {
  m->layers = fields.count("num_hidden_layers");
  m->query_heads = fields.count("num_attention_heads");
  m->kv_heads = fields.count("num_key_value_heads", m->query_heads);
  m->hidden = fields.count("hidden_size");
  m->intermediate = fields.count("intermediate_size");
  m->vocab = fields.count("vocab_size");
  m->context_window = fields.count("max_position_embeddings");
  m->head_dim = fields.count("head_dim", m->query_heads == 0 ? 0 : m->hidden / m->query_heads);
  m->tied_embeddings =
      fields.flag("tie_word_embeddings", outer.flag("tie_word_embeddings", family.tied_embeddings));
  const bool bias = fields.flag("attention_bias", false);
  m->qkv_bias = bias || family.qkv_bias;
  m->output_bias = bias && family.output_has_bias;
  m->mlp_bias = fields.flag("mlp_bias", false);
  m->qk_norm = fields.flag("use_qk_norm", family.qk_norm);
  m->attention_sinks = family.attention_sinks;
  // Defaults of transformers.
  m->norm_eps = fields.real("rms_norm_eps", family.attention_sinks ? 1e-5 : 1e-6);
}

Result<LlmSpec> import_object(const Json& config, const Json& outer, const std::string& where,
                              const std::string& as) {
  Fields fields(config, where), outer_fields(outer, where);
  LlmSpec m;
  const std::string model_type = fields.text("model_type");
  if (fields.first_error()) return tl::unexpected<Error>(*fields.first_error());
  if (const std::string missing = missing_mechanisms(fields); !missing.empty())
    return make_error(where, fmt::format("has {}, not modelled yet", missing),
                      "models whose layers all store K and V of the same heads can be imported");
  const Result<const HfFamily*> family = family_of(model_type, as, where);
  if (!family) return tl::unexpected<Error>(family.error());
  const HfFamily& rules = **family;
  m.family = rules.family;
  read_geometry(rules, fields, outer_fields, &m);
  m.not_computed = read_not_computed(rules, fields, &m);
  if (!as.empty() && as != model_type) {
    if (!model_type.empty()) m.family = model_type.substr(0, 40);
    m.not_computed = fmt::format("a {} read by the rules of {}", m.family, as);
  }
  read_rope(fields, where, &m);
  read_hf_moe(rules, &fields, &m);
  read_hf_window(rules, &fields, &m);
  read_quantisation(fields, where, &m);
  for (const Fields* f : {&fields, &outer_fields}) {
    if (f->first_error()) return tl::unexpected<Error>(*f->first_error());
  }
  if (auto r = check_llm(m, where); !r) return tl::unexpected<Error>(r.error());
  return m;
}

// Python writes infinities and NaN as bare words, which are not JSON. Replaces them by null.
std::string without_infinities(std::string_view json) {
  std::string out;
  bool quoted = false;
  for (size_t i = 0; i < json.size(); ++i) {
    if (quoted && json[i] == '\\' && i + 1 < json.size()) {
      out += json[i++];
    } else if (json[i] == '"') {
      quoted = !quoted;
    } else if (!quoted) {
      const std::string_view rest = json.substr(i);
      size_t word = 0;
      for (const std::string_view known : {"Infinity", "-Infinity", "NaN"}) {
        if (rest.starts_with(known)) word = known.size();
      }
      if (word > 0) {
        out += "null";
        i += word - 1;
        continue;
      }
    }
    out += json[i];
  }
  return out;
}

}  // namespace

Result<LlmSpec> import_hf_config(std::string_view json, const std::string& where, const std::string& as) {
  Json config = Json::parse(json, nullptr, false);
  if (config.is_discarded()) config = Json::parse(without_infinities(json), nullptr, false);
  if (config.is_discarded())
    return make_error(where, "is not JSON", "give the config.json of a Hugging Face model");
  if (!config.is_object())
    return make_error(where, "is no JSON object", "give the config.json of a Hugging Face model");
  const auto text_part = config.find("text_config");
  const bool nested = text_part != config.end() && text_part->is_object();
  return import_object(nested ? *text_part : config, config, where, as);
}

}  // namespace kvtwin
