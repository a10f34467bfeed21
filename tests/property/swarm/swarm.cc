#include "tests/property/swarm/swarm.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "engine/base/check.h"
#include "engine/methods/registry.h"
#include "engine/metrics/metrics_summary.h"
#include "engine/metrics/prefix_bound.h"
#include "engine/recorder/recorder.h"
#include "engine/recorder/recorder_replay.h"
#include "engine/runtime/driver.h"
#include "tests/property/swarm/swarm_probes.h"
#include "tests/property/swarm/swarm_settings.h"
#include "tests/support/describe.h"
#include "tests/support/script_backend.h"
#include "tests/support/script_client.h"
#include "tests/support/test_policies.h"

namespace kvtwin::testing {
namespace {

// Counts cache hits as Metrics does, and compares them with the bound where there is one.
class ReuseObserver final : public Observer {
 public:
  explicit ReuseObserver(const RunOptions& options) : bound_(options.engines) {
    bounded_ = options.prefill_engines == 0;
    for (const CoreConfig& config : options.engines) {
      bounded_ = bounded_ && config.pages_host == 0 && config.policies.layout == "paged" &&
                 config.policies.precision == "bf16";
    }
  }
  void saw_event(Instant now, EngineId engine, const Event& event) override {
    bound_.saw_event(now, engine, event);
  }
  void saw_command(Instant now, const Command& command) override {
    bound_.saw_command(now, command);
    const auto* step = std::get_if<LaunchStep>(&command);
    if (step == nullptr) return;
    for (const PlanEntry& entry : step->entries) {
      if (entry.first && admitted_.insert(entry.request).second) found_ += entry.context;
    }
  }
  bool bounded() const { return bounded_; }
  uint64_t found() const { return found_; }
  uint64_t bound() const { return bound_.reused_tokens(); }

