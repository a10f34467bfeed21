#include "scenarios/validate/open_loop.h"

#include <doctest/doctest.h>

#include <vector>

namespace kvtwin {
namespace {

// A step takes 100 us, 150 with a prompt; its range is 90 to 160.
class ConstantCost final : public CostModel {
 public:
  StepCost step(const StepShape& shape) override {
    StepCost cost;
    cost.device = (shape.chunks.empty() ? 100'000 : 150'000) * kTicksPerNs;
    cost.by_evidence[static_cast<size_t>(Evidence::kMeasured)] = cost.device;
    kv_entries.push_back(shape.decode_context_sum);
    ranked.push_back(shape.compressions.empty() ? 0 : shape.compressions[0].ranked);
    return cost;
  }
  StepRange range(const StepShape&) override { return {90'000 * kTicksPerNs, 160'000 * kTicksPerNs}; }
  std::vector<uint64_t> kv_entries;
  std::vector<uint32_t> ranked;
};

constexpr int64_t kUs = 1000;

Log log_of(const std::vector<int64_t>& ends_us, const std::vector<Log::Transfer>& transfers) {
  Log out;
  Log::Engine& engine = out.engines.emplace_back();
  for (const int64_t us : ends_us) engine.ends.push_back({us * kUs});
  engine.transfers = transfers;
  return out;
}

}  // namespace

TEST_CASE(
    "open loop: a step that took longer than predicted has a negative error, a shorter one a positive one") {
  ConstantCost flat;
  // The second step ends 80 us after the first; the third was launched 20 us after that, and took 150.
  Log log = log_of({125, 205, 375}, {});
  log.engines[0].coalesced_runs = {
      {.step = 0, .steps = 2, .outcome = {.host = {16 * kUs}}, .eos = {}, .retained = {}},
      {.step = 2, .steps = 1, .outcome = {.host = {5 * kUs}}, .eos = {}, .retained = {}}};
  OpenLoop open(&log, {.cost = &flat}, {});
  const PlanEntry decode[] = {{RequestId{1}, EntryKind::kDecode, false, true, 1, 40}};
  open.saw_command({0}, LaunchStep{.step = StepId{0},
                                   .repeat = 2,
                                   .tokens = 1,
                                   .entries = decode,
                                   .allocations = {},
                                   .prefix_hits = {}});
  const PlanEntry chunk[] = {{RequestId{2}, EntryKind::kChunk, true, true, 64, 0}};
  const Compression::Forced forced[] = {{0, 4}};
  const uint32_t keep[] = {10};
  const Compression compression[] = {{.entry = 0, .begin = 0, .end = 64, .forced = forced, .keep = keep}};
  open.saw_command({225 * kUs}, LaunchStep{.step = StepId{2},
                                           .tokens = 64,
                                           .entries = chunk,
                                           .allocations = {},
                                           .prefix_hits = {},
                                           .compressions = compression});
  const std::vector<PricedStep> steps = open.steps();
  REQUIRE(steps.size() == 3);
  CHECK(steps[0].measured == doctest::Approx(125));
  CHECK(steps[0].host == doctest::Approx(8));  // of a run of two steps
  CHECK(steps[1].host == doctest::Approx(8));
  CHECK(steps[2].host == doctest::Approx(5));
  CHECK(steps[0].predicted == doctest::Approx(100));
  CHECK(steps[0].error() == doctest::Approx(-0.2));
  CHECK(steps[1].measured == doctest::Approx(80));
  CHECK(steps[1].error() == doctest::Approx(0.25));
  CHECK(steps[2].measured == doctest::Approx(150));
  CHECK(steps[2].error() == doctest::Approx(0));
  CHECK(steps[0].low == doctest::Approx(90));
  CHECK(steps[0].high == doctest::Approx(160));
  CHECK(!steps[1].chunks);
  CHECK(steps[2].chunks);
  CHECK(flat.kv_entries == std::vector<uint64_t>{40, 41, 0});  // each coalesced step reads one KV entry more
  CHECK(flat.ranked == std::vector<uint32_t>{0, 0, 64});
}

TEST_CASE(
    "open loop: a step that recalls pages is priced by its graph, from the recorded end of the previous "
    "step") {
  ConstantCost flat;
  const Log log = log_of({100, 400, 600}, {});
  RecordedOutcomes outcomes;
  auto& steps = outcomes.engines.emplace_back().steps;
  steps[0].recalls = {{.blocking = 30, .background = 0, .corrected = 0, .heads = 1, .chosen = 30}};
  steps[1].recalls = {{.blocking = 0, .background = 5, .corrected = 0, .heads = 1, .chosen = 30}};
  LlmSpec llm;
  llm.name = "tiny", llm.layers = 1, llm.query_heads = 2, llm.kv_heads = 1, llm.head_dim = 16;
  llm.hidden = 32, llm.intermediate = 64, llm.vocab = 100, llm.context_window = 4096;
  RetrievalCost prices(llm, {}, {}, 1, {.page_tokens = 32});
  prices.set_measured({.page_now_us = 2, .page_next_us = 1});
  sim::GraphPricerSpec spec;
  spec.graph.kind = RetrievalKind::kRecallsPages, spec.graph.speculation = false, spec.graph.layers = 1;
  spec.policy.budget_tokens = 256, spec.policy.sink_tokens = 32, spec.policy.window_tokens = 64;
  spec.page_tokens = 32;
  sim::GraphPricer pricer(spec, &flat, &prices);
  MethodWork work;
  work.kv_heads = 1, work.query_heads = 2, work.page_tokens = 32, work.chooses = true;
  OpenLoop open(&log, {.cost = &flat, .pricers = {&pricer}, .outcomes = &outcomes, .work = work}, {});
  const PlanEntry decode[] = {{RequestId{1}, EntryKind::kDecode, false, true, 1, 2000}};
  open.saw_command({0}, LaunchStep{.step = StepId{0},
                                   .repeat = 3,
                                   .tokens = 1,
                                   .entries = decode,
                                   .allocations = {},
                                   .prefix_hits = {}});
  const std::vector<PricedStep> priced = open.steps();
  REQUIRE(priced.size() == 3);
  CHECK(priced[0].predicted == doctest::Approx(160));  // 30 pages of 2 us before its attention
  CHECK(priced[1].predicted == doctest::Approx(100));
  CHECK(priced[2].predicted == doctest::Approx(100));  // without recorded recalls
  CHECK(priced[0].dense == doctest::Approx(100));
  const auto count = [&](size_t step, Family family) {
    return priced[step].counts[static_cast<size_t>(family)];
  };
  CHECK(count(0, Family::kPageNow) == 60);  // pages of 16 tokens
  CHECK(count(1, Family::kPageNow) == 0);
  CHECK(count(1, Family::kPageNext) == 10);
  CHECK(count(1, Family::kPageConcurrent) == 10);
  CHECK(count(0, Family::kChoice) == 1);
}

TEST_CASE("open loop: copies follow one another in each direction, and a failed one is left out") {
  ConstantCost flat;
  const Log log = log_of({}, {{0, {20 * kUs}, false},
                              {1, {45 * kUs}, false},
                              {2, {50 * kUs}, false},
                              {3, {60 * kUs}, true},
                              {4, {70 * kUs}, false}});
  OpenLoop open(&log, {.cost = &flat},
                {.in_overhead_us = 2,
                 .out_overhead_us = 10,
                 .in_bytes_per_us = 100,
                 .out_bytes_per_us = 100,
                 .both_bytes_per_us = 200,
                 .page_bytes = 1000});
  const PageId pages[] = {PageId{1}, PageId{2}};
  const auto copy = [&](uint64_t number, int64_t us, Tier from, Tier to) {
    open.saw_command({us * kUs}, StartTransfer{{}, TransferId{number}, {}, from, to, pages, pages});
  };
  copy(0, 0, Tier::kHost, Tier::kGpu);
  copy(1, 5, Tier::kHost, Tier::kGpu);  // it waits for the first
  copy(2, 10, Tier::kGpu, Tier::kHost);
  copy(3, 10, Tier::kGpu, Tier::kHost);
  copy(4, 10, Tier::kDisk, Tier::kGpu);  // has a different price
  REQUIRE(open.copies().size() == 3);
  CHECK(open.copies()[0].predicted == doctest::Approx(22));
  CHECK(open.copies()[0].error() == doctest::Approx(0.1));
  CHECK(open.copies()[1].measured == doctest::Approx(25));
  CHECK(open.copies()[1].error() == doctest::Approx(-0.12));
  CHECK(open.copies()[2].predicted == doctest::Approx(30));
  CHECK(open.copies()[2].measured == doctest::Approx(40));
  CHECK(!open.copies()[2].to_gpu);
}

TEST_CASE("open loop: a copy starts when the host has submitted it, or behind the one before") {
  ConstantCost flat;
  const Log log = log_of({100}, {{0, {50 * kUs}, false}, {1, {80 * kUs}, false}});
  OpenLoop open(&log, {.cost = &flat},
                {.planning = {.ns = 10'000, .request_ns = 1'000},
                 .in_bytes_per_us = 100,
                 .out_bytes_per_us = 100,
                 .both_bytes_per_us = 200,
                 .page_bytes = 1000});
  const std::vector<PlanEntry> decodes(3, {.kind = EntryKind::kDecode, .samples = true, .tokens = 1});
  open.saw_command({0}, LaunchStep{.tokens = 3, .entries = decodes, .allocations = {}, .prefix_hits = {}});
  const PageId pages[] = {PageId{1}, PageId{2}};
  for (const int64_t number : {0, 1}) {
    open.saw_command(
        {number * 30 * kUs},
        StartTransfer{
            {}, TransferId{static_cast<uint64_t>(number)}, {}, Tier::kHost, Tier::kGpu, pages, pages});
  }
  REQUIRE(open.copies().size() == 2);
  CHECK(open.copies()[0].predicted == doctest::Approx(10 + 3 + 20));
  CHECK(open.copies()[1].measured == doctest::Approx(30));  // from the end of the first
  CHECK(open.copies()[1].predicted == doctest::Approx(20));
}

}  // namespace kvtwin
