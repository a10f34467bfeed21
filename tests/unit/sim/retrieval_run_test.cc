// In-step retrieval in the simulated backend, with the real policy: coalescing, the two fidelities,
// behaviour models.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "models/catalog/catalog.h"
#include "models/cost_tables/cost_factory.h"
#include "sim/behaviour/behaviour_retrieval.h"
#include "sim/sim_backend.h"
#include "tests/support/retrieval_names.h"
#include "tests/unit/sim/in_child.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

constexpr uint32_t kPage = 32;

// Requests that arrive at given instants.
class Arrivals final : public Client {
 public:
  struct Row {
    int64_t at_us = 0;
    uint32_t prompt = 0, output = 0;
    uint32_t shared = 0;            // leading pages that all requests share
    uint32_t session = UINT32_MAX;  // UINT32_MAX: one per row
  };
  explicit Arrivals(std::vector<Row> rows) : rows_(std::move(rows)) {}
  Instant wake_at() const override {
    return next_ < rows_.size() ? Instant{rows_[next_].at_us * 1000} : kNever;
  }
  void wake(Instant now, ClientEvents* events) override {
    for (; next_ < rows_.size() && rows_[next_].at_us * 1000 <= now.ns; ++next_) {
      std::vector<UnitRun>& identity = identities_.emplace_back();
      if (rows_[next_].shared > 0) identity.push_back({1, 0, rows_[next_].shared});
      const SessionId session{rows_[next_].session == UINT32_MAX ? next_ : rows_[next_].session};
      events->push_back(
          RequestReady{RequestId{next_}, session, rows_[next_].prompt, rows_[next_].output, identity, {}});
    }
  }
  void tokens_emitted(Instant now, RequestId request, uint32_t tokens, ClientEvents*) override {
    log += fmt::format("{} first {} {}\n", now.ns, raw(request), tokens);
  }
  void request_finished(Instant now, RequestId request, uint32_t tokens, bool, ClientEvents*) override {
    log += fmt::format("{} end {} {}\n", now.ns, raw(request), tokens);
    ended = now;
  }
  void request_rejected(Instant, RequestId request, ClientEvents*) override {
    log += fmt::format("no {}\n", raw(request));
  }
  std::string log;
  Instant ended{};

 private:
  const std::vector<Row> rows_;
  std::deque<std::vector<UnitRun>> identities_;
  uint32_t next_ = 0;
};

struct Setting {
  RetrievalName method = kFreekv;
  const char* name = "freekv";
  uint32_t engines = 1;
  uint32_t in_flight = 1;
  double miss = 0.2, correction = 0.1;
  double host_memory_gb_per_s = 300;
  sim::Fidelity fidelity = sim::Fidelity::kAuto;
  uint32_t repeat_max = 1u << 20;
  uint32_t pages_gpu = 4000;
  bool prefix_cache = false;
};

// Llama-3.1-8B on A100-40GB: one GPU per engine, all on one socket.
class TestBackend {
 public:
  explicit TestBackend(const Setting& setting) : setting_(setting) {
    const Catalog catalog;
    llm_ = catalog.llm("llama-3.1-8b").value();
    device_ = catalog.device("a100-40gb").value();
    node_ = catalog.node("a100-40gb").value();
    node_.host_memory_bytes_per_s.value = setting.host_memory_gb_per_s * 1e9;
    spec_ = retrieval_defaults(setting.method);
    RetrievalGeometry geometry{.page_tokens = kPage};
    geometry.staging_buffers = recall_copies(setting.method).staging_buffers;
    prices_ = std::make_unique<RetrievalCost>(llm_, device_, node_, 1, geometry);
    config_.node.gpus = setting.engines;
    config_.node.pcie_gb_per_s = 26;
    config_.node.host_memory_gb_per_s = setting.host_memory_gb_per_s;
    config_.fidelity = setting.fidelity;
    for (uint32_t i = 0; i < setting.engines; ++i) add_engine(i);
    options_.routing = RoutingKind::kRoundRobin;
    options_.check_invariants = true;
  }