 private:
  PrefixBound bound_;
  std::set<RequestId> admitted_;
  uint64_t found_ = 0;
  bool bounded_ = true;
};

// Prints every event and command.
class EventPrinter final : public Observer {
 public:
  void saw_event(Instant now, EngineId engine, const Event& event) override {
    fmt::print("\n{:>9} e{} {:<40}", now.ns, raw(engine), describe(event));
    std::fflush(stdout);
  }
  void saw_command(Instant, const Command& command) override {
    fmt::print("  {}", describe(command));
    if (const auto* transfer = std::get_if<StartTransfer>(&command)) {
      for (size_t i = 0; i < transfer->source.size(); ++i) {
        fmt::print(" {}>{}", raw(transfer->source[i]), raw(transfer->target[i]));
      }
    }
    std::fflush(stdout);
  }
  void saw_state(Instant, EngineId, const Core& core) override {
    fmt::print("  [{:x}]", core.digest() >> 48);
  }
};

struct Run {
  RunEnd end;
  Summary summary;
  std::string log;
  bool content = false;
  uint64_t above_bound = 0;  // tokens found beyond the bound of a cache of this size
  std::vector<ScriptClient::Answer> answers;
};

std::vector<EngineFacts> facts_of(const std::vector<CoreConfig>& engines) {
  std::vector<EngineFacts> facts;
  for (const CoreConfig& config : engines) {
    facts.push_back({.page_tokens = config.page_tokens,
                     .page_bytes = 1,
                     .pages_gpu = config.pages_gpu,
                     .steps_in_flight_max = config.steps_in_flight_max,
                     .pages_int2 = config.pages_int2});
  }
  return facts;
}

Run run_once(const Setting& setting, Probes* probes, bool aloud = false) {
  ScriptClient client(setting.client);
  ScriptBackend backend(setting.backend, setting.run.engines, &client);
  ProbeObserver observer(setting.run.engines, probes);
  EventPrinter narrator;
  ReuseObserver reuse(setting.run);
  Metrics metrics(facts_of(setting.run.engines));
  Recorder recorder(setting.run, {"swarm", setting.client.seed});
  std::vector<Observer*> observers{&observer, &reuse, &metrics, &recorder};
  if (aloud) observers.insert(observers.begin(), &narrator);
  Run result;
  result.end = run(setting.run, recorder.watch(&client), &backend, observers);
  result.summary = summarise(metrics);
  result.log = recorder.finish(result.end);
  result.content = client.content();
  if (reuse.bounded() && reuse.found() > reuse.bound()) result.above_bound = reuse.found() - reuse.bound();
  result.answers = client.answers();
  return result;
}

void compare(const std::string& name, const Run& expected, const Run& run, SwarmResult* result) {
  for (size_t request = 0; request < run.answers.size(); ++request) {
    const auto &a = expected.answers[request], &b = run.answers[request];
    if (a == b) continue;
    result->differences.push_back(fmt::format(
        "{}: request {} ended at {} ns with {} tokens, not at {} ns with {} ({} not {})", name, request,
        b.at.ns, b.tokens, a.at.ns, a.tokens, static_cast<int>(b.kind), static_cast<int>(a.kind)));
    break;
  }
  if (run.end.digest != expected.end.digest) result->differences.push_back(name + ": other decisions");
  if (run.log != expected.log) result->differences.push_back(name + ": another log");
  if (run.summary != expected.summary) result->differences.push_back(name + ": other metrics");
}

// Replays the log without a backend: the decisions and the metrics must be the same.
void compare_replay(const Setting& setting, const Run& expected, SwarmResult* result) {
  Result<Log> log = read_log("log", expected.log);
  if (!log) return result->differences.push_back("the log: " + log.error().what);
  log->options.make_axes = setting.run.make_axes;
  log->options.check_invariants = true;
  Metrics metrics(facts_of(log->options.engines));
  const Result<Replayed> again = replay("log", *log, {&metrics});
  if (!again) return result->differences.push_back("replayed: " + again.error().what);
  if (!again->same) result->differences.push_back("replayed: " + again->difference);
  // A log sums outcomes over consecutive steps, so the parts of a request's time may differ, but not their
  // sum.
  Summary summary = summarise(metrics);
  summary.time_ns = expected.summary.time_ns;
  if (summary != expected.summary) result->differences.push_back("replayed: other metrics");
}

}  // namespace

SwarmResult run_swarm(uint64_t seed, Probes* probes) {
  set_check_context(fmt::format("kvtwin_swarm {}", seed));
  Setting setting = draw_setting(seed);
  SwarmResult result;
  const Run coalesced = run_once(setting, probes);
  result.digest = coalesced.end.digest;
  result.events = coalesced.end.events;
  if (!coalesced.end.idle) result.differences.push_back("the run ended with unanswered requests");
  if (!coalesced.content) result.differences.push_back("the Client still waits for answers");
  if (coalesced.above_bound > 0)
    result.differences.push_back(fmt::format("{} tokens found beyond the bound", coalesced.above_bound));
  compare_replay(setting, coalesced, &result);
  compare("run again", coalesced, run_once(setting, probes), &result);
  setting.backend.pieces = true;
  compare("answered in parts", coalesced, run_once(setting, probes), &result);
  setting.backend.pieces = false;
  for (CoreConfig& config : setting.run.engines) config.repeat_max = 1;
  compare("every step launched alone", coalesced, run_once(setting, probes), &result);
  set_check_context("");
  return result;
}

uint64_t swarm_digest(uint64_t seed) {
  set_check_context(fmt::format("kvtwin_swarm {}", seed));
  const Setting setting = draw_setting(seed);
  ScriptClient client(setting.client);
  ScriptBackend backend(setting.backend, setting.run.engines, &client);
  const uint64_t digest = run(setting.run, &client, &backend, {}).digest;
  set_check_context("");
  return digest;
}

void print_swarm(uint64_t seed, bool coalesced) {
  set_check_context(fmt::format("kvtwin_swarm {}", seed));
  Setting setting = draw_setting(seed);
  for (CoreConfig& config : setting.run.engines) config.repeat_max = coalesced ? config.repeat_max : 1;
  const CoreConfig& c = setting.run.engines.front();
  fmt::print(
      "{} engines, pages {}+{}+{} of {} ({} per unit), step {} chunk {} requests {}, in flight {}, order {}, "
      "admission {}, watermark {}, page order {}, cache {} {} {}, clean {}/{}, evict {}\n",
      setting.run.engines.size(), c.pages_gpu, c.pages_host, c.pages_disk, c.page_tokens, c.unit_tokens,
      c.step_tokens_max, c.chunk_tokens_max, c.requests_max, c.steps_in_flight_max,
      static_cast<int>(c.batch_order), static_cast<int>(c.admission), c.watermark_pages,
      static_cast<int>(c.page_order), c.prefix_cache, c.prefix_eviction, c.policies.identity,
      c.offload_pages_target, c.offload_batch_pages, c.evict_batch_pages);
  if (seed >= kEvictionSeeds) {
    fmt::print("hints after {} % of requests, doubling {} tokens\n", setting.client.hints_per_100,
               c.eviction_doubling_tokens);
  } else if (seed >= kClusterSeeds && seed < kSwapSeeds) {
    fmt::print("{} of the engines compute prompts, routing {}\n", setting.run.prefill_engines,
               static_cast<int>(setting.run.routing));
  } else if (seed >= kFormatSeeds && seed < kPrefixCheckpointSeeds) {
    fmt::print("{} of the pages are int2, 4-bit tags {:x}, ageing {}\n", c.pages_int2,
               c.policies.precision_spec.four_bit_tags, static_cast<int>(c.policies.precision_spec.ageing));
  } else if (c.policies.layout != "paged") {
    const BudgetSpec& spec = c.policies.budget_spec;
    const LayoutSpec& layout = c.policies.layout_spec;
    fmt::print(
        "layout {} of {}x{} heads by {}, budget {}, sinks {}, window {}, chunk {}, KV entries {}, {:.3f}\n",
        c.policies.layout, layout.layers, layout.kv_heads, layout.heads_per_group, c.policies.budget,
        spec.sinks, spec.window, spec.chunk_tokens, spec.kv_entries,
        static_cast<double>(spec.ratio) / static_cast<double>(kWhole));
  }
  if (c.policies.placement == "resident") {
    const RetrievalSpec& spec = c.policies.retrieval_spec;
    fmt::print("{} resident pages, {} of 2^32 of each page resident\n", resident_pages(spec, c.page_tokens),
               spec.resident_fraction_q32);
  }
  Probes probes = all_probes(seed);
  run_once(setting, &probes, true);
  fmt::print("\n");
}

}  // namespace kvtwin::testing
