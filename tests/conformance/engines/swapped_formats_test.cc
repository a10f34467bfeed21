// Conformance of engines that keep KV entries in two formats, in whole runs on few pages:
//   * a request that was swapped out to the host and returned computes what it computes alone, without ever
//     leaving the GPU. The CPU engine repeats its entries, one request at a time, in pages of the formats
//     that it had;
//   * a request that begins with a prefix from the host computes what it computes on an engine that performs
//     the same steps and has so many pages that none is overwritten or copied.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "engine/cpu/packed/mixed_precision_cache.h"
#include "tests/conformance/engines/definition.h"
#include "tests/conformance/engines/request_steps.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

LlmSpec packable(LlmSpec llm) {
  llm.head_dim = 32;
  return llm;
}

// The CPU engine, on which one request runs alone, on pages that are never used twice.
class AloneInFormats {
 public:
  AloneInFormats(const CoreConfig& core, const ModelWeights& weights, RequestId request,
                 const RequestSteps& of_request)
      : pages_int2_(core.pages_int2) {
    tokens_.give(request, of_request.tokens, of_request.prompt());
    uint32_t pages[2] = {0, 1};  // int2, int4
    for (const EntryStep& step : of_request.steps) {
      for (const PageAllocation& one : step.allocations) ++pages[is_int4(one.page)];
    }
    next_[1] = pages[0];
    auto cache = cpu::MixedPrecisionCache::make(
        {.page_tokens = core.page_tokens, .pages_gpu = pages[0] + pages[1], .poison = true}, weights.llm(),
        {pages[0], core.policies.precision_spec.group, core.step_tokens_max});
    REQUIRE(cache);
    engine_.emplace(cpu::CpuEngineConfig{}, &weights, &tokens_, std::move(*cache));
  }

  // The logits of the step's sample.
  std::vector<float> run(const EntryStep& step) {
    std::vector<PageAllocation> allocations;
    for (const PageAllocation& one : step.allocations)
      allocations.push_back({0, 0, PageId{next_[is_int4(one.page)]++}});
    DataOutcomes values;
    LaunchStep launch;
    launch.entries = {&step.entry, 1}, launch.allocations = allocations, launch.formats = step.formats;
    engine_->step(launch, 0, &values);
    return {engine_->logits().begin(), engine_->logits().end()};
  }

 private:
  bool is_int4(PageId page) const { return raw(page) >= pages_int2_; }

  const uint32_t pages_int2_;  // of the engine that was recorded
  GivenTokens tokens_;
  std::optional<cpu::CpuEngine> engine_;
  uint32_t next_[2] = {0, 0};
};

// Sums of squares, over many logits.
struct Distance {
  double differences = 0, sizes = 0;
  void add(std::span<const float> got, std::span<const float> expected) {
    REQUIRE(got.size() == expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      differences += (double{got[i]} - double{expected[i]}) * (double{got[i]} - double{expected[i]});
      sizes += double{expected[i]} * double{expected[i]};
    }
  }
  double relative() const { return std::sqrt(differences / sizes); }
};

struct ComparedFormats {
  uint64_t requests = 0, returned = 0, low_bit = 0;
  Distance of_returned, of_others;  // from what they compute alone
  Distance of_formats;              // alone: from what unpacked KV entries give
};

void compare_formats(const CoreConfig& core, const ModelWeights& weights, const StepsByRequest& recorded,
                     ComparedFormats* out) {
  for (const auto& [request, of_request] : recorded.requests) {
    CAPTURE(raw(request));
    AloneInFormats alone(core, weights, request, of_request);
    const Definition unpacked(weights, of_request.tokens);
    for (const EntryStep& step : of_request.steps) {
      CAPTURE(step.entry.context);
      const std::vector<float> expected = alone.run(step);
      for (const FormatRun& run : step.formats) out->low_bit += run.four ? 0 : run.count;
      if (!step.entry.samples) continue;
      (of_request.returned ? out->of_returned : out->of_others).add(step.logits, expected);
      out->of_formats.add(expected, unpacked.at(step.entry.context + step.entry.tokens));
      if (tested_kind().exact) CHECK(step.logits == expected);
    }
    ++out->requests, out->returned += of_request.returned;
  }
}