  struct Outcome {
    std::string log;
    double end_ms = 0;
    uint64_t expanded = 0, pages = 0, corrected = 0;
    double exposed_ms = 0, hidden_ms = 0;
    uint64_t bytes_in = 0;
  };

  Outcome run(const std::vector<Arrivals::Row>& rows) {
    const std::string text = in_child([&] {
      Arrivals client(rows);
      sim::SimReport report;
      const RunEnd end = sim::run_simulated(config_, options_, &client, {}, &report);
      sim::StepTotals sum;
      for (const sim::StepTotals& one : report.engines) {
        sum.expanded += one.expanded;
        sum.pages_now += one.pages_now + one.pages_next;
        sum.heads_corrected += one.heads_corrected;
        sum.exposed += one.exposed, sum.hidden += one.hidden, sum.bytes_in += one.bytes_in;
      }
      return fmt::format("{} {} {} {} {} {} {}\n{:016x} {}\n{}", client.ended.ns, sum.expanded, sum.pages_now,
                         sum.heads_corrected, sum.exposed, sum.hidden, sum.bytes_in, end.digest, end.idle,
                         client.log);
    });
    Outcome out;
    long long ended = 0, exposed = 0, hidden = 0;
    unsigned long long expanded = 0, pages = 0, corrected = 0, bytes = 0;
    REQUIRE(std::sscanf(text.c_str(), "%lld %llu %llu %llu %lld %lld %llu", &ended, &expanded, &pages,
                        &corrected, &exposed, &hidden, &bytes) == 7);
    out.log = text.substr(text.find('\n') + 1);
    out.end_ms = static_cast<double>(ended) / 1e6;
    out.expanded = expanded, out.pages = pages, out.corrected = corrected, out.bytes_in = bytes;
    out.exposed_ms = static_cast<double>(exposed) / kTicksPerNs / 1e6;
    out.hidden_ms = static_cast<double>(hidden) / kTicksPerNs / 1e6;
    return out;
  }

 private:
  void add_engine(uint32_t i) {
    costs_.push_back(
        make_cost_model({.llm = llm_, .device = device_, .tp = 1, .host = {}, .profile = {}}).value());
    sim::GraphPricerSpec pricer;
    pricer.graph = {.kind = setting_.method, .layers = llm_.layers, .layers_dense = spec_.layers_dense};
    pricer.graph.converts = setting_.method == kFreekv;
    pricer.graph.keeps_prefixes = setting_.prefix_cache;
    pricer.graph.staging_buffers = recall_copies(setting_.method).staging_buffers;
    pricer.graph.speculation = spec_.speculation;
    pricer.policy = spec_;
    pricer.page_tokens = kPage;
    pricer.kv_heads = llm_.kv_heads;
    pricers_.push_back(std::make_unique<sim::GraphPricer>(pricer, costs_.back().get(), prices_.get()));
    sim::RetrievalBehaviour behaviour;
    behaviour.seed = 7;
    behaviour.miss_q32 = static_cast<uint64_t>(setting_.miss * kOneQ32);
    behaviour.correction_q32 = {static_cast<uint64_t>(setting_.correction * kOneQ32)};
    sources_.push_back(std::make_unique<sim::RetrievalSource>(behaviour, setting_.method, spec_, kPage,
                                                              llm_.layers, llm_.kv_heads));
    config_.engines.push_back({.cost = costs_.back().get(),
                               .source = sources_.back().get(),
                               .pricer = pricers_.back().get(),
                               .page_bytes = 4 << 20,
                               .gpu_first = i});
    CoreConfig core;
    core.engine = EngineId{static_cast<uint16_t>(i)};
    core.page_tokens = core.unit_tokens = kPage;
    core.pages_gpu = setting_.pages_gpu;
    core.pages_host = 10'000;
    core.prefix_cache = setting_.prefix_cache;
    core.steps_in_flight_max = setting_.in_flight;
    core.repeat_max = setting_.repeat_max;
    core.policies.placement = setting_.method == kQuest ? "gpu" : "resident";
    if (setting_.method == kQuest) core.pages_host = 0;
    core.policies.retrieval = setting_.name;
    core.policies.retrieval_spec = spec_;
    options_.engines.push_back(core);
  }

