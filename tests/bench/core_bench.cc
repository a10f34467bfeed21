// Core::apply in steady state: the cost of a decision, per request and step.

#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <string_view>
#include <vector>

#include "engine/kv/group_tables.h"
#include "engine/kv/page_pool.h"
#include "engine/methods/budget_groups.h"
#include "engine/methods/registry.h"
#include "engine/methods/retention.h"
#include "engine/scheduler/core.h"
#include "tests/support/retrieval_names.h"

namespace kvtwin {
namespace {
using kvtwin::testing::kArkvale;
using kvtwin::testing::kFreekv;
using kvtwin::testing::kQuest;
using kvtwin::testing::RetrievalName;

// `requests` requests decode without end and are answered at once.
class Steady {
 public:
  Steady(uint32_t requests, uint32_t repeat_max, uint32_t in_flight)
      : Steady(requests, config(repeat_max, in_flight)) {}
  Steady(uint32_t requests, const CoreConfig& config)
      : Steady(requests, config, make_axes(config.policies)) {}
  Steady(uint32_t requests, const CoreConfig& config, PolicyAxes axes)
      : config_(config), core_(config_, std::move(axes)) {
    for (uint32_t i = 0; i < requests; ++i) arrive();
    while (warm_ < 4 * requests) warm_ += answer() > 1 ? 4 * requests : 1;
  }

  // Answers the launch in flight. Returns its number of single steps.
  uint32_t answer() {
    const auto steps = static_cast<uint32_t>(ends_of_launches_.front() - done_);
    const uint32_t piece = config_.steps_in_flight_max == 2 && steps > 1 ? steps - 1 : steps;
    if (piece == steps) ends_of_launches_.pop_front();
    now_ = now_ + Duration{10};
    ends_.assign(piece, now_);
    commands_.clear();
    core_.apply(now_, StepDone{config_.engine, StepId{done_}, ends_, {}, {}, retained_}, &commands_);
    retained_.clear();
    done_ += piece;
    take();
    return piece;
  }
  uint64_t digest() const { return core_.digest(); }

  static CoreConfig config(uint32_t repeat_max, uint32_t in_flight) {
    CoreConfig config;
    config.pages_gpu = 200'000;
    config.requests_max = 1'024;
    config.step_tokens_max = 8'192;
    config.repeat_max = repeat_max;
    config.steps_in_flight_max = in_flight;
    return config;
  }

 private:
  // The outcome a backend would report: every third KV entry of the ranked ones, every token where slots are
  // dropped in place.
  void keep(const LaunchStep& launch) {
    counts_.assign(launch.compressions.size(), {});
    for (size_t i = 0; i < launch.compressions.size(); ++i) {
      const Compression& c = launch.compressions[i];
      live_.assign(std::max<size_t>(live_.size(), c.end / 64 + 1), ~uint64_t{0});
      if (c.keep.empty()) counts_[i].assign(groups_, 16 + c.end / 3 % 64);
      retained_.push_back({launch.entries[c.entry].request, counts_[i], live_});
    }
  }

  void arrive() {
    RequestReady ready;
    ready.request = RequestId{request_next_++};
    ready.prompt_tokens = 500 + 13 * request_next_ % 300;
    ready.output_tokens = 300 + 97 * request_next_ % 700;
    const RoleRun roles[] = {{{0, Modal::kText, Semantic::kInst}, 100},
                             {{0, Modal::kText, Semantic::kObs}, ready.prompt_tokens - 100}};
    ready.roles = roles;
    ready.turn = 1;
    // As backend.h requires of interrupt(): the coalesced steps in flight end after the running step.
    if (!ends_of_launches_.empty()) {
      const uint64_t end = std::max(done_ + config_.steps_in_flight_max, last_first_ + 1);
      ends_of_launches_.back() = std::min(ends_of_launches_.back(), end);
    }
    commands_.clear();
    core_.apply(now_, ready, &commands_);
    take();
  }