// Pages for one to two requests, and a host tier.
CoreConfig short_of_pages_in_formats(uint64_t seed) {
  CoreConfig out;
  out.page_tokens = out.unit_tokens = 32;
  out.prefix_cache = false;
  out.requests_max = 8;
  out.step_tokens_max = 64;
  out.steps_in_flight_max = 1 + static_cast<uint32_t>(seed % 2);
  out.pages_gpu = 14;
  out.pages_int2 = 5;
  out.pages_host = 400;
  out.preemption = PreemptionKind::kSwap;
  out.policies.placement = "host";
  out.policies.precision = "triaxial";
  out.policies.precision_spec.four_bit_tags = draw({seed, 7}) & kAllTags;
  out.policies.precision_spec.ageing = Ageing::kIgnore;
  return out;
}

void check_swapped_formats(const LlmSpec& llm, uint64_t seed, ComparedFormats* out) {
  CAPTURE(seed);
  const ModelWeights weights = ModelWeights::random(llm, seed);
  const std::unique_ptr<TestedModel> model = tested_model(weights);
  const CoreConfig config = short_of_pages_in_formats(seed);
  REQUIRE(!validate_core_config(config).has_value());
  REQUIRE(!cannot_combine(config, tested_kind().computes).has_value());
  ScriptClient client({.seed = seed,
                       .sessions = 8,
                       .requests_per_session = 2,
                       .unit_tokens = config.unit_tokens,
                       .prompt_tokens_max = 150,
                       .output_tokens_max = 60,
                       .roles = true});
  cpu::IdentityTokens tokens({.seed = seed, .unit_tokens = config.unit_tokens, .vocab = llm.vocab});
  StepsByRequest recorded(&tokens, llm.vocab, config.page_tokens);
  const bool concurrent_copies = tested_kind().concurrent_copies && seed % 2 == 1;
  const std::unique_ptr<TestedEngine> engine = model->mixed_precision(config, concurrent_copies, &tokens);
  recorded.use(engine.get());
  run_requests(config, seed, &tokens, &client, &recorded, concurrent_copies ? engine.get() : nullptr);
  compare_formats(config, weights, recorded, out);
}

// The steps of another engine, on pages that are never used twice: instead of a copy of a page, its requests
// find the page itself.
class OnOwnPages {
 public:
  OnOwnPages(std::unique_ptr<TestedEngine> engine, const CoreConfig& core, uint32_t pages_int2)
      : engine_(std::move(engine)), pages_int2_(core.pages_int2), next_{0, pages_int2} {}

  std::vector<float> step(const LaunchStep& launch, uint32_t offset) {
    if (offset == 0) translate(launch);
    LaunchStep own = launch;
    own.allocations = allocations_, own.prefix_hits = hits_;
    DataOutcomes values;
    engine_->step(own, offset, &values);
    return engine_->logits();
  }
  void notify(const Command& command) {
    const auto* transfer = std::get_if<StartTransfer>(&command);
    if (transfer == nullptr) return engine_->notify(command);
    for (size_t i = 0; i < transfer->source.size(); ++i)
      at_[transfer->target[i]] = at_.at(transfer->source[i]);
  }

 private:
  PageId fresh(PageId page) { return at_[page] = PageId{next_[raw(page) < pages_int2_ ? 0 : 1]++}; }
  void translate(const LaunchStep& launch) {
    allocations_.assign(launch.allocations.begin(), launch.allocations.end());
    for (PageAllocation& one : allocations_) one.page = fresh(one.page);
    hits_.assign(launch.prefix_hits.begin(), launch.prefix_hits.end());
    pages_.clear();
    for (PrefixHit& hit : hits_) {
      std::vector<PageId>& pages = pages_.emplace_back(hit.pages.begin(), hit.pages.end());
      for (PageId& page : pages) page = page == kNoPage ? kNoPage : at_.at(page);
      hit.pages = pages;
    }
  }

  const std::unique_ptr<TestedEngine> engine_;
  const uint32_t pages_int2_;  // of the other engine
  uint32_t next_[2];
  std::map<PageId, PageId> at_;
  std::vector<PageAllocation> allocations_;
  std::vector<PrefixHit> hits_;
  std::deque<std::vector<PageId>> pages_;
};