  const Setting setting_;
  LlmSpec llm_;
  DeviceSpec device_;
  NodeSpec node_;
  RetrievalSpec spec_;
  std::unique_ptr<RetrievalCost> prices_;
  std::vector<std::unique_ptr<CostModel>> costs_;
  std::vector<std::unique_ptr<sim::GraphPricer>> pricers_;
  std::vector<std::unique_ptr<sim::RetrievalSource>> sources_;
  sim::SimConfig config_;
  RunOptions options_;
};

// Requests of unequal length that arrive and end while others decode.
std::vector<Arrivals::Row> mixed_requests(uint32_t count) {
  std::vector<Arrivals::Row> rows;
  for (uint32_t i = 0; i < count; ++i) {
    rows.push_back({.at_us = i * 123'457, .prompt = 700 + 1900 * (i % 4), .output = 60 + 37 * (i % 5)});
  }
  return rows;
}

struct Named {
  RetrievalName method;
  const char* name;
};
constexpr Named kMethods[] = {{kQuest, "quest"},
                              {kArkvale, "arkvale"},
                              {kShadowkv, "shadowkv"},
                              {kInfinigen, "infinigen"},
                              {kFreekv, "freekv"}};

}  // namespace

TEST_CASE("retrieval run: coalesced and uncoalesced runs have one digest and one time for every request") {
  for (const Named& one : kMethods) {
    for (const uint32_t in_flight : {1u, 2u}) {
      // 300 pages: requests are preempted.
      for (const uint32_t pages_gpu : {4000u, 300u}) {
        CAPTURE(one.name);
        CAPTURE(in_flight);
        CAPTURE(pages_gpu);
        Setting setting{
            .method = one.method, .name = one.name, .in_flight = in_flight, .pages_gpu = pages_gpu};
        const auto coalesced = TestBackend(setting).run(mixed_requests(9));
        setting.repeat_max = 1;
        const auto single = TestBackend(setting).run(mixed_requests(9));
        CHECK(coalesced.log == single.log);
        CHECK(coalesced.exposed_ms == single.exposed_ms);
        CHECK(coalesced.log.find("true") != std::string::npos);
        CHECK((coalesced.pages > 0) == (one.method != kQuest));
      }
    }
  }
}

TEST_CASE(
    "retrieval run: with prefixes on the host, coalesced and uncoalesced runs decide and end the same") {
  std::vector<Arrivals::Row> rows = mixed_requests(9);
  for (Arrivals::Row& row : rows) row.shared = row.prompt / kPage;
  for (const Named& one : kMethods) {
    if (one.method == kQuest) continue;
    for (const uint32_t in_flight : {1u, 2u}) {
      for (const uint32_t pages_gpu : {4000u, 400u}) {
        CAPTURE(one.name);
        CAPTURE(in_flight);
        CAPTURE(pages_gpu);
        Setting setting{
            .method = one.method, .name = one.name, .in_flight = in_flight, .pages_gpu = pages_gpu};
        const auto apart = TestBackend(setting).run(rows);
        setting.prefix_cache = true;
        const auto coalesced = TestBackend(setting).run(rows);
        setting.repeat_max = 1;
        const auto single = TestBackend(setting).run(rows);
        CHECK(coalesced.log == single.log);
        CHECK(coalesced.log != apart.log);
        CHECK(coalesced.end_ms < apart.end_ms);
      }
    }
  }
}

TEST_CASE("retrieval run: a prefix is copied when its last page has arrived on the host, at PCIe's rate") {
  // One request ends with its first token; the next is waiting, and shares all 256 pages but one token.
  const std::vector<Arrivals::Row> rows = {{.at_us = 0, .prompt = 8192, .output = 1, .shared = 256},
                                           {.at_us = 1, .prompt = 8193, .output = 1, .shared = 256}};
  const auto first_token = [&](bool prefix_cache) {
    const std::string log = TestBackend({.prefix_cache = prefix_cache}).run(rows).log;
    const auto answered_at = [&](const std::string& what) {
      const size_t at = log.find(what);
      REQUIRE(at != std::string::npos);
      return std::stoll(log.substr(log.rfind('\n', at) + 1));  // line start; 0 if rfind() gives npos
    };
    return std::pair(answered_at(" first 0 "), answered_at(" first 1 "));
  };
  const auto [ended, fetched] = first_token(true);
  const auto [ended_apart, computed] = first_token(false);
  CHECK(ended == ended_apart);
  CHECK(fetched < computed);
  // 256 pages of 4 MiB at 26 GB/s take 41.3 ms; the next step reads the weights at least.
  const double copy_ms = 256.0 * (4 << 20) / 26e9 * 1e3;
  CHECK(static_cast<double>(fetched - ended) / 1e6 > copy_ms);
  CHECK(static_cast<double>(fetched - ended) / 1e6 < copy_ms + 40);
}

TEST_CASE("retrieval run: coalescing changes nothing where steps are expanded either") {
  for (const uint32_t in_flight : {1u, 2u}) {
    // At 12 GB/s steps are always expanded; at 9 GB/s auto alternates between the fidelities.
    for (const double memory : {12.0, 9.0}) {
      CAPTURE(in_flight);
      CAPTURE(memory);
      Setting setting{.engines = 4, .in_flight = in_flight, .miss = 0.5, .host_memory_gb_per_s = memory};
      setting.fidelity = memory > 10 ? sim::Fidelity::kExpanded : sim::Fidelity::kAuto;
      const auto coalesced = TestBackend(setting).run(mixed_requests(12));
      setting.repeat_max = 1;
      const auto single = TestBackend(setting).run(mixed_requests(12));
      MESSAGE(fmt::format("{} steps expanded", coalesced.expanded));
      CHECK(coalesced.expanded > 50);
      CHECK(coalesced.expanded == single.expanded);
      CHECK(coalesced.log == single.log);
    }
  }
}

TEST_CASE("retrieval run: alone on its links a step takes the same time in both fidelities") {
  for (const Named& one : kMethods) {
    CAPTURE(one.name);
    Setting setting{.method = one.method, .name = one.name, .fidelity = sim::Fidelity::kCollapsed};
    setting.in_flight = one.method == kFreekv ? 2 : 1;
    const auto collapsed = TestBackend(setting).run(mixed_requests(5));
    setting.fidelity = sim::Fidelity::kExpanded;
    const auto expanded = TestBackend(setting).run(mixed_requests(5));
    CHECK(collapsed.expanded == 0);
    CHECK((expanded.expanded > 0) == (one.method != kQuest));
    CHECK(expanded.end_ms == doctest::Approx(collapsed.end_ms).epsilon(1e-6));
    CHECK(expanded.exposed_ms == doctest::Approx(collapsed.exposed_ms).epsilon(1e-4));
    CHECK(expanded.bytes_in == collapsed.bytes_in);
    // A single GPU has no contention on its host's memory, so auto keeps it collapsed.
    setting.fidelity = sim::Fidelity::kAuto;
    CHECK(TestBackend(setting).run(mixed_requests(5)).log == collapsed.log);
  }
}

TEST_CASE(
    "retrieval run: eight GPUs agree below 60 % of their host's memory, and not above; auto selects "
    "correctly") {
  std::vector<Arrivals::Row> rows;
  for (uint32_t i = 0; i < 8; ++i) rows.push_back({.at_us = i * 171, .prompt = 8000, .output = 150});
  struct Row {
    double miss, memory_gb_per_s;
    bool crowded;
  };
  for (const Row& row : {Row{0.05, 300, false}, Row{0.2, 60, false}, Row{0.5, 8, true}, Row{1.0, 12, true}}) {
    CAPTURE(row.miss);
    Setting setting{.engines = 8, .miss = row.miss, .host_memory_gb_per_s = row.memory_gb_per_s};
    setting.fidelity = sim::Fidelity::kCollapsed;
    const auto collapsed = TestBackend(setting).run(rows);
    setting.fidelity = sim::Fidelity::kExpanded;
    const auto expanded = TestBackend(setting).run(rows);
    setting.fidelity = sim::Fidelity::kAuto;
    const auto chosen = TestBackend(setting).run(rows);
    MESSAGE(fmt::format(
        "miss {}, memory {} GB/s: collapsed {:.2f} ms, expanded {:.2f} ms, auto {:.2f} ms ({} of {})",
        row.miss, row.memory_gb_per_s, collapsed.end_ms, expanded.end_ms, chosen.end_ms, chosen.expanded,
        expanded.expanded));
    CHECK(collapsed.bytes_in == expanded.bytes_in);
    if (row.crowded) {
      CHECK(collapsed.end_ms < expanded.end_ms * 0.97);
      CHECK(chosen.expanded > expanded.expanded / 2);
      CHECK(chosen.end_ms == doctest::Approx(expanded.end_ms).epsilon(0.02));
    } else {
      CHECK(collapsed.end_ms == doctest::Approx(expanded.end_ms).epsilon(0.01));
      CHECK(chosen.expanded == 0);
      CHECK(chosen.log == collapsed.log);
    }
  }
}

TEST_CASE("F-3 retrieval run: bytes are the behaviour model's pages, and its rates hold") {
  const auto outcome =
      TestBackend({.miss = 0.25, .correction = 0.3}).run({{.at_us = 0, .prompt = 8192, .output = 201}});
  CHECK(outcome.bytes_in == outcome.pages * 2 * kPage * 128 * 2);
  // 200 decode steps, 32 layers, 8 heads, 32 selectable pages.
  CHECK(static_cast<double>(outcome.pages) == doctest::Approx(200 * 32 * 8 * 32 * 0.25).epsilon(0.01));
  CHECK(static_cast<double>(outcome.corrected) == doctest::Approx(200 * 32 * 8 * 0.3).epsilon(0.03));
}

TEST_CASE("retrieval behaviour: draws are keyed by session and index, not by the request's number") {
  const auto recalled = [](RequestId request, RequestKey key) {
    sim::RetrievalSource source({.seed = 1, .miss_q32 = 1u << 31, .correction_q32 = {1u << 31}}, kFreekv,
                                retrieval_defaults(kFreekv), kPage, 32, 8);
    PlanEntry entry{request, EntryKind::kDecode, false, true, 1, 9001};
    entry.key = key;
    LaunchStep launch;
    launch.tokens = 1, launch.entries = {&entry, 1};
    DataOutcomes values;
    source.step(launch, 0, &values);
    std::vector<uint32_t> corrected;
    for (const LayerRecall& layer : values.recalls) corrected.push_back(layer.corrected);
    return corrected;
  };
  const std::vector<uint32_t> first = recalled(RequestId{3}, {SessionId{1}, 2});
  CHECK(recalled(RequestId{4}, {SessionId{1}, 2}) == first);
  CHECK(recalled(RequestId{3}, {SessionId{1}, 3}) != first);
  CHECK(recalled(RequestId{3}, {SessionId{2}, 2}) != first);
}

// Recalled pages are a sum over requests, steps and layers, so a changed draw changes it.
TEST_CASE("retrieval run: the same sessions sent in another order recall and correct the same") {
  const auto run = [](int64_t first_us, int64_t second_us) {
    Arrivals::Row a{.at_us = first_us, .prompt = 8192, .output = 201, .session = 5};
    Arrivals::Row b{.at_us = second_us, .prompt = 4096, .output = 150, .session = 9};
    return TestBackend({.miss = 0.25, .correction = 0.3})
        .run(first_us < second_us ? std::vector{a, b} : std::vector{b, a});
  };
  const auto one = run(0, 1000), other = run(1000, 0), apart = run(60'000'000, 0);
  CHECK(one.pages == other.pages);
  CHECK(one.corrected == other.corrected);
  CHECK(one.pages == apart.pages);
  CHECK(one.corrected == apart.corrected);
}

TEST_CASE("F-5 retrieval run: with tau above 1 every head is corrected and no page is recalled ahead") {
  RetrievalSpec spec = retrieval_defaults(kFreekv);
  spec.tau_q32 = kOneQ32 + 1;
  sim::RetrievalSource all({.seed = 1, .miss_q32 = 1u << 31, .correction_q32 = {0}}, kFreekv, spec, kPage, 4,
                           8);
  spec.tau_q32 = -kOneQ32;
  sim::RetrievalSource none({.seed = 1, .miss_q32 = 1u << 31, .correction_q32 = {uint64_t{1} << 32}}, kFreekv,
                            spec, kPage, 4, 8);
  const PlanEntry entry{RequestId{3}, EntryKind::kDecode, false, true, 1, 9000};
  const LaunchStep launch{.repeat = 9,
                          .tokens = 1,
                          .tokens_padded = 1,
                          .entries = {&entry, 1},
                          .allocations = {},
                          .prefix_hits = {}};
  DataOutcomes corrected, speculative;
  all.step(launch, 4, &corrected);
  none.step(launch, 4, &speculative);
  for (size_t l = 0; l < 4; ++l) {
    CHECK(corrected.recalls[l].background == 0);
    CHECK(corrected.recalls[l].corrected == 8);
    CHECK(speculative.recalls[l].blocking == 0);
    CHECK(speculative.recalls[l].corrected == 0);
    CHECK(corrected.recalls[l].blocking == speculative.recalls[l].background);  // the same pages
  }
}

TEST_CASE("F-6 retrieval run: requests that fit their budget move nothing in") {
  for (const Named& one : kMethods) {
    const auto outcome = TestBackend({.method = one.method, .name = one.name})
                             .run({{.at_us = 0, .prompt = 1500, .output = 300}});
    CHECK(outcome.pages == 0);
    CHECK(outcome.bytes_in == 0);
  }
}

TEST_CASE(
    "behaviour: a draw depends on the request, its attempt and its position, not on the batch or the "
    "launch") {
  const RetrievalSpec spec = retrieval_defaults(kFreekv);
  sim::RetrievalSource source({.seed = 9, .miss_q32 = 1'000'000'000, .correction_q32 = {1u << 30}}, kFreekv,
                              spec, kPage, 3, 8);
  const auto ask = [&](std::vector<PlanEntry> entries, uint32_t offset) {
    DataOutcomes values;
    const LaunchStep launch{.repeat = 100, .entries = entries, .allocations = {}, .prefix_hits = {}};
    source.step(launch, offset, &values);
    std::string text;
    for (const LayerRecall& r : values.recalls)
      text += fmt::format("{} {} {};", r.blocking, r.background, r.corrected);
    return text;
  };
  const auto decode = [](uint32_t request, uint32_t context) {
    PlanEntry entry{RequestId{request}, EntryKind::kDecode, false, true, 1, context};
    entry.key = {SessionId{request}, 0};
    return entry;
  };
  CHECK(ask({decode(1, 5000)}, 7) == ask({decode(1, 5007)}, 0));
  CHECK(ask({decode(1, 5000)}, 0) != ask({decode(1, 5001)}, 0));
  CHECK(ask({decode(1, 5000)}, 0) != ask({decode(2, 5000)}, 0));
  CHECK(ask({decode(1, 5000), decode(2, 100)}, 0) ==
        ask({decode(1, 5000)}, 0));  // a short request adds nothing
  const std::string before = ask({decode(1, 5000)}, 0);
  source.notify(DropRequestState{EngineId{}, RequestId{1}, DropRequestState::Reason::kPreempted});
  CHECK(ask({decode(1, 5000)}, 0) != before);
  source.notify(DropRequestState{EngineId{}, RequestId{1}, DropRequestState::Reason::kFinished});
  CHECK(ask({decode(1, 5000)}, 0) == before);
}

TEST_CASE(
    "behaviour: the profile's corrections are within the measured range "
    "(docs/design/methods/freekv.md#timelines)") {
  const auto at = [](double tau) {
    return static_cast<double>(sim::profiled_correction_q32(static_cast<int64_t>(tau * kOneQ32))) / kOneQ32;
  };
  CHECK(at(-1) == 0);
  CHECK(at(0.8) == doctest::Approx(0.13).epsilon(1e-4));
  CHECK(at(0.9) == doctest::Approx(0.345).epsilon(1e-4));
  CHECK(at(1.5) == 1);
  for (double tau = -1; tau < 1.2; tau += 0.01) CHECK(at(tau) <= at(tau + 0.01));
}
