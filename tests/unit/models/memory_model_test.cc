#include "models/catalog/memory_model.h"

#include <doctest/doctest.h>

#include <cmath>

#include "models/catalog/catalog.h"
#include "models/catalog/page_sizing.h"

namespace kvtwin {
namespace {

MemorySpec spec(const char* llm, const char* device) {
  MemorySpec s;
  const auto m = Catalog().llm(llm);
  const auto d = Catalog().device(device);
  REQUIRE(m);
  REQUIRE(d);
  s.llm = *m, s.device = *d;
  return s;
}

int64_t term(const MemoryPlan& plan, const std::string& name) {
  for (const MemoryTerm& t : plan.terms) {
    if (t.name == name) return t.bytes;
  }
  FAIL("no term " << name);
  return 0;
}

TEST_CASE("memory: the predicted capacity of the measured RTX 4090 run, compared with the real one") {
  // vLLM 0.19, Llama-3.1-8B bf16, utilization 0.9, 256 requests, 2,048 tokens per step: 2,588 pages of 16.
  const auto plan = plan_memory(spec("llama-3.1-8b", "rtx-4090"));
  REQUIRE(plan);
  const double error = static_cast<double>(plan->pages) / 2588 - 1;
  MESSAGE("RTX 4090, Llama-3.1-8B: " << plan->pages << " pages predicted, 2588 real, " << error * 100
                                     << " %");
  CHECK(plan->page_bytes == 16 * 131072);
  CHECK(std::abs(error) < 0.06);
}

TEST_CASE("memory: activation peaks of the published profiling runs") {
  // llm-d capacity planner, "vLLM Empirical Memory Profiling Results": vLLM 0.11 on an H100, where the
  // defaults are 1,024 requests and 8,192 tokens per step. GiB of torch peak memory.
  const struct {
    const char* llm;
    double gib;
  } runs[] = {{"llama-3.1-8b", 4.76}, {"qwen3-32b", 5.64}, {"gpt-oss-20b", 7.38}};
  for (const auto& run : runs) {
    CAPTURE(std::string(run.llm));
    MemorySpec s = spec(run.llm, "h100");
    s.requests_max = 1024, s.step_tokens_max = 8192;
    const auto plan = plan_memory(s);
    REQUIRE(plan);
    CHECK(static_cast<double>(-term(*plan, "activation peak")) / 1073741824 ==
          doctest::Approx(run.gib).epsilon(0.01));
  }
}

TEST_CASE("memory: KV capacity of the same published runs, within 2 % of the device") {
  const struct {
    const char* llm;
    uint32_t tp;
    double gib;
  } runs[] = {{"llama-3.1-8b", 1, 51.38}, {"gpt-oss-20b", 1, 50.28}, {"qwen3-32b", 2, 34.49}};
  for (const auto& run : runs) {
    CAPTURE(std::string(run.llm));
    MemorySpec s = spec(run.llm, "h100");
    s.requests_max = 1024, s.step_tokens_max = 8192, s.tp = run.tp;
    s.total_bytes = static_cast<uint64_t>(79.18 * 1073741824);
    const auto plan = plan_memory(s);
    REQUIRE(plan);
    const double gib = static_cast<double>(plan->kv_bytes) / 1073741824;
    MESSAGE(std::string(run.llm) << " tp " << run.tp << ": " << gib << " GiB predicted, " << run.gib
                                 << " real");
    CHECK(std::abs(gib - run.gib) < 0.02 * 79.18);
  }
}

TEST_CASE("memory: the terms sum to the memory left for KV, and pages fill it") {
  MemorySpec s = spec("qwen3-30b-a3b", "h200");
  s.staging_bytes = 1 << 30, s.rule = CapacityRule::kVllmGraphs;
  const auto plan = plan_memory(s);
  REQUIRE(plan);
  int64_t sum = 0;
  for (const MemoryTerm& t : plan->terms) {
    sum += t.bytes;
    CHECK_FALSE(t.how.empty());
  }
  CHECK(sum == plan->kv_bytes);
  CHECK(uint64_t{plan->pages} * plan->page_bytes <= static_cast<uint64_t>(plan->kv_bytes));
  CHECK(uint64_t{plan->pages + 1} * plan->page_bytes > static_cast<uint64_t>(plan->kv_bytes));
  CHECK(term(*plan, "staging") == -(1 << 30));
}

TEST_CASE("page sizing: what fits, up to what is asked for, and an error below what is needed") {
  constexpr uint64_t kToken = 131'072;  // Llama-3.1-8B in bf16
  const struct {
    const char* name;
    uint64_t free_bytes;
    double fraction;
    uint64_t most, least;
    uint32_t pages;  // 0: an error
    uint32_t others = 0;
  } rows[] = {{"a large GPU: what is asked for", 124'000'000'000, 0.66, 327'680, 73'728, 20'480},
              {"80 GB less the weights: what fits", 63'000'000'000, 0.66, 327'680, 73'728, 19'354},
              {"room for two engines that come", 63'000'000'000, 0.66, 327'680, 73'728, 19'354, 2},
              {"the same, which is less than the fraction", 44'000'000'000, 0.66, 327'680, 73'728, 10'643, 2},
              {"the same, but what is needed goes first", 20'000'000'000, 0.66, 327'680, 73'728, 4'608, 2},
              {"a second engine next to it", 20'000'000'000, 0.8, 65'536, 32'768, 4'096},
              {"exactly what is needed", kEngineBytes + kToken * 1024, 1, 4'096, 1'024, 64},
              {"a page less", kEngineBytes + kToken * 1023, 1, 4'096, 1'024, 0},
              {"less than an engine's own memory", 1'000'000'000, 1, 4'096, 1'024, 0}};
  for (const auto& row : rows) {
    CAPTURE(std::string(row.name));
    const auto pages = pages_that_fit({.free_bytes = row.free_bytes,
                                       .bytes_per_token = kToken,
                                       .page_tokens = 16,
                                       .fraction = row.fraction,
                                       .others = row.others,
                                       .tokens_of_others = 65'536,
                                       .tokens_most = row.most,
                                       .tokens_least = row.least},
                                      "NVIDIA H100 80GB HBM3", "llama-3.1-8b");
    REQUIRE(pages.has_value() == (row.pages > 0));
    if (pages) CHECK(*pages == row.pages);
    if (!pages) CHECK(pages.error().text().find("llama-3.1-8b") != std::string::npos);
  }
}

TEST_CASE("memory: every given number overrides the model's") {
  MemorySpec s = spec("llama-3.1-8b", "rtx-4090");
  s.total_bytes = 20'000'000'000, s.weight_bytes = 8'000'000'000, s.activation_bytes = 1'000'000'000;
  s.runtime_bytes = 500'000'000, s.graph_bytes = 250'000'000, s.utilization = 0.5;
  const auto plan = plan_memory(s);
  REQUIRE(plan);
  CHECK(plan->kv_bytes == 250'000'000);
  s.kv_bytes = 2588ull * 2097152;
  const auto given = plan_memory(s);
  REQUIRE(given);
  CHECK(given->pages == 2588);
}

TEST_CASE("memory: a model that does not fit is refused with the terms and the smallest split that fits") {
  const auto problem = plan_memory(spec("llama-3.1-70b", "h100"));
  REQUIRE_FALSE(problem);
  CHECK(problem.error().text().find("weights 141.11 GB") != std::string::npos);
  CHECK(problem.error().hint == "tensor parallelism 2 would fit");
  MemorySpec s = spec("llama-3.1-70b", "h100");
  s.tp = 2;
  CHECK(plan_memory(s));
  s.tp = 3;
  CHECK_FALSE(plan_memory(s));
  s.tp = 4, s.utilization = 1.5;
  CHECK_FALSE(plan_memory(s));
}

}  // namespace
}  // namespace kvtwin
