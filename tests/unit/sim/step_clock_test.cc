// A StepClock that queries outcomes and prices graphs: it equals the serial sum without retrieval, and
// outcomes reach the answer.

#include "sim/clock/step_clock.h"

#include <doctest/doctest.h>

#include <initializer_list>
#include <memory>
#include <vector>

#include "engine/base/prng.h"
#include "models/catalog/catalog.h"
#include "models/cost/compression_cost.h"
#include "models/cost/pass_cost.h"
#include "models/cost_tables/cost_factory.h"
#include "tests/support/retrieval_names.h"
#include "tests/unit/sim/clock_runs.h"

using namespace kvtwin;
using kvtwin::testing::kArkvale;
using kvtwin::testing::kFreekv;

namespace {

std::unique_ptr<CostModel> llama_cost(const char* llm = "llama-3.1-8b", int64_t host_ns = 0) {
  const Catalog catalog;
  HostTime host;
  host.full_graph_ns = host.piecewise_ns = host.eager_ns = host_ns;
  return make_cost_model({.llm = catalog.llm(llm).value(),
                          .device = catalog.device("h200").value(),
                          .tp = 1,
                          .host = host,
                          .profile = {}})
      .value();
}

class Scripted final : public OutcomeSource {
 public:
  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override {
    values->clear();
    const uint64_t number = raw(launch.step) + offset;
    asked.push_back(number);
    if (number == eos_at) values->eos.push_back(launch.entries[0].request);
    for (size_t i = 0; i < launch.compressions.size(); ++i) {
      values->retained_counts = {raw(launch.entries[0].request) + 100u, 7};
      values->retained.push_back({launch.entries[0].request, values->retained_counts, {}});
    }
  }
  void notify(const Command&) override {}
  std::vector<uint64_t> asked;
  uint64_t eos_at = UINT64_MAX;
};

// 1 us per step; 10 us more without a graph, and for prompts a tenth of the load of the last 100 us, in us.
class LoadAwareCost final : public CostModel {
 public:
  explicit LoadAwareCost(Ticks attention = 0, Ticks added = 0) : attention_(attention), added_(added) {}
  StepCost step(const StepShape& shape) override {
    StepCost cost;
    cost.device = kUs + (shape.launched() ? 10 * kUs : 0);
    if (!shape.chunks.empty()) cost.device = 20 * kUs + shape.chunk_load * kUs / 100;
    cost.by_evidence[0] = cost.device;
    cost.attention = attention_, cost.compression[0] = added_;
    return cost;
  }
  Ticks load_window() const override { return 100 * kUs; }
  LoadQuarters load_quarters() const override { return {.attention = 3, .added = 2}; }
  uint32_t graphs_kept() const override { return 2; }
  static constexpr Ticks kUs = 1000 * kTicksPerNs;

 private:
  const Ticks attention_, added_;  // of a step
};

}  // namespace

