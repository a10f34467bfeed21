// Finds in a config.json what LlmSpec cannot express.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "models/catalog/hf_family.h"

namespace kvtwin {
namespace {

using Json = nlohmann::json;

// 0 if the field is missing or no whole number.
uint64_t number(const Fields& fields, const char* key) {
  const Json* value = fields.find(key);
  return value != nullptr && value->is_number_unsigned() ? value->get<uint64_t>() : 0;
}

bool is_true(const Json* value) { return value != nullptr && value->is_boolean() && value->get<bool>(); }

// Entries of a list that equal `entry`.
size_t count_in(const Json* list, const Json& entry) {
  size_t count = 0;
  if (list == nullptr || !list->is_array()) return 0;
  for (const Json& each : *list) count += each == entry ? 1 : 0;
  return count;
}

std::string latent_attention(const Fields& fields) {
  const uint64_t latent = number(fields, "kv_lora_rank");
  if (latent == 0) return {};
  return fmt::format("multi-head latent attention ({} values per token and layer)",
                     latent + number(fields, "qk_rope_head_dim"));
}

std::string sparse_attention(const Fields& fields) {
  if (const uint64_t top = number(fields, "index_topk"); top > 0)
    return fmt::format("a sparse indexer ({} entries per query)", top);
  const Json* sparse = fields.find("sparse_attention_config");
  if (sparse == nullptr || !sparse->is_object()) return {};
  const Fields in(*sparse, "");
  if (!is_true(in.find("use_sparse_attention"))) return {};
  return fmt::format("a sparse indexer ({} blocks of {} tokens per query)", number(in, "sparse_topk_blocks"),
                     number(in, "sparse_block_size"));
}

std::string linear_attention(const Fields& fields) {
  size_t layers = count_in(fields.find("layer_types"), "linear_attention");
  if (const Json* config = fields.find("linear_attn_config"); config != nullptr && config->is_object()) {
    const auto kda = config->find("kda_layers");
    if (kda != config->end() && kda->is_array()) layers = kda->size();
  }
  // MiniMax's list: 1 is attention, 0 is linear attention.
  if (layers == 0) layers = count_in(fields.find("attn_type_list"), 0);
  const uint64_t interval = number(fields, "full_attention_interval"),
                 all = number(fields, "num_hidden_layers");
  if (layers == 0 && fields.find("layer_types") == nullptr && interval > 1) layers = all - all / interval;
  if (layers == 0) return {};
  return fmt::format("linear attention (a state of constant size, in {} of {} layers)", layers, all);
}

std::string state_space(const Fields& fields) {
  for (const char* key : {"mamba_num_heads", "mamba_d_state", "ssm_state_size", "mamba_n_heads"}) {
    if (number(fields, key) > 0) return "Mamba layers (a state of constant size)";
  }
  return {};
}

std::string uneven_heads(const Fields& fields) {
  const uint64_t heads = number(fields, "num_key_value_heads"), width = number(fields, "head_dim");
  const auto differs = [&](const char* key, uint64_t usual) {
    return number(fields, key) > 0 && usual > 0 && number(fields, key) != usual;
  };
  if (differs("swa_num_key_value_heads", heads) || differs("num_global_key_value_heads", heads) ||
      differs("global_head_dim", width) || differs("swa_head_dim", width))
    return "KV heads that differ by layer";
  return {};
}

}  // namespace

std::string missing_mechanisms(const Fields& fields) {
  std::vector<std::string> missing;
  const auto add = [&](std::string mechanism) {
    if (!mechanism.empty()) missing.push_back(std::move(mechanism));
  };
  add(latent_attention(fields));
  add(sparse_attention(fields));
  if (const Json* ratios = fields.find("compress_ratios"); ratios != nullptr && ratios->is_array())
    add("KV that layers compress along the context");
  add(linear_attention(fields));
  add(state_space(fields));
  add(uneven_heads(fields));
  const uint64_t value_width = number(fields, "v_head_dim");
  if (number(fields, "kv_lora_rank") == 0 && value_width > 0 && value_width != number(fields, "head_dim"))
    add("K and V of different widths");
  if (number(fields, "num_kv_shared_layers") > 0) add("KV that layers share");
  if (is_true(fields.find("is_encoder_decoder"))) add("an encoder");
  return fmt::format("{}", fmt::join(missing, " and "));
}

}  // namespace kvtwin
