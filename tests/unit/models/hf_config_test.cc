#include "models/catalog/hf_config.h"

#include <doctest/doctest.h>

#include "models/catalog/catalog.h"
#include "models/files/textproto.h"
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
                {"llama-3.1-70b", "meta-llama--Meta-Llama-3.1-70B.json"},
                {"qwen3-8b", "Qwen--Qwen3-8B.json"},
                {"qwen3-14b", "inference-sim__qwen3-14b.json"},
                {"qwen3-32b", "Qwen--Qwen3-32B.json"},
                {"qwen3-30b-a3b", "Qwen--Qwen3-30B-A3B.json"},
                {"qwen2.5-7b", "inference-sim__qwen2.5-7b-instruct.json"},
                {"mistral-nemo", "inference-sim__mistral-nemo-instruct-2407.json"},
                {"gpt-oss-20b", "openai--gpt-oss-20b.json"}};
  if (!have_test_data("model-configs")) {
    MESSAGE("no model-configs below $KVTWIN_DATA: skipped");
    return;
  }
  for (const auto& model : models) {
    CAPTURE(model.name);
    const auto json = read_text_file(test_data(std::string("model-configs/") + model.file));
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
  for (const char* problem : {R"(, "hidden_act": "gelu"})", R"(, "partial_rotary_factor": 0.5})"}) {
    std::string other = kSmall;
    other.replace(other.rfind('}'), 1, problem);
    CHECK(!import_hf_config(other));
  }
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

TEST_CASE("hf_config: unsupported settings are refused with field and value") {
  const struct {
    const char* json;
    const char* message;
  } problem[] = {
      {"", "is not JSON"},
      {"[1]", "no JSON object"},
      {R"({"model_type": "mamba"})", "model_type \"mamba\" is not understood"},
      {R"({"model_type": "llama"})", "no \"num_hidden_layers\""},
      {R"({"model_type": "llama", "num_hidden_layers": -1})", "\"num_hidden_layers\" is -1"},
      {R"({"model_type": "llama", "num_hidden_layers": [[1]]})", "is an array"},
      {R"({"model_type": 7})", "\"model_type\" is 7"},
  };
  for (const auto& w : problem) {
    CAPTURE(w.json);
    const auto m = import_hf_config(w.json, "c.json");
    REQUIRE_FALSE(m);
    CHECK(m.error().where.find("c.json") == 0);
    CHECK_MESSAGE(m.error().what.find(w.message) != std::string::npos, m.error().text());
  }
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
