#include "models/weights/weights.h"

#include <doctest/doctest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "engine/base/prng.h"
#include "models/catalog/catalog.h"
#include "models/catalog/rope.h"
#include "tests/support/folder.h"

namespace kvtwin {
namespace {

LlmSpec small(const std::string& family) {
  LlmSpec m;
  m.family = family;
  m.layers = 3, m.query_heads = 4, m.kv_heads = 2, m.head_dim = 8, m.hidden = 24, m.intermediate = 40;
  m.vocab = 50, m.context_window = 512;
  m.qkv_bias = family == "qwen2", m.qk_norm = family == "qwen3", m.tied_embeddings = family == "qwen3";
  m.output_bias = m.qkv_bias && family == "llama";
  m.norm_eps = 1e-6;
  return m;
}

uint64_t fingerprint(const ModelWeights& weights) {
  uint64_t hash = 0;
  for (const NamedTensor& tensor : weights.named()) {
    for (const std::byte byte : tensor.tensor.data) hash = mix64(hash ^ static_cast<uint8_t>(byte)) + 1;
  }
  return hash;
}

TEST_CASE("weights: their number follows from the geometry, and a seed always draws the same bytes") {
  for (const char* family : {"llama", "qwen2", "qwen3", "mistral"}) {
    CAPTURE(std::string(family));
    const LlmSpec llm = small(family);
    const ModelWeights weights = ModelWeights::random(llm, 5);
    uint64_t elements = 0;
    for (const NamedTensor& tensor : weights.named()) elements += tensor.tensor.elements();
    CHECK(elements == llm.parameters());
    CHECK(fingerprint(weights) == fingerprint(ModelWeights::random(llm, 5)));
    CHECK(fingerprint(weights) != fingerprint(ModelWeights::random(llm, 6)));
  }
  // These bytes never change: results are compared across machines and versions.
  CHECK(fingerprint(ModelWeights::random(small("llama"), 5)) == 15651928077274100116u);
}

TEST_CASE("weights: drawn numbers have the deviation that keeps the size of activations") {
  LlmSpec llm = small("llama");
  llm.hidden = 256, llm.intermediate = 512;
  const ModelWeights weights = ModelWeights::random(llm, 5);
  const auto deviation = [](const TensorView& tensor) {
    double squares = 0;
    const auto values = read_floats(tensor);
    for (const float v : values) squares += double{v} * double{v};
    return std::sqrt(squares / static_cast<double>(values.size()));
  };
  CHECK(deviation(weights.embedding()) == doctest::Approx(1).epsilon(0.03));
  CHECK(deviation(weights.layer(1).k) == doctest::Approx(1.0 / 16).epsilon(0.03));
  CHECK(deviation(weights.layer(1).q) == doctest::Approx(2.0 / 16).epsilon(0.03));
  CHECK(deviation(weights.layer(2).down) == doctest::Approx(1 / std::sqrt(512.0 * 6)).epsilon(0.03));
  CHECK(deviation(weights.layer(0).mlp_norm) == doctest::Approx(1).epsilon(0.03));
}

TEST_CASE("weights: a written model is read back with the same config and the same bytes") {
  for (const char* family : {"llama", "qwen2", "qwen3", "mistral"}) {
    CAPTURE(std::string(family));
    LlmSpec llm = small(family);
    if (std::string(family) == "llama") {
      llm.rope = {5e5, "llama3", 8, 64, 1, 4};
      llm.qkv_bias = llm.output_bias = llm.mlp_bias = true;
    }
    if (std::string(family) == "qwen2") llm.rope = {1e4, "yarn", 4, 128};
    const ModelWeights weights = ModelWeights::random(llm, 9);
    const testing::Folder folder;
    REQUIRE(write_model(weights, folder.file("m")));
    const auto read = load_model(folder.file("m"));
    REQUIRE_MESSAGE(read, (read ? std::string() : read.error().text()));
    CHECK(fingerprint(*read) == fingerprint(weights));
    LlmSpec got = read->llm();
    got.name = llm.name, got.source = llm.source;
    CHECK(llm_textproto(got) == llm_textproto(llm));

    // A geometry other than the file's.
    llm.intermediate = 48;
    const auto problem = ModelWeights::load(llm, folder.file("m"));
    REQUIRE(!problem);
    CHECK(problem.error().text().find("gate_proj.weight: is [40][24]; the config says [48][24]") !=
          std::string::npos);
    llm.layers = 4, llm.intermediate = 40;
    const auto more = ModelWeights::load(llm, folder.file("m"));
    REQUIRE(!more);
    CHECK(more.error().text().find("model.layers.3.input_layernorm.weight: is missing") != std::string::npos);
  }
}

TEST_CASE("rope: scalings stretch long wavelengths and keep short ones") {
  LlmSpec m = small("llama");
  m.head_dim = 64;
  const auto plain = rope_frequencies(m);
  CHECK(plain.inverse[0] == 1);
  CHECK(plain.inverse[16] == doctest::Approx(0.01));
  m.rope = {1e4, "linear", 4};
  CHECK(rope_frequencies(m).inverse[16] == doctest::Approx(0.0025));
  m.rope = {1e4, "llama3", 8, 256, 1, 4};
  const auto llama3 = rope_frequencies(m);
  CHECK(llama3.inverse[0] == plain.inverse[0]);
  CHECK(llama3.inverse[31] == doctest::Approx(plain.inverse[31] / 8));
  m.rope = {1e4, "yarn", 4, 256};
  const auto yarn = rope_frequencies(m);
  CHECK(yarn.inverse[0] == plain.inverse[0]);
  CHECK(yarn.inverse[31] == doctest::Approx(plain.inverse[31] / 4));
  CHECK(yarn.scale == doctest::Approx(0.1 * std::log(4.0) + 1));
}

}  // namespace
}  // namespace kvtwin
