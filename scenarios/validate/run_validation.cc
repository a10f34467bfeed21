#include "scenarios/validate/run_validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <set>
#include <utility>

#include "engine/recorder/recorder_replay.h"
#include "models/files/textproto.h"
#include "scenarios/app/compose.h"
#include "scenarios/app/compose_parts.h"
#include "scenarios/app/compose_retrieving.h"
#include "scenarios/app/method_work.h"
#include "scenarios/app/results.h"
#include "scenarios/output/result_folder.h"
#include "scenarios/validate/divergence.h"
#include "scenarios/validate/forced_outcomes.h"
#include "scenarios/validate/recordings.h"
#include "traces/proto/validation.pb.h"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

CopyPrice copy_price(const Composed& composed) {
  CopyPrice out;
  out.planning = composed.host_planning;
  out.in_overhead_us = composed.node.copy_overhead_h2d_ns.value / 1e3;
  out.out_overhead_us = composed.node.copy_overhead_d2h_ns.value / 1e3;
  const NodeSpec& node = composed.node;
  out.in_bytes_per_us = node.pcie_bytes_per_s.value / 1e6;
  out.out_bytes_per_us =
      node.pcie_out_bytes_per_s.present() ? node.pcie_out_bytes_per_s.value / 1e6 : out.in_bytes_per_us;
  out.both_bytes_per_us = node.pcie_both_bytes_per_s.present() ? node.pcie_both_bytes_per_s.value / 1e6
                                                               : out.in_bytes_per_us + out.out_bytes_per_us;
  out.page_bytes = static_cast<double>(composed.facts.front().page_bytes);
  return out;
}

// Counts evictions, which a replay shows and a result does not hold.
class Evictions final : public Observer {
 public:
  explicit Evictions(size_t engines) : pages_(engines) {}
  void saw_state(Instant, EngineId engine, const Core& core) override {
    pages_.at(raw(engine)) = core.gauges().pages_evicted;
  }
  uint64_t pages() const { return std::accumulate(pages_.begin(), pages_.end(), uint64_t{0}); }

 private:
  std::vector<uint64_t> pages_;
};

std::string detail_titles() {
  std::string out =
      "scenario,repeat,kind,number,padded,samples,pages,ended_ns,measured_us,predicted_us,low_us,high_us,"
      "dense_us,host_us,longest";
  for (size_t i = 0; i < kOperationFamilies; ++i) out += fmt::format(",{}", name_of(static_cast<Family>(i)));
  return out += '\n';
}

struct Priced {
  std::vector<double> steps, decodes, chunks, copies;
  std::vector<double> half_widths;  // relative, of the ranges of steps
  double in_range = 0;              // steps
  std::string details;
};

double percent_of(double part, size_t all) {
  return 100 * part / std::max<double>(1, static_cast<double>(all));
}

void add_details(const std::string& run, const std::vector<PricedStep>& steps,
                 const std::vector<PricedCopy>& copies, std::string* out) {
  for (const PricedStep& s : steps) {
    *out += fmt::format("{},step,{},{},{},0,0,{:.3f},{:.3f},{:.3f},{:.3f},{:.3f},{:.3f},{},{}\n", run, s.step,
                        s.padded, s.samples, s.measured, s.predicted, s.low, s.high, s.dense, s.host,
                        s.longest, fmt::join(s.counts, ","));
  }
  for (const PricedCopy& c : copies) {
    *out += fmt::format("{},{},0,0,0,{},{},{:.3f},{:.3f},0,0,0,0,0,{}\n", run, c.to_gpu ? "in" : "out",
                        c.pages, c.ended.ns, c.measured, c.predicted, fmt::join(FamilyCounts{}, ","));
  }
}

// Same decisions and open loop.
Result<Priced> replay_all(const Scenario& scenario, std::vector<Recording>* recordings, Composed* composed,
                          ScenarioValidation* out) {
  Priced all;
  double predicted = 0, measured = 0, beyond = 0;
  for (Recording& recording : *recordings) {
    Evictions evictions(recording.log.engines.size());
    // One per recording: pricers keep state between steps.
    const RetrievalSetup retrieving = make_retrieving(scenario, *composed);
    OpenLoop open(&recording.log, step_pricing(*composed, retrieving, recording), copy_price(*composed));
    const Result<Replayed> replayed =
        replay(fmt::format("{}/{}", out->name, recording.repeat), recording.log, {&open, &evictions});
    if (!replayed) return tl::unexpected<Error>(replayed.error());
    recording.pages_evicted = evictions.pages();
    uint64_t steps = 0;
    for (const Log::Engine& engine : recording.log.engines) steps += engine.ends.size();
    out->replayed.push_back(
        {recording.repeat, replayed->same, steps, recording.log.digest, replayed->difference});
    const std::vector<PricedStep> priced = open.steps();
    const std::vector<PricedCopy> copies = open.copies();
    for (const PricedStep& step : priced) {
      all.steps.push_back(step.error());
      (step.chunks ? all.chunks : all.decodes).push_back(step.error());
      predicted += step.predicted, measured += step.measured;
      all.in_range += step.measured >= step.low && step.measured <= step.high ? 1 : 0;
      all.half_widths.push_back((step.high - step.low) / 2 / step.predicted);
      beyond += step.evidence == Evidence::kExtrapolated ? 1 : 0;
    }
    for (const PricedCopy& copy : copies) all.copies.push_back(copy.error());
    add_details(fmt::format("{},{}", out->name, recording.repeat), priced, copies, &all.details);
  }
  out->steps = statistics_of(all.steps), out->copies = statistics_of(all.copies);
  out->decode_steps = statistics_of(all.decodes), out->chunk_steps = statistics_of(all.chunks);
  out->total = measured > 0 ? 100 * (predicted / measured - 1) : 0;
  out->in_range = percent_of(all.in_range, all.steps.size());
  out->half_width = statistics_of(all.half_widths).median;
  out->extrapolated = percent_of(beyond, all.steps.size());
  return all;
}