// Performs every step on both.
class OnBoth final : public OutcomeSource {
 public:
  OnBoth(TestedEngine* engine, OnOwnPages* other) : engine_(*engine), other_(*other) {}
  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override {
    engine_.step(launch, offset, values);
    const std::vector<float> got = engine_.logits(), expected = other_.step(launch, offset);
    distance.add(got, expected);
    if (tested_kind().exact) CHECK(got == expected);
    for (const PrefixHit& hit : launch.prefix_hits) {
      const auto from_host = [&](PageId page) { return loaded_.contains(page); };
      hits += offset == 0 && std::any_of(hit.pages.begin(), hit.pages.end(), from_host);
    }
    for (const PageAllocation& one : launch.allocations) loaded_.erase(one.page);
  }
  void notify(const Command& command) override {
    const auto* transfer = std::get_if<StartTransfer>(&command);
    if (transfer != nullptr && transfer->kind == TransferKind::kLoad)
      loaded_.insert(transfer->target.begin(), transfer->target.end());
    engine_.notify(command), other_.notify(command);
  }

  Distance distance;
  uint64_t hits = 0;  // that list pages from the host

 private:
  TestedEngine& engine_;
  OnOwnPages& other_;
  std::set<PageId> loaded_;
};

struct Offloaded {
  uint64_t hits = 0;
  Distance distance;
};

void check_offloaded_formats(const LlmSpec& llm, uint64_t seed, Offloaded* out) {
  CAPTURE(seed);
  const ModelWeights weights = ModelWeights::random(llm, seed);
  const std::unique_ptr<TestedModel> model = tested_model(weights);
  CoreConfig config = short_of_pages_in_formats(seed);
  config.prefix_cache = true;
  config.policies.identity = "session";
  config.pages_gpu = 20, config.pages_int2 = 8, config.offload_pages_target = 12;
  if (seed % 3 != 0) config.preemption = PreemptionKind::kRecompute;
  REQUIRE(!validate_core_config(config).has_value());
  REQUIRE(!cannot_combine(config, tested_kind().computes).has_value());
  ScriptClient client({.seed = seed,
                       .sessions = 6,
                       .requests_per_session = 4,
                       .unit_tokens = config.unit_tokens,
                       .prompt_tokens_max = 120,
                       .output_tokens_max = 20,
                       .roles = true});
  cpu::IdentityTokens tokens({.seed = seed, .unit_tokens = config.unit_tokens, .vocab = llm.vocab});
  CoreConfig large = config;
  large.pages_gpu = 1'600, large.pages_int2 = 800;
  const std::unique_ptr<TestedEngine> engine = model->mixed_precision(config, false, &tokens);
  OnOwnPages other(model->mixed_precision(large, false, &tokens), config, large.pages_int2);
  OnBoth both(engine.get(), &other);
  run_requests(config, seed, &tokens, &client, &both, nullptr);
  out->hits += both.hits;
  out->distance.differences += both.distance.differences, out->distance.sizes += both.distance.sizes;
}

}  // namespace

TEST_CASE("X-9 swap: requests with KV entries in two formats compute the same after a return from the host") {
  for (const LlmSpec& model : tested_kind().compressed_models) {
    const LlmSpec llm = packable(model);
    ComparedFormats compared;
    for (uint64_t seed = 1; seed <= 6; ++seed) check_swapped_formats(llm, seed, &compared);
    const double returned = compared.of_returned.relative(), others = compared.of_others.relative(),
                 formats = compared.of_formats.relative();
    MESSAGE(compared.requests << " requests, " << compared.returned << " returned from the host, "
                              << compared.low_bit << " KV entries of 2 bits; relative error of those that "
                              << "returned " << returned << ", of others " << others << ", of the formats "
                              << formats);
    CHECK(compared.returned > 8);
    CHECK(compared.low_bit > 500);
    // A number near the midpoint of two codes may get the other one.
    if (!tested_kind().exact) CHECK(returned < tolerance(llm) + 0.5 * formats);
  }
}

TEST_CASE("X-9 prefixes: requests that begin with a prefix of two formats from the host compute the same") {
  for (const LlmSpec& model : tested_kind().compressed_models) {
    const LlmSpec llm = packable(model);
    Offloaded offloaded;
    for (uint64_t seed = 1; seed <= 6; ++seed) check_offloaded_formats(llm, seed, &offloaded);
    MESSAGE(offloaded.hits << " prefixes from the host; relative error " << offloaded.distance.relative());
    CHECK(offloaded.hits > 8);
    CHECK(offloaded.distance.relative() <= tolerance(llm, "triaxial"));
  }
}
