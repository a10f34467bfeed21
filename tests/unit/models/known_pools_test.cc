// The KV pools that vLLM 0.14.1 logged on an H200 under eight settings, compared with the memory model's.
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "models/catalog/catalog.h"
#include "models/catalog/memory_model.h"
#include "tests/unit/models/test_data.h"

namespace kvtwin {
namespace {

// Cells of a line of CSV, of which some are in double quotes.
std::vector<std::string> cells_of(const std::string& line) {
  std::vector<std::string> out(1);
  bool quoted = false;
  for (const char c : line) {
    if (c == '"') {
      quoted = !quoted;
    } else if (c == ',' && !quoted) {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

// The number after 'name': in a printed Python dictionary.
double argument(const std::string& arguments, const std::string& name, double otherwise) {
  const size_t at = arguments.find("'" + name + "': ");
  return at == std::string::npos ? otherwise : std::stod(arguments.substr(at + name.size() + 4));
}

MemorySpec h200_spec() {
  const auto llm = Catalog().llm("llama-3.1-70b");
  const auto device = Catalog().device("h200");
  REQUIRE(llm);
  REQUIRE(device);
  MemorySpec spec;
  spec.llm = *llm, spec.device = *device;
  spec.total_bytes = 150119844414;  // 139.81 GiB, as CUDA reports for an H200; nvidia-smi shows 140.40
  spec.llm.weights = spec.llm.expert_weights = {NumberFormat::kFp8};
  spec.llm.kv = {NumberFormat::kFp8};
  return spec;
}

TEST_CASE("memory: eight KV pools of a real vLLM on an H200") {
  const std::string name = "gtc-2026-doks-h200/engine_configs.csv";
  if (!have_test_data(name)) {
    MESSAGE("skipped: " << test_data(name) << " is not there");
    return;
  }
  std::ifstream in(test_data(name));
  std::string line;
  REQUIRE(std::getline(in, line));
  const std::vector<std::string> header = cells_of(line);
  size_t pools = 0;
  while (std::getline(in, line)) {
    const std::vector<std::string> cells = cells_of(line);
    REQUIRE(cells.size() == header.size());
    std::map<std::string, std::string> row;
    for (size_t i = 0; i < cells.size(); ++i) row[header[i]] = cells[i];
    if (row["speculative"] != "None") continue;  // a drafter's weights, KV and buffers are not modelled
    MemorySpec spec = h200_spec();
    spec.utilization = argument(row["non_default_args"], "gpu_memory_utilization", 0.9);
    spec.requests_max = static_cast<uint32_t>(argument(row["non_default_args"], "max_num_seqs", 1024));
    spec.step_tokens_max = static_cast<uint32_t>(std::stoul(row["max_num_batched_tokens"]));
    const auto plan = plan_memory(spec);
    REQUIRE(plan);
    const double tokens = 16.0 * plan->pages, real = std::stod(row["kv_tokens"]);
    const double percent = 100 * (tokens / real - 1);
    MESSAGE(fmt::format(
        "{:<22} utilization {:.2f}, {:>5} tokens, {:>4} requests: {:>7} real, {:>7.0f} ({:+.2f} %)",
        row["phase"], spec.utilization, spec.step_tokens_max, spec.requests_max, row["kv_tokens"], tokens,
        percent));
    // A step of 32,768 tokens takes 57,344 bytes per token more than one layer's tensors.
    CHECK(std::abs(percent) < (spec.step_tokens_max > 16384 ? 4 : 0.3));
    ++pools;
  }
  CHECK(pools == 8);
}

TEST_CASE("memory: SGLang's fraction and pool") {
  MemorySpec spec = h200_spec();
  spec.rule = CapacityRule::kSglang;
  spec.step_tokens_max = 8192;
  CHECK(sglang_fraction(spec) == doctest::Approx(0.906));  // keeps 13,440 MiB of 139.81 GiB
  spec.total_bytes = uint64_t{80} << 30;
  spec.step_tokens_max = 2048;
  CHECK(sglang_fraction(spec) == doctest::Approx(0.875));  // at least 10 GiB
  spec.total_bytes = uint64_t{24} << 30;
  CHECK(sglang_fraction(spec) == doctest::Approx(0.828));
  spec.total_bytes = 150119844414;
  spec.utilization = 0.9;
  const auto plan = plan_memory(spec);
  REQUIRE(plan);
  // 0.9 of what is free before loading, less the weights: 0.9 * (139.81 - 0.13) - 67.67 GiB.
  CHECK(static_cast<double>(plan->kv_bytes) / 1073741824 == doctest::Approx(58.05).epsilon(0.001));
  int64_t sum = 0;
  for (const MemoryTerm& term : plan->terms) sum += term.bytes;
  CHECK(sum == plan->kv_bytes);
}

}  // namespace
}  // namespace kvtwin
