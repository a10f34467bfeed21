// Every config.json of the data folders: what is imported has the published numbers of parameters and KV
// bytes per token, and what is not is refused with the mechanism that is missing. docs/reference/models.md
// lists the same.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <string>

#include "models/catalog/hf_config.h"
#include "models/files/textproto.h"
#include "tests/support/source_dir.h"
#include "tests/unit/models/test_data.h"

namespace kvtwin {
namespace {

// How a publisher counts parameters where it does not count all of the decoder and nothing else.
enum Counting : uint8_t {
  kDecoder = 0,
  kWithMtp = 1,        // one layer for multi-token prediction, with its projection, embedding and head
  kNoInputTable = 2,   // active parameters: without the embedding table
  kNoTables = 4,       // active parameters: without embedding table and head
  kActiveWithMtp = 8,  // active parameters: with the layer for multi-token prediction
};

struct Published {
  const char* file;
  double total;        // parameters
  double active;       // parameters of one token, as published; 0: the model has no experts
  double active_unit;  // last digit of `active` as published
  int counting;
  uint64_t kv_values;  // K and V of one token: 2 * layers * KV heads * width of a head
  const char* source;
};

// Totals are `total` of the safetensors metadata that the Hugging Face Hub reports of each repository, unless
// the source says otherwise; active ones are of model cards and papers.
constexpr Published kPublished[] = {
    {"meta-llama--Meta-Llama-3.1-8B.json", 8030261248, 0, 0, kDecoder, 2 * 32 * 8 * 128, "safetensors"},
    {"inference-sim__llama-3.1-8b-instruct.json", 8030261248, 0, 0, kDecoder, 2 * 32 * 8 * 128,
     "safetensors"},
    {"meta-llama--Meta-Llama-3.1-70B.json", 70553706496, 0, 0, kDecoder, 2 * 80 * 8 * 128, "safetensors"},
    {"nvidia--Llama-3.1-70B-Instruct-FP8.config.json", 70553706496, 0, 0, kDecoder, 2 * 80 * 8 * 128,
     "safetensors of Llama-3.1-70B"},
    {"meta-llama--Meta-Llama-3.1-405B.config.json", 405853388800, 0, 0, kDecoder, 2 * 126 * 8 * 128,
     "safetensors"},
    {"meta-llama--Llama-4-Scout-17B-16E-Instruct.config.json", 108641793536, 17e9, 1e9, kDecoder,
     2 * 48 * 8 * 128, "safetensors, with 0.9 B of the vision part; model card"},
    {"meta-llama--Llama-4-Maverick-17B-128E-Instruct.config.json", 401583781376, 17e9, 1e9, kDecoder,
     2 * 48 * 8 * 128, "safetensors, with 0.9 B of the vision part; model card"},
    {"mistralai--Mixtral-8x7B-v0.1.config.json", 46702792704, 12.9e9, 0.1e9, kDecoder, 2 * 32 * 8 * 128,
     "safetensors; Mistral's announcement"},
    {"mistralai--Mixtral-8x22B-v0.1.config.json", 140620634112, 39e9, 1e9, kDecoder, 2 * 56 * 8 * 128,
     "safetensors; Mistral's announcement"},
    {"inference-sim__mistral-nemo-instruct-2407.json", 12247782400, 0, 0, kDecoder, 2 * 40 * 8 * 128,
     "safetensors"},
    {"inference-sim__qwen2.5-7b-instruct.json", 7615616512, 0, 0, kDecoder, 2 * 28 * 4 * 128, "safetensors"},
    {"Qwen--Qwen2-VL-7B-Instruct.config.json", 7615616512, 0, 0, kDecoder, 2 * 28 * 4 * 128,
     "safetensors of Qwen2-7B, its text part"},
    {"Qwen--Qwen3-0.6B.config.json", 0.6e9, 0, 0, kDecoder, 2 * 28 * 8 * 128, "model card"},
    {"Qwen--Qwen3-1.7B.config.json", 1.72e9, 0, 0, kDecoder, 2 * 28 * 8 * 128,
     "Qwen3 report: 1.7 B, of which 1.4 B without the tied table of 0.31 B"},
    {"Qwen--Qwen3-8B.json", 8190735360, 0, 0, kDecoder, 2 * 36 * 8 * 128, "safetensors"},
    {"inference-sim__qwen3-14b.json", 14.77e9, 0, 0, kDecoder, 2 * 40 * 8 * 128, "model card: 14.8 B"},
    {"Qwen--Qwen3-32B.json", 32762123264, 0, 0, kDecoder, 2 * 64 * 8 * 128, "safetensors"},
    {"Qwen--Qwen3-32B-FP8.config.json", 32762123264, 0, 0, kDecoder, 2 * 64 * 8 * 128,
     "safetensors of Qwen3-32B"},
    {"Qwen--Qwen3-30B-A3B.json", 30532122624, 3e9, 1e9, kDecoder, 2 * 48 * 4 * 128, "safetensors; its name"},
    {"Qwen--Qwen3-235B-A22B.config.json", 235093634560, 22e9, 1e9, kDecoder, 2 * 94 * 4 * 128,
     "safetensors; model card"},
    {"Qwen--Qwen3-Coder-480B-A35B-Instruct.config.json", 480154875392, 35e9, 1e9, kDecoder, 2 * 62 * 8 * 128,
     "safetensors; model card"},
    {"Qwen--Qwen3-VL-2B-Instruct.config.json", 1.72e9, 0, 0, kDecoder, 2 * 28 * 8 * 128,
     "as Qwen3-1.7B, its text part"},
    {"Qwen--Qwen3-VL-4B-Instruct.config.json", 4.0e9, 0, 0, kDecoder, 2 * 36 * 8 * 128,
     "model card of Qwen3-4B, its text part"},
    {"Qwen--Qwen3-VL-8B-Instruct.json", 8190735360, 0, 0, kDecoder, 2 * 36 * 8 * 128,
     "safetensors of Qwen3-8B, its text part"},
    {"Qwen--Qwen3-VL-32B-Thinking.json", 32762123264, 0, 0, kDecoder, 2 * 64 * 8 * 128,
     "safetensors of Qwen3-32B, its text part"},
    {"Qwen--Qwen3-VL-30B-A3B-Instruct.config.json", 30532122624, 3e9, 1e9, kDecoder, 2 * 48 * 4 * 128,
     "safetensors of Qwen3-30B-A3B, its text part"},
    {"Qwen--Qwen3-VL-235B-A22B-Instruct.config.json", 235093634560, 22e9, 1e9, kDecoder, 2 * 94 * 4 * 128,
     "safetensors of Qwen3-235B-A22B, its text part"},
    {"openai--gpt-oss-20b.json", 20914757184, 3.6e9, 0.1e9, kNoInputTable, 2 * 24 * 8 * 64,
     "safetensors; model card"},
    {"openai--gpt-oss-120b.config.json", 116829156672, 5.1e9, 0.1e9, kNoInputTable, 2 * 36 * 8 * 64,
     "safetensors; model card"},
    {"microsoft--phi-4.config.json", 14659507200, 0, 0, kDecoder, 2 * 40 * 10 * 128, "safetensors"},
    {"google--gemma-3-27b-it.config.json", 25.600e9 + 1.416e9, 0, 0, kDecoder, 2 * 62 * 16 * 128,
     "Gemma 3 report, table 1: 25,600 M and 1,416 M of embeddings, without the vision part"},
    {"MiniMaxAI--MiniMax-M2.5.config.json", 228689764864, 10e9, 1e9, kNoTables, 2 * 62 * 8 * 128,
     "safetensors of M2.7, the same shape; model card"},
    {"MiniMaxAI--MiniMax-M2.7.config.json", 228689764864, 10e9, 1e9, kNoTables, 2 * 62 * 8 * 128,
     "safetensors; model card"},
    {"stepfun-ai--Step-3.7-Flash.config.json", 196e9, 11e9, 1e9, kDecoder, 2 * 45 * 8 * 128,
     "model card of Step-3.5-Flash, the same shape"},
    {"zai-org--GLM-4.5.config.json", 358337791296, 32e9, 1e9, kWithMtp | kNoTables | kActiveWithMtp,
     2 * 92 * 8 * 128, "safetensors; GLM-4.5 report"},
    {"zai-org--GLM-4.6.config.json", 358337791296, 32e9, 1e9, kWithMtp | kNoTables | kActiveWithMtp,
     2 * 92 * 8 * 128, "safetensors of GLM-4.5, the same shape"},
    {"zai-org--GLM-4.5-Air.config.json", 110468824832, 12e9, 1e9, kWithMtp | kNoTables | kActiveWithMtp,
     2 * 46 * 8 * 128, "safetensors; GLM-4.5 report"},
};

struct Refused {
  const char* file;
  const char* mechanism;
};
constexpr Refused kRefused[] = {
    {"MiniMaxAI--MiniMax-M3.config.json", "sparse indexer"},
    {"Qwen--Qwen3-Next-80B-A3B-Instruct.config.json",
     "linear attention (a state of constant size, in 36 of 48 layers)"},
    {"Qwen--Qwen3.5-122B-A10B.config.json", "linear attention"},
    {"Qwen--Qwen3.5-27B.config.json", "linear attention (a state of constant size, in 48 of 64 layers)"},
    {"Qwen--Qwen3.5-35B-A3B.config.json", "linear attention"},
    {"Qwen--Qwen3.5-397B-A17B.config.json", "linear attention"},
    {"XiaomiMiMo--MiMo-V2-Flash.config.json", "KV heads that differ by layer"},
    {"ai21labs--AI21-Jamba-1.5-Mini.config.json", "Mamba layers"},
    {"deepseek-ai--DeepSeek-V3.config.json", "multi-head latent attention (576 values"},
    {"deepseek-ai--DeepSeek-V3.2.config.json", "a sparse indexer (2048 entries per query)"},
    {"deepseek-ai--DeepSeek-V4-Flash.config.json", "KV that layers compress"},
    {"deepseek-ai--DeepSeek-V4-Pro.config.json", "KV that layers compress"},
    {"google--gemma-4-26B-A4B.config.json", "KV heads that differ by layer"},
    {"moonshotai--Kimi-K2-Instruct.config.json", "multi-head latent attention"},
    {"moonshotai--Kimi-K2.5.config.json", "multi-head latent attention"},
    {"moonshotai--Kimi-K3.config.json", "linear attention (a state of constant size, in 69 of 93 layers)"},
    {"nvidia--NVIDIA-Nemotron-3-Nano-30B-A3B-BF16.config.json", "Mamba layers"},
    {"nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-FP8.config.json", "Mamba layers"},
    {"nvidia--NVIDIA-Nemotron-3-Ultra-550B-A55B-BF16.config.json", "Mamba layers"},
    {"nvidia--Nemotron-H-56B-Base-8K.config.json", "Mamba layers"},
    {"zai-org--GLM-5.config.json", "sparse indexer"},
    {"zai-org--GLM-5.1.config.json", "sparse indexer"},
    {"zai-org--GLM-5.2.config.json", "sparse indexer"},
};

bool skipped() {
  if (have_test_data("model-configs") && have_test_data("model-configs-2026")) return false;
  MESSAGE("no model-configs and model-configs-2026 below $KVTWIN_DATA: skipped");
  return true;
}

std::string folder_of(std::string_view file) {
  return file.ends_with(".config.json") ? "model-configs-2026/" : "model-configs/";
}

Result<LlmSpec> import_file(const std::string& file) {
  const auto json = read_text_file(test_data(folder_of(file) + file));
  REQUIRE(json);
  return import_hf_config(*json, file);
}

double total_as_published(const LlmSpec& m, int counting) {
  auto total = static_cast<double>(m.parameters());
  if ((counting & kWithMtp) == 0) return total;
  LlmSpec more = m;
  ++more.layers;
  const double hidden = m.hidden;
  return static_cast<double>(more.parameters()) + 2.0 * m.vocab * hidden + 2 * hidden * hidden;
}

double active_as_published(const LlmSpec& m, int counting) {
  LlmSpec counted = m;
  if ((counting & kActiveWithMtp) != 0) ++counted.layers;
  const double table = static_cast<double>(m.vocab) * m.hidden;
  const double tables = (counting & kNoTables) != 0 ? 2 : (counting & kNoInputTable) != 0 ? 1 : 0;
  return static_cast<double>(counted.active_parameters()) - tables * table;
}

TEST_CASE("hf_models: parameters and KV bytes per token are the published ones within 1 %") {
  if (skipped()) return;
  for (const Published& p : kPublished) {
    CAPTURE(p.file);
    CAPTURE(p.source);
    const Result<LlmSpec> m = import_file(p.file);
    REQUIRE_MESSAGE(m, (m ? std::string() : m.error().text()));
    CHECK(std::abs(total_as_published(*m, p.counting) / p.total - 1) < 0.01);
    CHECK((m->moe.experts > 0) == (p.active > 0));
    if (p.active > 0) {
      const double error = std::abs(active_as_published(*m, p.counting) - p.active);
      // Publishers round active parameters to two or three digits.
      CHECK(error < std::max(0.01 * p.active, 0.5 * p.active_unit));
    }
    CHECK(m->kv_bytes_per_token() == 2 * p.kv_values);
  }
}

TEST_CASE("hf_models: what cannot be imported is refused with the mechanism that is missing") {
  if (skipped()) return;
  for (const Refused& r : kRefused) {
    CAPTURE(r.file);
    const Result<LlmSpec> m = import_file(r.file);
    REQUIRE_FALSE(m);
    CHECK_MESSAGE(m.error().what.find(r.mechanism) != std::string::npos, m.error().text());
    CHECK(m.error().what.find("not modelled yet") != std::string::npos);
  }
}

TEST_CASE("hf_models: the tables name every config of the data folders") {
  if (skipped()) return;
  std::set<std::string> known, found;
  for (const Published& p : kPublished) known.insert(p.file);
  for (const Refused& r : kRefused) known.insert(r.file);
  for (const char* folder : {"model-configs", "model-configs-2026"}) {
    for (const auto& entry : std::filesystem::directory_iterator(test_data(folder))) {
      if (entry.path().extension() == ".json") found.insert(entry.path().filename().string());
    }
  }
  CHECK(known == found);
}

// The name of a model: its file's, without the publisher's.
std::string model_name(std::string file) {
  for (const char* end : {".config.json", ".json"}) {
    if (file.ends_with(end)) file.resize(file.size() - std::string_view(end).size());
  }
  const size_t at = file.find("__") != std::string::npos ? file.find("__") : file.find("--");
  return file.substr(at + 2);
}

TEST_CASE("hf_models: docs/reference/models.md has the same numbers and sentences") {
  if (skipped()) return;
  const auto page = read_text_file(testing::source_dir() + "/docs/reference/models.md");
  REQUIRE(page);
  const auto has = [&](const std::string& line) {
    CHECK_MESSAGE(page->find(line + "\n") != std::string::npos, line);
  };
  for (const Published& p : kPublished) {
    if (folder_of(p.file) == "model-configs/" && std::string_view(p.file).starts_with("inference-sim__llama"))
      continue;  // the model is listed once
    const Result<LlmSpec> m = import_file(p.file);
    REQUIRE(m);
    const std::string active =
        p.active > 0 ? fmt::format("{:.2f}", static_cast<double>(m->active_parameters()) / 1e9) : "";
    const std::string window =
        m->window > 0 ? fmt::format("{} in {} of {}", m->window, m->sliding_layers.size(), m->layers) : "";
    has(fmt::format("| {} | {:.2f} | {} | {} | {} |", model_name(p.file),
                    static_cast<double>(m->parameters()) / 1e9, active, m->kv_bytes_per_token(), window));
  }
  for (const Refused& r : kRefused) {
    const Result<LlmSpec> m = import_file(r.file);
    REQUIRE_FALSE(m);
    const std::string what = m.error().what;  // "has X, not modelled yet"
    has(fmt::format("| {} | {} |", model_name(r.file), what.substr(4, what.rfind(", not") - 4)));
  }
}

}  // namespace
}  // namespace kvtwin
