#include "models/catalog/hf_config.h"

#include <doctest/doctest.h>

#include "models/catalog/catalog.h"
#include "models/files/textproto.h"
#include "models/weights/weights.h"
#include "tests/unit/models/test_data.h"

namespace kvtwin {
namespace {

const char* const kSmall = R"({"model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4,
  "num_key_value_heads": 2, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 100,
  "max_position_embeddings": 512})";

TEST_CASE("hf_config: the shipped catalog equals the import of the published configs") {
  const struct {
    const char* name;
    const char* file;
  } models[] = {{"llama-3.1-8b", "meta-llama--Meta-Llama-3.1-8B.json"},
                {"llama-3.3-70b", "meta-llama--Meta-Llama-3.1-70B.json"},
                {"llama-3.1-405b", "meta-llama--Meta-Llama-3.1-405B.config.json"},
                {"llama-4-scout", "meta-llama--Llama-4-Scout-17B-16E-Instruct.config.json"},
                {"llama-4-maverick", "meta-llama--Llama-4-Maverick-17B-128E-Instruct.config.json"},
                {"mixtral-8x7b", "mistralai--Mixtral-8x7B-v0.1.config.json"},
                {"qwen3-235b-a22b", "Qwen--Qwen3-235B-A22B.config.json"},
                {"qwen3-coder-480b-a35b", "Qwen--Qwen3-Coder-480B-A35B-Instruct.config.json"},
                {"gpt-oss-120b", "openai--gpt-oss-120b.config.json"},
                {"minimax-m2.5", "MiniMaxAI--MiniMax-M2.5.config.json"},
                {"glm-4.5", "zai-org--GLM-4.5.config.json"},
                {"glm-4.5-air", "zai-org--GLM-4.5-Air.config.json"},
                {"gemma-3-27b", "google--gemma-3-27b-it.config.json"},
                {"phi-4", "microsoft--phi-4.config.json"},
                {"llama-3.1-70b", "meta-llama--Meta-Llama-3.1-70B.json"},
                {"qwen3-8b", "Qwen--Qwen3-8B.json"},
                {"qwen3-14b", "inference-sim__qwen3-14b.json"},
                {"qwen3-32b", "Qwen--Qwen3-32B.json"},
                {"qwen3-30b-a3b", "Qwen--Qwen3-30B-A3B.json"},
                {"qwen2.5-7b", "inference-sim__qwen2.5-7b-instruct.json"},
                {"mistral-nemo", "inference-sim__mistral-nemo-instruct-2407.json"},
                {"gpt-oss-20b", "openai--gpt-oss-20b.json"}};
  if (!have_test_data("model-configs") || !have_test_data("model-configs-2026")) {
    MESSAGE("no model-configs below $KVTWIN_DATA: skipped");
    return;
  }
  for (const auto& model : models) {
    CAPTURE(model.name);
    const bool newer = std::string_view(model.file).ends_with(".config.json");
    const auto json = read_text_file(
        test_data((newer ? "model-configs-2026/" : "model-configs/") + std::string(model.file)));
    REQUIRE(json);
    auto made = import_hf_config(*json, model.file);
    REQUIRE_MESSAGE(made, (made ? std::string() : made.error().text()));
    const auto shipped = Catalog().llm(model.name);
    REQUIRE(shipped);
    made->name = shipped->name, made->source = shipped->source;
    CHECK(llm_textproto(*made) == llm_textproto(*shipped));
  }
}

TEST_CASE("hf_config: a vision model is imported as its text part") {
  if (!have_test_data("model-configs")) {
    MESSAGE("no model-configs below $KVTWIN_DATA: skipped");
    return;
  }
  const auto json = read_text_file(test_data("model-configs/Qwen--Qwen3-VL-8B-Instruct.json"));
  REQUIRE(json);
  const auto m = import_hf_config(*json);
  REQUIRE_MESSAGE(m, (m ? std::string() : m.error().text()));
  CHECK(m->layers == 36);
  CHECK(m->context_window == 262144);
}

TEST_CASE("hf_config: rope_parameters of transformers 5, YaRN's terms and the norm's epsilon are read") {
  std::string json = kSmall;
  json.insert(json.rfind('}'),
              R"(, "rms_norm_eps": 1e-6, "rope_theta": 7, "rope_parameters": {"rope_type": "yarn",
    "rope_theta": 5000, "factor": 4, "original_max_position_embeddings": 128, "beta_fast": 16, "beta_slow": 2,
    "attention_factor": 1.5, "truncate": false})");
  const auto m = import_hf_config(json);
  REQUIRE_MESSAGE(m, (m ? std::string() : m.error().text()));
  CHECK(m->norm_eps == 1e-6);
  CHECK(m->rope.theta == 5000);
  CHECK(m->rope.scaling == "yarn");
  CHECK(m->rope.beta_fast == 16);
  CHECK(m->rope.beta_slow == 2);
  CHECK(m->rope.attention_factor == 1.5);
  CHECK(!m->rope.truncate);
  const auto again = parse_llm(llm_textproto(*m), "x");
  REQUIRE(again);
  CHECK(llm_textproto(*again) == llm_textproto(*m));
  CHECK(again->rope.attention_factor == 1.5);
}

