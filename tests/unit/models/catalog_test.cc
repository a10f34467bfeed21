#include "models/catalog/catalog.h"

#include <doctest/doctest.h>

#include <cmath>

#include "models/files/textproto.h"

namespace kvtwin {
namespace {

LlmSpec llm(const std::string& name) {
  const Result<LlmSpec> spec = Catalog().llm(name);
  REQUIRE_MESSAGE(spec, (spec ? std::string() : spec.error().text()));
  return *spec;
}

TEST_CASE("catalog: parameter counts are the published ones within 0.5 %") {
  // Model cards. gpt-oss-20b's card counts 3.61 B active without the embedding table of 0.579 B. Qwen3's card
  // rounds to 3.3 B, so active parameters get a tolerance of 2 %.
  const struct {
    const char* name;
    double all, active;
  } published[] = {{"llama-3.1-8b", 8.030e9, 8.030e9},
                   {"llama-3.1-70b", 70.554e9, 70.554e9},
                   {"qwen3-8b", 8.19e9, 8.19e9},
                   {"qwen3-14b", 14.77e9, 14.77e9},
                   {"qwen3-32b", 32.76e9, 32.76e9},
                   {"qwen3-30b-a3b", 30.53e9, 3.3e9},
                   {"qwen2.5-7b", 7.616e9, 7.616e9},
                   {"mistral-nemo", 12.248e9, 12.248e9},
                   {"gpt-oss-20b", 20.9e9, 3.61e9 + 0.579e9}};
  for (const auto& p : published) {
    CAPTURE(p.name);
    const LlmSpec m = llm(p.name);
    CHECK(std::abs(static_cast<double>(m.parameters()) / p.all - 1) < 0.005);
    CHECK(std::abs(static_cast<double>(m.active_parameters()) / p.active - 1) < 0.02);
  }
}

TEST_CASE("catalog: KV bytes per token follow from layers, KV heads and head width") {
  CHECK(llm("llama-3.1-8b").kv_bytes_per_token() == 2 * 32 * 8 * 128 * 2);
  CHECK(llm("llama-3.1-8b").kv_bytes_per_token(4) == 2 * 32 * 2 * 128 * 2);
  CHECK(llm("qwen3-30b-a3b").kv_bytes_per_token() == 2 * 48 * 4 * 128 * 2);
  CHECK_MESSAGE(llm("qwen3-30b-a3b").kv_bytes_per_token(8) == 2 * 48 * 1 * 128 * 2,
                "4 heads on 8 GPUs: each on two");
  LlmSpec fp8 = llm("llama-3.1-8b");
  fp8.kv.dtype = NumberFormat::kFp8;
  CHECK(fp8.kv_bytes_per_token() == 65536);
  fp8.kv = {NumberFormat::kInt4, 32, 16, 16};  // 4 bits + 32 bits per 32 values
  CHECK(fp8.kv_bytes_per_token() == 65536 * 5 / 8);
}

TEST_CASE("catalog: weights split over GPUs, and quantised ones keep their scales") {
  LlmSpec m = llm("llama-3.1-8b");
  CHECK(weight_bytes(m, 1).total() == doctest::Approx(2.0 * static_cast<double>(m.parameters())));
  CHECK(weight_bytes(m, 4).total() ==
        doctest::Approx(2.0 * static_cast<double>(m.parameters()) / 4).epsilon(0.001));
  m.weights = {NumberFormat::kInt4, 128, 16, 4};
  const double linear = 32.0 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336);
  const WeightBytes w = weight_bytes(m, 1);
  CHECK(w.attention + w.mlp == doctest::Approx(linear * (4 + 20.0 / 128) / 8));
  const WeightBytes gpt = weight_bytes(llm("gpt-oss-20b"), 1);
  CHECK_MESSAGE(gpt.experts == doctest::Approx(24 * 32 * 3.0 * 2880 * 2880 * 4.25 / 8),
                "MXFP4 has 4.25 bits");
}

TEST_CASE("catalog: every shipped file loads, and every node's device exists") {
  const Catalog catalog;
  CHECK(catalog.names("llm").size() >= 9);
  for (const std::string& name : catalog.names("llm")) {
    const auto spec = catalog.llm(name);
    CHECK_MESSAGE(spec, (spec ? std::string() : spec.error().text()));
    if (spec) CHECK(spec->name == name);
  }
  CHECK(catalog.names("device").size() >= 8);
  for (const std::string& name : catalog.names("device")) {
    const auto spec = catalog.device(name);
    CHECK_MESSAGE(spec, (spec ? std::string() : spec.error().text()));
    if (spec) CHECK(spec->name == name);
  }
  CHECK(catalog.names("node").size() >= 9);
  for (const std::string& name : catalog.names("node")) {
    const auto spec = catalog.node(name);
    REQUIRE_MESSAGE(spec, (spec ? std::string() : spec.error().text()));
    CHECK(spec->name == name);
    CHECK(catalog.device(spec->device));
  }
}

TEST_CASE("catalog: hostile text is refused with an error") {
  for (const std::string& text :
       {std::string("\xff\xfe\x00\x01", 4), std::string(100000, '{'), std::string("moe {"),
        std::string("layers: 99999999999999999999"), std::string("rope { theta: nan }")}) {
    CHECK_FALSE(parse_llm(text, "hostile"));
    CHECK_FALSE(parse_device(text, "hostile"));
    CHECK_FALSE(parse_node(text, "hostile"));
  }
}

TEST_CASE("catalog: a written file reads back unchanged") {
  for (const char* name : {"gpt-oss-20b", "qwen3-30b-a3b", "llama-3.1-70b"}) {
    const LlmSpec m = llm(name);
    const std::string text = llm_textproto(m);
    const auto again = parse_llm(text, "again");
    REQUIRE_MESSAGE(again, (again ? std::string() : again.error().text()));
    CHECK(llm_textproto(*again) == text);
    CHECK(again->parameters() == m.parameters());
  }
}

TEST_CASE("catalog: tensor parallelism must divide heads and columns evenly") {
  const LlmSpec m = llm("qwen2.5-7b");  // 28 query heads, 4 KV heads
  CHECK(check_tp(m, 4, "tp"));
  const auto problem = check_tp(m, 8, "tp");
  REQUIRE_FALSE(problem);
  CHECK(problem.error().text().find("28 query heads") != std::string::npos);
  CHECK_FALSE(check_tp(m, 0, "tp"));
}

}  // namespace
}  // namespace kvtwin