  void take() {
    uint32_t finished = 0;
    for (const Command& command : commands_) {
      if (const auto* launch = std::get_if<LaunchStep>(&command)) {
        last_first_ = raw(launch->step);
        ends_of_launches_.push_back(last_first_ + launch->repeat);
        keep(*launch);
      }
      finished += std::holds_alternative<FinishRequest>(command) ? 1 : 0;
    }
    while (finished-- > 0) arrive();  // another takes its place
  }

  const CoreConfig config_;
  Core core_;
  std::vector<Command> commands_;
  std::vector<Instant> ends_;
  std::vector<std::vector<uint32_t>> counts_;
  std::vector<uint64_t> live_;
  std::vector<CompressionOutcome> retained_;
  const uint32_t groups_ = make_groups(config_.policies).groups();
  std::deque<uint64_t> ends_of_launches_;
  uint64_t last_first_ = 0, done_ = 0;
  uint32_t request_next_ = 0, warm_ = 0;
  Instant now_{};
};

void core_apply(benchmark::State& state, uint32_t repeat_max, uint32_t in_flight) {
  const auto requests = static_cast<uint32_t>(state.range(0));
  Steady steady(requests, repeat_max, in_flight);
  uint64_t steps = 0;
  for (auto _ : state) steps += steady.answer();
  state.counters["request_steps"] =
      benchmark::Counter(static_cast<double>(steps * requests), benchmark::Counter::kIsRate);
  state.counters["steps_per_apply"] = static_cast<double>(steps) / static_cast<double>(state.iterations());
}
BENCHMARK_CAPTURE(core_apply, every_step, 1, 1)->Arg(50)->Arg(256);
BENCHMARK_CAPTURE(core_apply, every_step_two_in_flight, 1, 2)->Arg(50);
BENCHMARK_CAPTURE(core_apply, coalesced, 1u << 20, 1)->Arg(50)->Arg(256);
BENCHMARK_CAPTURE(core_apply, coalesced_two_in_flight, 1u << 20, 2)->Arg(50);

// A scorer with a given compression trigger; the backend ranks.
class BenchScorer final : public Scorer {
 public:
  explicit BenchScorer(CompressionTrigger compression_trigger) : compression_trigger_(compression_trigger) {}
  CompressionTrigger compression_trigger() const override { return compression_trigger_; }
  Causality causality() const override { return Causality::kPrefixClosed; }
  ProbePasses passes(uint32_t) const override { return {}; }
  bool needs_all_layers() const override { return false; }