TEST_CASE("hf_config: what our engines do not compute is named, and keeps a model in the simulator") {
  const struct {
    const char* field;
    const char* not_computed;
  } rows[] = {{R"("hidden_act": "gelu")", "gelu MLPs"},
              {R"("partial_rotary_factor": 0.5)", "heads that are rotated in part"},
              {R"("rope_parameters": {"partial_rotary_factor": 0.25})", "heads that are rotated in part"},
              {R"("rotary_dim": 8)", "heads that are rotated in part"},
              {R"("rotary_dim": 16)", ""}};
  for (const auto& row : rows) {
    CAPTURE(row.field);
    std::string json = kSmall;
    json.insert(json.rfind('}'), std::string(", ") + row.field);
    const auto m = import_hf_config(json);
    REQUIRE_MESSAGE(m, (m ? std::string() : m.error().text()));
    CHECK(m->not_computed == row.not_computed);
    const auto again = parse_llm(llm_textproto(*m), "x");
    REQUIRE(again);
    CHECK(again->not_computed == row.not_computed);
    CHECK(check_dense(*again, "m").has_value() == (*row.not_computed == '\0'));
  }
  std::string relu = kSmall;
  relu.insert(relu.rfind('}'), R"(, "hidden_act": "relu2")");
  CHECK_FALSE_MESSAGE(import_hf_config(relu), "its MLP has two matrices");
}

TEST_CASE("hf_config: head_dim defaults to hidden / heads, KV heads to heads") {
  const auto m = import_hf_config(kSmall);
  REQUIRE(m);
  CHECK(m->head_dim == 16);
  CHECK(m->qkv_bias == false);
  // vocab*hidden*2 + final norm + 2 * (q,o: 2*64*64; k,v: 2*64*32; mlp 3*64*128; norms 2*64)
  CHECK(m->parameters() == 12800 + 64 + 2 * (8192 + 4096 + 24576 + 128));
}

TEST_CASE("hf_config: qwen2's windows are off unless enabled, and start after max_window_layers") {
  const std::string base =
      R"({"model_type": "qwen2", "num_hidden_layers": 4, "num_attention_heads": 4, "hidden_size": 64,
    "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 512, "sliding_window": 64,
    "max_window_layers": 3, "use_sliding_window": )";
  const auto off = import_hf_config(base + "false}"), on = import_hf_config(base + "true}");
  REQUIRE(off);
  REQUIRE(on);
  CHECK(off->sliding_layers.empty());
  CHECK(on->sliding_layers == std::vector<uint32_t>{3});
  CHECK(on->window == 64);
}

TEST_CASE(
    "hf_config: an unknown family is read by the rules of another only if asked, and is only simulated") {
  std::string json = kSmall;
  json.replace(json.find("llama"), 5, "novel");
  const auto m = import_hf_config(json, "c.json", "llama");
  REQUIRE_MESSAGE(m, (m ? std::string() : m.error().text()));
  CHECK(m->family == "novel");
  CHECK(m->not_computed == "a novel read by the rules of llama");
  CHECK(m->parameters() == import_hf_config(kSmall)->parameters());
  CHECK_FALSE(check_dense(*m, "m"));
  CHECK(import_hf_config(json, "c.json", "lama").error().where == "--as");
  json.insert(json.rfind('}'), R"(, "kv_lora_rank": 512)");
  CHECK_FALSE_MESSAGE(import_hf_config(json, "c.json", "llama"), "no rules can replace a mechanism");
}

TEST_CASE("hf_config: windows of Gemma and chunks of Llama 4 are sliding layers") {
  const std::string rest = R"(, "num_attention_heads": 4, "hidden_size": 64, "intermediate_size": 128,
    "intermediate_size_mlp": 256, "num_local_experts": 4, "num_experts_per_tok": 1, "vocab_size": 100,
    "max_position_embeddings": 512, "sliding_window": 32, "attention_chunk_size": 64)";
  const auto gemma = import_hf_config(R"({"model_type": "gemma3_text", "num_hidden_layers": 7)" + rest + "}");
  REQUIRE_MESSAGE(gemma, (gemma ? std::string() : gemma.error().text()));
  CHECK(gemma->window == 32);
  CHECK(gemma->sliding_layers == std::vector<uint32_t>{0, 1, 2, 3, 4, 6});
  CHECK(gemma->tied_embeddings);
  const auto llama = import_hf_config(
      R"({"model_type": "llama4_text", "num_hidden_layers": 5, "interleave_moe_layer_step": 2)" + rest + "}");
  REQUIRE_MESSAGE(llama, (llama ? std::string() : llama.error().text()));
  CHECK(llama->window == 64);
  CHECK(llama->sliding_layers == std::vector<uint32_t>{0, 1, 2, 4});
  CHECK(llama->moe.dense_layers == std::vector<uint32_t>{0, 2, 4});
  CHECK(llama->intermediate == 256);
  CHECK(llama->moe.intermediate == 128);
  CHECK(llama->moe.shared == 1);
}

TEST_CASE("hf_config: any damage to a config gives an error or a model, without a crash") {
  const std::string good = kSmall;
  for (size_t at = 0; at < good.size(); ++at) {
    for (const char c : {'\0', '9', '"', '{', '-', 'n', '\xff'}) {
      std::string bad = good;
      bad[at] = c;
      (void)import_hf_config(bad);
    }
    (void)import_hf_config(good.substr(0, at));
  }
  CHECK_FALSE(import_hf_config(std::string(1 << 20, '[')));
  CHECK_FALSE(
      import_hf_config(R"({"model_type":)" + std::string(1 << 19, '[') + std::string(1 << 19, ']') + "}"));
}

}  // namespace
}  // namespace kvtwin
