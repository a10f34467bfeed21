// What a run is compared with: the CPU engine repeats each request's entries and compressions, one request at
// a time. Exact engines must retain the same KV entries; those of the others are forced on the definition,
// because near ties of scores have no order.

#ifndef KVTWIN_TESTS_CONFORMANCE_ENGINES_ALONE_H_
#define KVTWIN_TESTS_CONFORMANCE_ENGINES_ALONE_H_

#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "engine/cpu/compression/compressed_cache.h"
#include "tests/conformance/engines/request_steps.h"
#include "tests/unit/cpu_compression/compress_run.h"

namespace kvtwin::testing {

// The CPU engine, on which one request runs alone, on pages that are never used twice.
class Alone {
 public:
  Alone(const CompressedSetup& setup, const ModelWeights& weights, RequestId request,
        const RequestSteps& of_request)
      : request_(request) {
    tokens_.give(request, of_request.tokens, of_request.prompt());
    CoreConfig core = setup.core;
    core.pages_gpu = 1;
    for (const EntryStep& step : of_request.steps)
      core.pages_gpu += static_cast<uint32_t>(step.allocations.size());
    cpu::CompressedConfig config{.core = core, .score = setup.score, .seed = kScorerSeed};
    if (!tested_kind().exact) {
      config.force_outcomes = [this](RequestId, uint32_t head) {
        return std::span<const uint32_t>(forced_->at(head));
      };
    }
    auto cache = cpu::CompressedCache::make(config, {core.page_tokens, core.pages_gpu, 0, true}, &weights);
    REQUIRE(cache);
    cache_ = cache->get();
    engine_.emplace(cpu::CpuEngineConfig{}, &weights, &tokens_, std::move(*cache));
  }

  // The logits of the step's sample.
  std::vector<float> run(EntryStep step) {
    std::vector<PageAllocation> allocations;
    for (const PageAllocation& one : step.allocations)
      allocations.push_back({0, 0, PageId{pages_++}, one.group});
    LaunchStep launch;
    launch.entries = {&step.entry, 1}, launch.allocations = allocations;
    if (step.pass.has_value()) step.pass->entry = 0, launch.passes = {&*step.pass, 1};
    if (step.compression.has_value()) {
      Compression& compression = *step.compression;
      compression.entry = 0, compression.forced = step.forced, compression.keep = step.keep;
      launch.compressions = {&compression, 1};
    }
    forced_ = &step.retained;
    DataOutcomes values;
    engine_->step(launch, 0, &values);
    for (const auto& [head, positions] : step.retained) {
      const std::span<const uint32_t> own = cache_->positions(request_, head);
      CHECK(std::equal(own.begin(), own.end(), positions.begin(), positions.end()));
    }
    return {engine_->logits().begin(), engine_->logits().end()};
  }

 private:
  const RequestId request_;
  GivenTokens tokens_;
  const Retained* forced_ = nullptr;
  const cpu::CompressedCache* cache_ = nullptr;
  std::optional<cpu::CpuEngine> engine_;
  uint32_t pages_ = 0;
};

struct Compared {
  uint64_t requests = 0, returned = 0, reused = 0, compressions = 0;
  double worst = 0;
};

inline void compare(const CompressedSetup& setup, const ModelWeights& weights, const StepsByRequest& recorded,
                    Compared* out) {
  const double most = tolerance(weights.llm(), setup.core.policies.precision);
  for (const auto& [request, of_request] : recorded.requests) {
    CAPTURE(raw(request));
    Alone alone(setup, weights, request, of_request);
    for (const EntryStep& step : of_request.steps) {
      CAPTURE(step.entry.context);
      const std::vector<float> expected = alone.run(step);
      out->compressions += step.compression.has_value();
      if (!step.entry.samples) continue;
      const double error = relative_error(step.logits, expected);
      CHECK(error <= most);
      out->worst = std::max(out->worst, error);
    }
    ++out->requests, out->returned += of_request.returned, out->reused += of_request.reused;
  }
}

// Runs a script's requests on an engine that drops KV entries, and compares each with itself alone. Returns
// the transfers by kind.
inline std::map<TransferKind, uint64_t> compare_with_alone(const CoreConfig& config, const LlmSpec& llm,
                                                           const ScriptClientOptions& script, Compared* out) {
  const uint64_t seed = script.seed;
  const ModelWeights weights = ModelWeights::random(llm, seed);
  const std::unique_ptr<TestedModel> model = tested_model(weights);
  REQUIRE(!validate_core_config(config).has_value());
  ScriptClient client(script);
  cpu::IdentityTokens tokens({.seed = seed, .unit_tokens = config.unit_tokens, .vocab = llm.vocab});
  StepsByRequest recorded(&tokens, llm.vocab, config.page_tokens);
  CompressedSetup setup{.core = config, .score = score_of(config)};
  setup.concurrent_copies = tested_kind().concurrent_copies && seed % 2 == 1;
  setup.retained = [&](RequestId request, uint32_t head, std::span<const uint32_t> positions) {
    recorded.retains(request, head, positions);
  };
  const std::unique_ptr<TestedEngine> engine = model->compressed(setup, &tokens);
  recorded.use(engine.get());
  run_requests(config, seed, &tokens, &client, &recorded, setup.concurrent_copies ? engine.get() : nullptr);
  compare(setup, weights, recorded, out);
  return recorded.transfers;
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_CONFORMANCE_ENGINES_ALONE_H_