 private:
  const CompressionTrigger compression_trigger_;
};

// 64 requests with 32 layers of 8 heads: prompts, compressions, decodes and ends in their natural mix.
void core_retention(benchmark::State& state, const char* layout, const char* budget,
                    CompressionTrigger compression_trigger, uint32_t heads_per_group, uint32_t repeat_max) {
  constexpr uint32_t kRequests = 64;
  CoreConfig config = Steady::config(repeat_max, 1);
  config.pages_gpu = 4'000'000;
  config.prefix_cache = false;
  config.policies.identity = "none";
  config.policies.layout = layout;
  config.policies.budget = budget;
  if (std::string_view(layout) == "slot_mask") config.page_tokens = config.unit_tokens = 1;
  config.policies.layout_spec = {32, 8, heads_per_group, Clustering::kAcrossLayers};
  BudgetSpec& spec = config.policies.budget_spec;
  spec.kv_entries = 256;
  spec.ratio = kWhole / 3;
  spec.interval = 16;
  for (uint32_t head = 0; head < 256; ++head) {
    spec.mu.push_back(kWhole / 256 * head / 2);
    spec.sigma.push_back(kWhole / 64);
  }
  PolicyAxes axes = make_axes(config.policies);
  axes.scorer = std::make_unique<BenchScorer>(compression_trigger);
  Steady steady(kRequests, config, std::move(axes));
  uint64_t steps = 0;
  for (auto _ : state) steps += steady.answer();
  using benchmark::Counter;
  const auto request_steps = static_cast<double>(steps * kRequests);
  state.counters["per_request_step"] = Counter(request_steps, Counter::kIsRate | Counter::kInvert);
}
constexpr uint32_t kCoalesce = 1u << 20;
BENCHMARK_CAPTURE(core_retention, paged, "paged", "all", CompressionTrigger::kAtNoTime, 0, 1);
BENCHMARK_CAPTURE(core_retention, compact, "compact", "uniform", CompressionTrigger::kPromptEnd, 0, 1);
BENCHMARK_CAPTURE(core_retention, compact_decode, "compact", "uniform", CompressionTrigger::kDecodeStep, 0,
                  1);
BENCHMARK_CAPTURE(core_retention, ragged_4, "ragged", "reserved", CompressionTrigger::kChunkEnd, 4, 1);
BENCHMARK_CAPTURE(core_retention, ragged_1, "ragged", "reserved", CompressionTrigger::kChunkEnd, 1, 1);
BENCHMARK_CAPTURE(core_retention, ragged_1_coalesced, "ragged", "reserved", CompressionTrigger::kChunkEnd, 1,
                  kCoalesce);
BENCHMARK_CAPTURE(core_retention, released_4, "ragged", "released", CompressionTrigger::kChunkEnd, 4, 1);
BENCHMARK_CAPTURE(core_retention, ada_1, "ragged", "ada", CompressionTrigger::kPromptEnd, 1, 1);
BENCHMARK_CAPTURE(core_retention, slot_mask, "slot_mask", "uniform", CompressionTrigger::kPromptEnd, 0, 1);
BENCHMARK_CAPTURE(core_retention, page_mask, "page_mask", "uniform", CompressionTrigger::kPromptEnd, 0, 1);
BENCHMARK_CAPTURE(core_retention, resident, "ring", "uniform", CompressionTrigger::kAtNoTime, 0, 1);

// The same for policies that retain every KV entry: placements and formats.
void core_axis(benchmark::State& state, const CoreConfig& config) {
  constexpr uint32_t kRequests = 64;
  if (const auto problem = validate_core_config(config)) return state.SkipWithError(problem->c_str());
  Steady steady(kRequests, config);
  uint64_t steps = 0;
  for (auto _ : state) steps += steady.answer();
  using benchmark::Counter;
  const auto request_steps = static_cast<double>(steps * kRequests);
  state.counters["per_request_step"] = Counter(request_steps, Counter::kIsRate | Counter::kInvert);
}
CoreConfig axis(const char* precision, const char* retrieval) {
  CoreConfig config = Steady::config(1, 1);
  config.page_tokens = config.unit_tokens = 32;
  config.prefix_cache = false;
  config.policies.precision = precision;
  config.policies.retrieval = retrieval;
  return config;
}
// Observations get two bits, all other tokens four.
CoreConfig triaxial() {
  CoreConfig config = axis("triaxial", "all");
  config.pages_int2 = config.pages_gpu / 2;
  config.policies.identity = "none";
  for (uint32_t t = 0; t < kTemporals; ++t) {
    const auto tag = tag_code(static_cast<Temporal>(t), Modal::kText, Semantic::kObs);
    config.policies.precision_spec.four_bit_tags &= ~(uint64_t{1} << tag);
  }
  return config;
}
// Four resident pages in requests of ten to thirty.
CoreConfig resident_of(const char* retrieval, RetrievalName method) {
  CoreConfig config = axis("bf16", retrieval);
  config.pages_host = 200'000;
  config.policies.placement = "resident";
  config.policies.retrieval_spec = retrieval_defaults(method);
  config.policies.retrieval_spec.budget_tokens = 128;
  config.policies.retrieval_spec.sink_tokens = config.policies.retrieval_spec.window_tokens = 32;
  return config;
}
BENCHMARK_CAPTURE(core_axis, int4, axis("int4", "all"));
BENCHMARK_CAPTURE(core_axis, kivi, axis("kivi_int2", "all"));
BENCHMARK_CAPTURE(core_axis, triaxial, triaxial());
CoreConfig quest() {
  CoreConfig config = axis("bf16", "quest");
  config.policies.retrieval_spec = retrieval_defaults(kQuest);
  return config;
}
BENCHMARK_CAPTURE(core_axis, quest, quest());
BENCHMARK_CAPTURE(core_axis, arkvale, resident_of("arkvale", kArkvale));
BENCHMARK_CAPTURE(core_axis, freekv, resident_of("freekv", kFreekv));

// Admission of one request: O(layers * heads / heads_per_group).
void reservation(benchmark::State& state) {
  CoreConfig config = Steady::config(1, 1);
  config.policies.layout = "ragged";
  config.policies.budget = "reserved";
  config.policies.layout_spec = {32, 8, static_cast<uint32_t>(state.range(0)), Clustering::kAcrossLayers};
  config.policies.budget_spec.mu.assign(256, kWhole / 3);
  config.policies.budget_spec.sigma.assign(256, kWhole / 32);
  const PolicyAxes axes = make_axes(config.policies);
  const Retention retention(config, axes);
  uint64_t pages = 0;
  uint32_t tokens = 10'000;
  for (auto _ : state) pages += retention.pages_retained(tokens++, 16);
  state.counters["out"] = static_cast<double>(pages % 65'536);
  state.SetComplexityN(256 / state.range(0));
}
BENCHMARK(reservation)->RangeMultiplier(2)->Range(1, 32)->Complexity(benchmark::oN);

// The tables of one request under compression: each group frees the pages of the 70 % that it drops of a
// chunk of 2,048 tokens (90 of 128). Per group: cost.reclaim_ns.
void tables_of_compression(benchmark::State& state) {
  constexpr uint32_t kPage = 16, kChunk = 2'048, kRetained = 614, kChunks = 8;
  GroupShape shape;
  shape.groups = static_cast<uint32_t>(state.range(0)), shape.page_tokens = kPage;
  PagePool pool(PageId{0}, 2'000'000, PageOrder::kLowestFirst);
  GroupTables tables;
  std::vector<uint32_t> wanted, kv_entries;
  std::vector<PageId> spare;
  uint32_t tokens = 0;
  uint64_t stamp = 0;
  double seconds = 0;
  const auto roll_back = [&] {
    for (const PageId page : spare) pool.release(page, ++stamp);
    spare.clear();
  };
  tables.open(&shape);
  for (auto _ : state) {
    if (tokens >= kChunk * kChunks) {
      tables.clear(&spare);
      roll_back();
      tables.open(&shape);
      tokens = 0;
    }
    wanted.clear();
    tables.wanted(tokens, tokens + kChunk, &wanted);
    for (const uint32_t group : wanted) tables.give(group, pool.acquire());
    tables.settle();
    tokens += kChunk;
    const auto begin = std::chrono::steady_clock::now();
    kv_entries.assign(shape.groups, 0);
    for (uint32_t g = 0; g < shape.groups; ++g)
      kv_entries[g] = tables.kv_entries(g, tokens) - (kChunk - kRetained);
    tables.keep(tokens, kv_entries);
    tables.trim(tokens, &spare);
    roll_back();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    state.SetIterationTime(took.count());
    seconds += took.count();
  }
  const auto groups = static_cast<double>(state.iterations()) * shape.groups;
  state.counters["ns_per_group"] = 1e9 * seconds / groups;
}
BENCHMARK(tables_of_compression)->UseManualTime()->Arg(8)->Arg(64)->Arg(256);

}  // namespace
}  // namespace kvtwin