TEST_CASE("step clock: graphs of known shapes, coalesced or not, and also after an interrupt") {
  LoadAwareCost cost;
  const std::vector<PlanEntry> one = {{RequestId{1}, EntryKind::kDecode, true, true, 1, 10}};
  std::vector<PlanEntry> two = one;
  two.push_back({RequestId{2}, EntryKind::kDecode, true, true, 1, 10});
  // Three launches without a graph, then replays. Another shape does not interfere, and two shapes are
  // remembered.
  sim::StepClock coalesced(EngineId{0}, &cost, 1), single(EngineId{0}, &cost, 1);
  const std::vector<LaunchStep> launches = {step_of(0, 4, one), step_of(4, 3, two), step_of(7, 2, one)};
  const std::vector<int64_t> ends = ends_of(&coalesced, launches);
  CHECK(ends == std::vector<int64_t>{11'000, 22'000, 33'000, 34'000, 45'000, 56'000, 67'000, 68'000, 69'000});
  std::vector<LaunchStep> singles;
  for (const LaunchStep& launch : launches) {
    for (uint32_t i = 0; i < launch.repeat; ++i)
      singles.push_back(step_of(raw(launch.step) + i, 1, launch.entries));
  }
  CHECK(ends_of(&single, singles) == ends);
  // Steps that were priced and then cancelled do not count: after one step of the shape the next one is its
  // second.
  sim::StepClock cut(EngineId{0}, &cost, 1);
  cut.launch({0}, step_of(0, 40, one));
  while (!cut.next_event().known) cut.look_ahead(Instant{1'000'000});
  StepDone done{};
  CHECK_FALSE(cut.interrupt({5'000}, &done));
  CHECK(cut.take().ends.back().ns == 11'000);
  CHECK(cut.idle());
  cut.launch({11'000}, step_of(1, 1, one));
  while (!cut.next_event().known) cut.look_ahead(cut.next_event().at);
  CHECK(cut.take().ends.back().ns == 22'000);
}

TEST_CASE("step clock: prompts are slower after prompts") {
  LoadAwareCost cost;
  const std::vector<PlanEntry> chunk = {{RequestId{1}, EntryKind::kChunk, true, false, 512, 0}};
  sim::StepClock clock(EngineId{0}, &cost, 1);
  // 20 us; after 20 % of the window 22; after 42 % 24.2; and after a pause of 200 us 20 again.
  const std::vector<int64_t> ends =
      ends_of(&clock, {step_of(0, 1, chunk), step_of(1, 1, chunk), step_of(2, 1, chunk)});
  CHECK(ends == std::vector<int64_t>{20'000, 42'000, 66'200});
  clock.launch({300'000}, step_of(3, 1, chunk));
  while (!clock.next_event().known) clock.look_ahead(clock.next_event().at);
  CHECK(clock.take().ends.back().ns == 320'000);
}

TEST_CASE("step clock: attention and what methods add are less of a load than matrix products") {
  const std::vector<PlanEntry> chunk = {{RequestId{1}, EntryKind::kChunk, true, false, 512, 0}};
  const auto second = [&](int64_t attention, int64_t added) {
    LoadAwareCost cost(attention * LoadAwareCost::kUs, added * LoadAwareCost::kUs);
    sim::StepClock clock(EngineId{0}, &cost, 1);
    return ends_of(&clock, {step_of(0, 1, chunk), step_of(1, 1, chunk)})[1] - 20'000;
  };
  CHECK(second(0, 0) == 22'000);  // 20 of the last 100 us
  CHECK(second(8, 0) == 21'800);  // a quarter of 8 us less
  CHECK(second(0, 8) == 21'600);  // a half
  CHECK(second(8, 8) == 21'400);
}

TEST_CASE("step clock: while a prompt's step waits for pages, it does not lower the clock") {
  struct Recalls final : OutcomeSource {
    void step(const LaunchStep& launch, uint32_t, DataOutcomes* values) override {
      values->clear();
      values->recalls.assign(32, {.blocking = raw(launch.step) == 0 ? pages : 0});
    }
    void notify(const Command&) override {}
    uint32_t pages = 0;
  };
  const Catalog catalog;
  const LlmSpec llm = catalog.llm("llama-3.1-8b").value();
  const auto cost = llama_cost();
  const RetrievalCost prices(llm, catalog.device("h200").value(), catalog.node("a100-40gb").value(), 1,
                             {.page_tokens = 32});
  sim::GraphPricerSpec spec = identity_spec();
  spec.graph.kind = kArkvale, spec.policy = retrieval_defaults(kArkvale);
  spec.kv_heads = llm.kv_heads;
  const std::vector<PlanEntry> entries = {
      {.request = RequestId{0}, .kind = EntryKind::kDecode, .samples = true, .tokens = 1, .context = 9000},
      {.request = RequestId{1}, .kind = EntryKind::kChunk, .tokens = 2048, .context = 0}};
  // The time of the last of `steps` equal steps, of which the first recalls so many pages of each layer.
  const auto last = [&](uint64_t steps, uint32_t pages) {
    Recalls source;
    source.pages = pages;
    sim::GraphPricer pricer(spec, cost.get(), &prices);
    sim::StepClock clock(EngineId{}, cost.get(), 1);
    clock.extend(&source, &pricer, 1, nullptr);
    std::vector<LaunchStep> launches;
    for (uint64_t i = 0; i < steps; ++i) launches.push_back(step_of(i, 1, entries));
    const std::vector<int64_t> ends = ends_of(&clock, launches);
    return steps == 1 ? ends[0] : ends[steps - 1] - ends[steps - 2];
  };
  const int64_t cold = last(1, 0), warm = last(2, 0), waited = last(2, 4000);
  CHECK(warm > cold + cold / 20);
  CHECK(last(1, 4000) > cold + 40'000'000);  // longer than the window on which the clock depends
  CHECK(waited == cold);
}

TEST_CASE("step clock: the graph of a step without retrieval takes the serial sum, to the tick") {
  for (const char* llm :
       {"llama-3.1-8b", "qwen3-30b-a3b", "gpt-oss-20b"}) {  // also experts and sliding layers
    CAPTURE(llm);
    const auto cost = llama_cost(llm);
    sim::GraphPricer pricer(identity_spec(llm), cost.get(), nullptr);
    Prng prng(5);
    for (int i = 0; i < 300; ++i) {
      StepShape shape;
      std::vector<ChunkShape> chunks;
      if (prng.chance(1, 2))
        chunks.push_back(
            {static_cast<uint32_t>(prng.range(1, 4000)), static_cast<uint32_t>(prng.range(0, 9000))});
      shape.decodes = static_cast<uint32_t>(prng.range(chunks.empty() ? 1 : 0, 60));
      shape.decode_context_sum = shape.decodes * prng.range(1, 5000);
      shape.decode_context_max = shape.decodes > 0 ? 5000 : 0;
      shape.chunks = chunks;
      shape.tokens = shape.decodes + (chunks.empty() ? 0 : chunks[0].tokens);
      shape.tokens_padded = shape.tokens + static_cast<uint32_t>(prng.range(0, 8));
      shape.logits_rows = static_cast<uint32_t>(prng.range(0, shape.decodes + 1));
      pricer.prepare(shape, {}, 0, {});
      const Ticks start = static_cast<Ticks>(prng.range(0, 1'000'000));
      const StepTiming timing = pricer.evaluate(start);
      REQUIRE(timing.end - start == cost->step(shape).device);
      REQUIRE(timing.exposed == 0);
      REQUIRE(pricer.by_evidence() == cost->step(shape).by_evidence);
    }
  }
}

namespace {

// Of two steps, of which the first compresses, after passes of probe tokens or without.
void check_totals(const sim::StepTotals& totals, const StepCost& first, const StepCost& second, bool passes) {
  CHECK(totals.compressions == 1);
  CHECK(totals.prompts == first.device);
  Ticks sum = 0;
  for (size_t i = 0; i < first.compression.size(); ++i) {
    CHECK(totals.compression[i] == first.compression[i] + second.compression[i]);
    CHECK((first.compression[i] > 0) == (passes || i != static_cast<size_t>(CompressionPart::kProbe)));
    sum += first.compression[i];
  }
  CHECK(totals.prompts_compression == sum);
  Ticks evidence = 0;
  for (const Ticks ticks : totals.by_evidence) evidence += ticks;
  CHECK(evidence == first.device + second.device);
}

}  // namespace

TEST_CASE(
    "step clock: compressions are priced with their step, by graph as by sum, and reported separately") {
  const Catalog catalog;
  const LlmSpec llm = catalog.llm("llama-3.1-8b").value();
  CompressionWork work;
  work.capture_kernels = 1, work.per_row.bytes = 1000;
  work.score_kernels = 2, work.score = {2048, 1e6, 1e4};
  work.selects = work.moves = true;
  work.kv_heads = 8, work.kv_entry_bytes = 4096, work.bookkeeping_ns = 2000;
  // A prompt's last chunk, together with a decode: of 5,000 KV entries 4,900 are ranked after an earlier
  // compression, then all; groups retain 100 and 301 in addition to 4 + 32 forced ones: 236 of a mean group.
  const std::vector<PlanEntry> entries = {
      {.request = RequestId{0}, .kind = EntryKind::kDecode, .samples = true, .tokens = 1, .context = 700},
      {.request = RequestId{1},
       .kind = EntryKind::kChunk,
       .samples = true,
       .tokens = 1000,
       .context = 9000,
       .dropped = 5000},
      {.request = RequestId{2}, .kind = EntryKind::kProbe, .tokens = 32, .context = 6000, .passes_left = 1}};
  const uint32_t keep[] = {100, 301};
  const Compression::Forced forced[] = {{0, 4}, {9968, 10'000}};
  for (const auto place : {CompressionPlace::kInLayers, CompressionPlace::kBehindLayers}) {
    work.after_layers = place == CompressionPlace::kBehindLayers;
    for (const uint32_t begin : {0u, 5100u}) {
      CAPTURE(begin);
      const Compression compression{
          .entry = 1, .begin = begin, .end = 10'000, .forced = forced, .keep = keep};
      CompressionCost cost(llm, catalog.device("h200").value(), work,
                           std::make_unique<PassCost>(PricedPasses::kAll, llama_cost()));
      sim::GraphPricerSpec spec = identity_spec();
      spec.graph.captures = true, spec.graph.compresses = place;
      sim::GraphPricer pricer(spec, &cost, nullptr);
      sim::StepClock serial(EngineId{}, &cost, 1), graph(EngineId{}, &cost, 1);
      graph.extend(nullptr, &pricer, 1, nullptr);
      // A pass of another request, where compressions follow all layers.
      LaunchStep launch = step_of(0, 1, std::span(entries).first(work.after_layers ? 3 : 2));
      launch.compressions = {&compression, 1};
      const std::vector<LaunchStep> launches = {launch, step_of(1, 1, {entries.data(), 1})};
      REQUIRE(ends_of(&serial, launches) == ends_of(&graph, launches));

      const ChunkShape chunk{1000, 4000};
      const PassShape pass{32, 6000};
      const CompressionShape shape{
          .tokens = 10'000, .held = 5000, .ranked = begin > 0 ? 4900u : 5000u, .retained = 236};
      StepShape step;
      step.chunk_load = 0;  // the first step
      step.decodes = 1, step.decode_context_sum = step.decode_context_max = 700;
      step.chunks = {&chunk, 1}, step.tokens = step.tokens_padded = 1001, step.logits_rows = 2;
      step.compressions = {&shape, 1};
      step.passes = std::span(&pass, work.after_layers ? 1 : 0);
      const StepCost want = cost.step(step);
      step.compressions = {}, step.chunks = {}, step.passes = {};
      step.tokens = step.tokens_padded = step.logits_rows = 1;
      const StepCost second = cost.step(step);
      check_totals(serial.totals(), want, second, work.after_layers);
      check_totals(graph.totals(), want, second, work.after_layers);
    }
  }
}

TEST_CASE(
    "step clock: tails of prefix checkpoints are copied once, by the first of several coalesced steps") {
  const Catalog catalog;
  const LlmSpec llm = catalog.llm("llama-3.1-8b").value();
  CompressionWork work;
  work.page_bytes = 1e6;
  const std::vector<PlanEntry> entries = {
      {.request = RequestId{0}, .kind = EntryKind::kDecode, .samples = true, .tokens = 1, .context = 700}};
  const std::vector<PlanEntry> later = {
      {.request = RequestId{0}, .kind = EntryKind::kDecode, .samples = true, .tokens = 1, .context = 701}};
  // Three pages of one group and two of another; the first of the former is shared in place.
  const PageId pages[] = {PageId{3}, PageId{4}, PageId{5}, PageId{8}, PageId{9}};
  const uint32_t kv_entries[] = {40, 20}, shared[] = {1, 0};
  const PrefixHit prefix_hit{RequestId{0}, pages, 7, kv_entries, shared};
  CompressionCost cost(llm, catalog.device("h200").value(), work, llama_cost());
  sim::GraphPricerSpec spec = identity_spec();
  spec.graph.compresses = CompressionPlace::kInLayers;
  for (const bool by_graph : {false, true}) {
    CAPTURE(by_graph);
    sim::GraphPricer pricer(spec, &cost, nullptr), other(spec, &cost, nullptr);
    sim::StepClock coalesced(EngineId{}, &cost, 1), single(EngineId{}, &cost, 1);
    if (by_graph) coalesced.extend(nullptr, &pricer, 1, nullptr), single.extend(nullptr, &other, 1, nullptr);
    LaunchStep busy_period = step_of(0, 2, entries), first = step_of(0, 1, entries);
    busy_period.prefix_hits = first.prefix_hits = {&prefix_hit, 1};
    const std::vector<int64_t> ends = ends_of(&coalesced, {busy_period});
    CHECK(ends == ends_of(&single, {first, step_of(1, 1, later)}));
    REQUIRE(ends.size() == 2);
    StepShape shape;
    shape.decodes = 1, shape.decode_context_sum = shape.decode_context_max = 700;
    shape.tokens = shape.tokens_padded = shape.logits_rows = 1;
    shape.copied_pages = 4;
    CHECK(ends[0] == cost.step(shape).device / kTicksPerNs);
    const Ticks tails = cost.step(shape).compression[static_cast<size_t>(CompressionPart::kMove)];
    CHECK(tails > 0);
    CHECK(coalesced.totals().compression[static_cast<size_t>(CompressionPart::kMove)] == tails);
  }
}

TEST_CASE("step clock: a step's offloads arrive after its end, which is known once it is answered") {
  const Catalog catalog;
  const LlmSpec llm = catalog.llm("llama-3.1-8b").value();
  const auto cost = llama_cost();
  NodeSpec node = catalog.node("a100-40gb").value();
  node.pcie_bytes_per_s.value = 1e9;  // offloads end long after the computation
  const RetrievalCost prices(llm, catalog.device("h200").value(), node, 1, {.page_tokens = 32});
  sim::GraphPricerSpec spec = identity_spec();
  spec.graph.kind = kFreekv;
  spec.policy = retrieval_defaults(kFreekv);
  spec.kv_heads = llm.kv_heads;
  sim::GraphPricer pricer(spec, cost.get(), &prices);
  sim::StepClock clock(EngineId{}, cost.get(), 1);
  clock.extend(nullptr, &pricer, 1, nullptr);
  const PlanEntry chunk{
      .request = RequestId{0}, .kind = EntryKind::kChunk, .samples = true, .tokens = 2048, .context = 0};
  clock.launch({}, step_of(0, 1, {&chunk, 1}));
  while (!clock.next_event().known) clock.look_ahead(clock.next_event().at);
  CHECK(clock.offloaded_at().ns < 0);
  const Instant end = clock.take().ends.back();
  const RetrievalPrice offload = prices.offload();
  CHECK(clock.offloaded_at().ns > end.ns);
  CHECK((clock.offloaded_at().ns - end.ns) * kTicksPerNs <= 32 * (offload.fixed + 64 * offload.unit));
  // Where prompts are compressed before they are offloaded, a chunk that does not end one offloads nothing.
  spec.drops = true;
  sim::GraphPricer cutting(spec, cost.get(), &prices);
  StepShape shape;
  const ChunkShape chunks[] = {{2048, 2048}};
  shape.chunks = chunks;
  shape.tokens = shape.tokens_padded = 2048;
  PlanEntry entry{
      .request = RequestId{0}, .kind = EntryKind::kChunk, .samples = false, .tokens = 2048, .context = 2048};
  const auto filled = [&] {
    cutting.prepare(shape, {&entry, 1}, 0, {});
    return cutting.outcomes()[cutting.step().filled()];
  };
  CHECK(filled() == 0);
  entry.samples = true;
  CHECK(filled() == 128);  // nothing was dropped: all pages
  const CompressionShape cut[] = {{.tokens = 4096, .held = 4096, .ranked = 4096, .retained = 1000}};
  shape.compressions = cut;
  CHECK(filled() == 31);
  // 96 tokens after the compression: KV entry 1,095 completes no page, KV entry 1,055 does.
  entry = {.request = RequestId{0},
           .kind = EntryKind::kDecode,
           .samples = true,
           .tokens = 1,
           .context = 4191,
           .dropped = 3096};
  shape.compressions = {}, shape.chunks = {}, shape.decodes = 1, shape.tokens = shape.tokens_padded = 1;
  CHECK(filled() == 0);
  entry.context = 4151;
  CHECK(filled() == 1);
}

TEST_CASE("step clock: priced by graph or by sum, coalesced or not, steps end at the same instants") {
  for (const int64_t host_ns : {0, 90'000, -40'000}) {
    for (const uint32_t in_flight : {1u, 2u}) {
      CAPTURE(host_ns);
      const auto cost = llama_cost("llama-3.1-8b", host_ns);
      sim::GraphPricer pricer(identity_spec(), cost.get(), nullptr);
      const std::vector<PlanEntry> decode = {{RequestId{0}, EntryKind::kDecode, false, true, 1, 900},
                                             {RequestId{1}, EntryKind::kDecode, false, true, 1, 70}};
      const std::vector<PlanEntry> chunk = {{RequestId{2}, EntryKind::kChunk, true, true, 512, 0}};
      const std::vector<LaunchStep> launches = {step_of(0, 1, chunk), step_of(1, 40, decode),
                                                step_of(41, 1, chunk)};
      sim::StepClock plain(EngineId{}, cost.get(), in_flight, Duration{5000});
      sim::StepClock graph(EngineId{}, cost.get(), in_flight, Duration{5000});
      graph.extend(nullptr, &pricer, 1, nullptr);
      CHECK(ends_of(&graph, launches) == ends_of(&plain, launches));
      CHECK(graph.totals().by_evidence == plain.totals().by_evidence);
      CHECK(graph.totals().host_exposed == plain.totals().host_exposed);
    }
  }
}

TEST_CASE("step clock: a source is queried once per step that runs, in order, also after an interrupt") {
  const auto cost = llama_cost();
  const std::vector<PlanEntry> decode = {{RequestId{0}, EntryKind::kDecode, false, true, 1, 900}};
  Scripted source;
  sim::StepClock clock(EngineId{}, cost.get(), 1);
  clock.extend(&source, nullptr, 1, nullptr);
  clock.launch({}, step_of(0, 100, decode));
  while (source.asked.size() < 4) clock.look_ahead(clock.next_event().at);
  // An external event, while the fourth step runs.
  const Instant now{clock.next_event().at.ns - 1};
  StepDone done;
  REQUIRE(clock.interrupt(now, &done));
  CHECK(done.ends.size() == 3);
  CHECK(!clock.interrupt(now, &done));
  while (!clock.next_event().known) clock.look_ahead(clock.next_event().at);
  CHECK(clock.take().ends.size() == 1);
  CHECK(clock.idle());
  clock.launch({now.ns + 1}, step_of(4, 2, decode));
  while (!clock.next_event().known) clock.look_ahead(clock.next_event().at);
  clock.take();
  CHECK(source.asked == std::vector<uint64_t>{0, 1, 2, 3, 4, 5});
}

TEST_CASE("step clock: coalesced steps stop where a request samples its end, and no later step is queried") {
  const auto cost = llama_cost();
  const std::vector<PlanEntry> decode = {{RequestId{5}, EntryKind::kDecode, false, true, 1, 900}};
  for (const uint32_t in_flight : {1u, 2u}) {
    CAPTURE(in_flight);
    Scripted source;
    source.eos_at = 6;
    sim::StepClock clock(EngineId{}, cost.get(), in_flight);
    clock.extend(&source, nullptr, 1, nullptr);
    clock.launch({}, step_of(0, 100, decode));
    while (!clock.next_event().known) clock.look_ahead(clock.next_event().at);
    const StepDone done = clock.take();
    CHECK(done.ends.size() == 7);
    REQUIRE(done.eos.size() == 1);
    CHECK(done.eos[0] == RequestId{5});
    CHECK(source.asked.size() == 7);
    CHECK(clock.idle() == (in_flight == 1));  // with two in flight the next one was launched already
    if (in_flight == 2) {
      while (!clock.next_event().known) clock.look_ahead(clock.next_event().at);
      CHECK(clock.take().ends.size() == 1);
      CHECK(clock.idle());
    }
  }
}

TEST_CASE("step clock: a compression's outcome is reported with its own step, long after the command") {
  const auto cost = llama_cost();
  Scripted source;
  sim::StepClock clock(EngineId{}, cost.get(), 2);
  clock.extend(&source, nullptr, 1, nullptr);
  for (uint32_t request = 0; request < 2; ++request) {
    std::vector<PlanEntry> entries = {{RequestId{request}, EntryKind::kChunk, true, false, 64, 0}};
    std::vector<Compression::Forced> forced = {{0, 4}};
    std::vector<uint32_t> keep = {20};
    std::vector<Compression> compressions = {{0, 0, 64, false, false, forced, {}, keep}};
    LaunchStep step = step_of(request, 1, entries);
    step.compressions = compressions;
    clock.launch({}, step);
  }
  for (uint32_t request = 0; request < 2; ++request) {
    while (!clock.next_event().known) clock.look_ahead(clock.next_event().at);
    const StepDone done = clock.take();
    REQUIRE(done.retained.size() == 1);
    CHECK(done.retained[0].request == RequestId{request});
    CHECK(std::vector<uint32_t>(done.retained[0].counts.begin(), done.retained[0].counts.end()) ==
          std::vector<uint32_t>{request + 100, 7});
  }
}