double length_ms(const Log& log) {
  int64_t last = 0;
  for (const Log::Engine& engine : log.engines)
    last = std::max(last, engine.ends.empty() ? 0 : engine.ends.back().ns);
  return static_cast<double>(last) / 1e6;
}

// Settings that make a simulation follow the outcomes that were forced on the real run. Empty if the real run
// decided its own outcomes, or no compression had any.
Result<std::vector<std::string>> forced_sets(const ValidateRequest& request, const Scenario& scenario,
                                             const Recording& real) {
  if (!scenario.values.simulation().force_outcomes()) return std::vector<std::string>();
  const std::string& name = scenario.values.name();
  const Result<std::string> outcomes = retained_outcomes(fmt::format("{}/{}", name, real.repeat), real.log);
  if (!outcomes) return tl::unexpected<Error>(outcomes.error());
  if (outcomes->empty()) return std::vector<std::string>();
  const fs::path dir = fs::absolute(fmt::format("{}/{}.forced", request.work, name));
  if (Result<void> ok = write_files(dir.string(), {{"outcomes.binpb", *outcomes}}); !ok)
    return tl::unexpected<Error>(ok.error());
  return std::vector<std::string>{"simulation.retained=recorded", "simulation.recorded_run=" + dir.string()};
}

// A run on a GPU with less memory had fewer pages than the scenario gives (sets_that_fit): so has its
// simulation.
std::vector<std::string> sets_of_pages(const Scenario& scenario, const Composed& composed,
                                       const Recording& real) {
  const uint32_t had = real.log.options.engines.front().pages_gpu;
  if (!composed.memory_given || had == composed.options.engines.front().pages_gpu) return {};
  return {fmt::format("memory.gpu_pages={}", had + scenario.values.memory().reserved_pages())};
}

// Question three.
Result<void> compare_runs(const ValidateRequest& request, const Scenario& scenario, const Composed& composed,
                          const std::string& path, const std::vector<Recording>& recordings,
                          ScenarioValidation* out) {
  Result<std::vector<std::string>> sets = forced_sets(request, scenario, recordings.front());
  if (!sets) return tl::unexpected<Error>(sets.error());
  const std::vector<std::string> pages = sets_of_pages(scenario, composed, recordings.front());
  sets->insert(sets->end(), pages.begin(), pages.end());
  sets->insert(sets->begin(), request.sets.begin(), request.sets.end());
  const std::string dir = fmt::format("{}/{}.sim", request.work, out->name);
  if (Result<void> ok = run_apart(path, *sets, {"--backend=sim", "--record"},
                                  fmt::format("{}/{}.errors", request.work, out->name), dir);
      !ok)
    return ok;
  Result<Recording> simulated = read_recording(dir, "simulated");
  if (!simulated) return tl::unexpected<Error>(simulated.error());
  const size_t engines = simulated->log.engines.size();
  Evictions evictions(engines);
  LaunchHistory history(engines), real(engines);
  const Result<Replayed> replayed = replay(dir, simulated->log, {&evictions, &history});
  if (!replayed) return tl::unexpected<Error>(replayed.error());
  simulated->pages_evicted = evictions.pages();
  out->figures = compare_closed_loop(*simulated, recordings);
  out->simulated_ms = length_ms(simulated->log);
  for (const Recording& recording : recordings) out->real_ms.push_back(length_ms(recording.log));
  const Result<Replayed> again = replay(out->name, recordings.front().log, {&real});
  if (!again) return tl::unexpected<Error>(again.error());
  out->parts_at = first_divergence(real, "real " + recordings.front().repeat, history, "simulated");
  return {};
}

Result<ScenarioValidation> validate_one(const ValidateRequest& request, const std::string& path,
                                        std::string* profile, Priced* all) {
  const tl::expected<Scenario, Errors> scenario = load_scenario(path, request.sets);
  if (!scenario) return tl::unexpected<Error>(scenario.error().front());
  ScenarioValidation out;
  out.name = scenario->values.name();
  *profile = fs::path(scenario->values.cost().profile()).stem().string();
  Result<std::vector<Recording>> recordings = read_recordings(request.recordings + "/" + out.name);
  if (!recordings) return tl::unexpected<Error>(recordings.error());
  tl::expected<Composed, Errors> composed = compose(*scenario);
  if (!composed) return tl::unexpected<Error>(composed.error().front());
  if (request.progress) request.progress(fmt::format("{}: replay and simulation", out.name));
  const Result<Priced> priced = replay_all(*scenario, &*recordings, &*composed, &out);
  if (!priced) return tl::unexpected<Error>(priced.error());
  all->steps.insert(all->steps.end(), priced->steps.begin(), priced->steps.end());
  all->copies.insert(all->copies.end(), priced->copies.begin(), priced->copies.end());
  all->half_widths.insert(all->half_widths.end(), priced->half_widths.begin(), priced->half_widths.end());
  all->in_range += priced->in_range;
  all->details += priced->details;
  if (Result<void> ok = compare_runs(request, *scenario, *composed, path, *recordings, &out); !ok)
    return tl::unexpected<Error>(ok.error());
  return out;
}

// Records all scenarios once per repeat, so that drift of the machine affects all scenarios alike. Returns
// the scenarios that failed, each with its first error in `failed`.
std::set<std::string> record_all(const ValidateRequest& request, std::vector<Error>* failed) {
  std::set<std::string> out;
  for (uint32_t repeat = 1; repeat <= request.repeats; ++repeat) {
    for (const std::string& path : request.scenarios) {
      if (out.contains(path)) continue;
      const tl::expected<Scenario, Errors> scenario = load_scenario(path, request.sets);
      if (!scenario) {
        failed->push_back(scenario.error().front()), out.insert(path);
        continue;
      }
      const std::string& name = scenario->values.name();
      const RecordRequest one{.scenario = path,
                              .sets = request.sets,
                              .backend = request.backend,
                              .clock = request.clock,
                              .repeat = repeat,
                              .to = fmt::format("{}/{}", request.recordings, name),
                              .work = request.work,
                              .progress = request.progress};
      if (Result<void> ok = record(one, name); !ok) failed->push_back(ok.error()), out.insert(path);
    }
  }
  return out;
}

}  // namespace

StepPricing step_pricing(const Composed& composed, const RetrievalSetup& retrieving,
                         const Recording& recording) {
  StepPricing out;
  out.cost = composed.cost.get();
  for (const auto& pricer : retrieving.pricers) out.pricers.push_back(pricer.get());
  if (recording.outcomes) out.outcomes = &*recording.outcomes;
  out.work = method_work(composed.options.engines.front(), composed.llm);
  out.lists_entries = lists_entries(composed.options.engines.front());
  return out;
}

Result<Validation> run_validation(const ValidateRequest& request) {
  Validation out;
  Priced all;
  if (Result<void> ok = check_sets_read(request.scenarios, request.sets, request.backend, request.clock); !ok)
    return tl::unexpected<Error>(ok.error());
  std::set<std::string> left_out;
  if (request.record) left_out = record_all(request, &out.failed);
  for (const std::string& path : request.scenarios) {
    if (left_out.contains(path)) continue;
    Result<ScenarioValidation> one = validate_one(request, path, &out.profile, &all);
    if (one) {
      out.scenarios.push_back(std::move(*one));
    } else {
      out.failed.push_back(one.error());
    }
  }
  if (out.scenarios.empty() && !out.failed.empty()) return tl::unexpected<Error>(out.failed.front());
  add_exposed_transfers(&out.scenarios);
  for (ScenarioValidation& one : out.scenarios) judge(request.known, &one);
  out.steps = statistics_of(all.steps), out.copies = statistics_of(all.copies);
  out.in_range = percent_of(all.in_range, all.steps.size());
  out.half_width = statistics_of(all.half_widths).median;
  out.details = detail_titles() + all.details;
  return out;
}

Result<std::vector<KnownDeviation>> parse_known_deviations(std::string_view text, const std::string& where) {
  v1::KnownDeviations read;
  if (auto ok = parse_textproto(text, where, &read); !ok) return tl::unexpected<Error>(ok.error());
  std::vector<KnownDeviation> out;
  for (const v1::KnownDeviation& one : read.deviation()) {
    if (one.scenario().empty() || one.figure().empty() || one.because().empty())
      return make_error(where,
                        fmt::format("a deviation of \"{}\" in \"{}\" lacks a name or a reason", one.figure(),
                                    one.scenario()),
                        "scenario, figure and because");
    out.push_back({one.scenario(), one.figure(), one.because(), one.until()});
  }
  return out;
}

}  // namespace kvtwin
