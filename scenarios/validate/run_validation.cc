#include "scenarios/validate/run_validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <utility>

#include "engine/recorder_replay.h"
#include "models/textproto.h"
#include "scenarios/compose.h"
#include "scenarios/results.h"
#include "scenarios/sweep/pool.h"
#include "scenarios/validate/divergence.h"
#include "traces/proto/validation.pb.h"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLogBytesMax = size_t{1} << 30;

Mistake first_of(const Mistakes& mistakes) { return mistakes.front(); }

// `kvtwin run SCENARIO ...`, in a process of its own.
Result<void> run_apart(const ValidateRequest& request, const std::string& scenario, const std::string& name,
                       const std::vector<std::string>& more, const std::string& out) {
  Job job;
  job.words = {"run", scenario, "--quiet", "--out=" + out};
  for (const std::string& set : request.sets) job.words.push_back("--set=" + set);
  job.words.insert(job.words.end(), more.begin(), more.end());
  job.errors = fmt::format("{}/{}.errors", request.work, name);
  int status = 0;
  if (auto ok =
          run_jobs(own_program(), {job}, {1}, [&](const JobEnd& end) { return (status = end.status) == 0; });
      !ok)
    return ok;
  if (status == 0) return {};
  const Result<std::string> said = read_text_file(job.errors);
  return mistake(scenario, fmt::format("a run ended with status {}: {}", status,
                                       said && !said->empty() ? said->substr(0, 1000) : "it said nothing"));
}

// What can be had again from log and scenario is left out, and so are paths of this machine.
Result<void> keep_recording(const std::string& from, const std::string& to) {
  Result<v1::RunResult> result = read_result(from);
  if (!result) return tl::unexpected<Mistake>(result.error());
  result->clear_scenario_text();
  result->clear_series();
  const Result<std::string> log = read_text_file(from + "/log.binpb", kLogBytesMax);
  if (!log) return tl::unexpected<Mistake>(log.error());
  return write_files(to, {{"log.binpb", *log}, {"run.binpb", result->SerializeAsString()}});
}

Result<void> record(const ValidateRequest& request, const std::string& path, const std::string& name) {
  for (uint32_t repeat = 1; repeat <= request.repeats; ++repeat) {
    if (request.progress)
      request.progress(fmt::format("{}: real run {} of {}", name, repeat, request.repeats));
    const std::string made = fmt::format("{}/{}.real", request.work, name);
    if (Result<void> ok =
            run_apart(request, path, name, {"--world=" + request.world, "--clock=wall", "--record"}, made);
        !ok)
      return ok;
    if (Result<void> ok = keep_recording(made, fmt::format("{}/{}/{}", request.recordings, name, repeat));
        !ok)
      return ok;
    std::error_code ignored;
    fs::remove_all(made, ignored);
  }
  return {};
}

Result<Recording> read_recording(const std::string& path, const std::string& repeat) {
  const Result<std::string> bytes = read_text_file(path + "/log.binpb", kLogBytesMax);
  if (!bytes) return tl::unexpected<Mistake>(bytes.error());
  Result<Log> log = read_log(path + "/log.binpb", *bytes);
  if (!log) return tl::unexpected<Mistake>(log.error());
  Result<v1::RunResult> result = read_result(path);
  if (!result) return tl::unexpected<Mistake>(result.error());
  return Recording{repeat, std::move(*log), std::move(*result)};
}

Result<std::vector<Recording>> read_recordings(const std::string& dir) {
  std::vector<std::string> repeats;
  std::error_code failed;
  for (fs::directory_iterator at(dir, failed), end; !failed && at != end; at.increment(failed)) {
    if (at->is_directory()) repeats.push_back(at->path().filename().string());
  }
  if (failed || repeats.empty())
    return mistake(dir, "holds no recording", "kvtwin validate SCENARIO --out=DIR makes them, on a GPU");
  std::sort(repeats.begin(), repeats.end());
  std::vector<Recording> out;
  for (const std::string& repeat : repeats) {
    Result<Recording> one = read_recording(dir + "/" + repeat, repeat);
    if (!one) return tl::unexpected<Mistake>(one.error());
    out.push_back(std::move(*one));
  }
  return out;
}

CopyPrice copy_price(const Composed& composed) {
  CopyPrice out;
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

// What a replay shows that no result holds.
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

constexpr char kDetailTitles[] =
    "scenario,repeat,kind,number,padded,samples,decodes,decode_cells,chunk_tokens,chunk_context,pages,ended_"
    "ns,"
    "measured_us,predicted_us\n";

struct Priced {
  std::vector<double> steps, decodes, chunks, copies;
  std::string details;
};

void add_details(const std::string& run, const std::vector<PricedStep>& steps,
                 const std::vector<PricedCopy>& copies, std::string* out) {
  for (const PricedStep& s : steps)
    *out += fmt::format("{},step,{},{},{},{},{},{},{},0,0,{:.3f},{:.3f}\n", run, s.step, s.padded, s.samples,
                        s.decodes, s.decode_cells, s.chunk_tokens, s.chunk_context, s.measured, s.predicted);
  for (const PricedCopy& c : copies)
    *out += fmt::format("{},{},0,0,0,0,0,0,0,{},{},{:.3f},{:.3f}\n", run, c.to_gpu ? "in" : "out", c.pages,
                        c.ended.ns, c.measured, c.predicted);
}

// Questions one and two.
Result<Priced> replay_all(std::vector<Recording>* recordings, Composed* composed, ScenarioValidation* out) {
  Priced all;
  double predicted = 0, measured = 0, in_range = 0, beyond = 0;
  for (Recording& recording : *recordings) {
    Evictions evictions(recording.log.engines.size());
    OpenLoop open(&recording.log, composed->cost.get(), copy_price(*composed));
    const Result<Replayed> replayed =
        replay(fmt::format("{}/{}", out->name, recording.repeat), recording.log, {&open, &evictions});
    if (!replayed) return tl::unexpected<Mistake>(replayed.error());
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
      in_range += step.measured >= step.low && step.measured <= step.high ? 1 : 0;
      beyond += step.evidence == Evidence::kExtrapolated ? 1 : 0;
    }
    for (const PricedCopy& copy : copies) all.copies.push_back(copy.error());
    add_details(fmt::format("{},{}", out->name, recording.repeat), priced, copies, &all.details);
  }
  out->steps = statistics_of(all.steps), out->copies = statistics_of(all.copies);
  out->decode_steps = statistics_of(all.decodes), out->chunk_steps = statistics_of(all.chunks);
  const double count = std::max<double>(1, static_cast<double>(all.steps.size()));
  out->total = measured > 0 ? 100 * (predicted / measured - 1) : 0;
  out->in_range = 100 * in_range / count, out->extrapolated = 100 * beyond / count;
  return all;
}

// Question three.
Result<void> compare_runs(const ValidateRequest& request, const std::string& path,
                          const std::vector<Recording>& recordings, ScenarioValidation* out) {
  const std::string dir = fmt::format("{}/{}.sim", request.work, out->name);
  if (Result<void> ok = run_apart(request, path, out->name, {"--world=sim", "--record"}, dir); !ok) return ok;
  Result<Recording> simulated = read_recording(dir, "simulated");
  if (!simulated) return tl::unexpected<Mistake>(simulated.error());
  const size_t engines = simulated->log.engines.size();
  Evictions evictions(engines);
  LaunchHistory history(engines), real(engines);
  const Result<Replayed> replayed = replay(dir, simulated->log, {&evictions, &history});
  if (!replayed) return tl::unexpected<Mistake>(replayed.error());
  simulated->pages_evicted = evictions.pages();
  out->figures = compare_closed_loop(*simulated, recordings);
  const Result<Replayed> again = replay(out->name, recordings.front().log, {&real});
  if (!again) return tl::unexpected<Mistake>(again.error());
  out->parts_at = first_divergence(real, "real " + recordings.front().repeat, history, "simulated");
  return {};
}

Result<ScenarioValidation> validate_one(const ValidateRequest& request, const std::string& path,
                                        std::string* profile, Priced* all) {
  const tl::expected<Scenario, Mistakes> scenario = load_scenario(path, request.sets);
  if (!scenario) return tl::unexpected<Mistake>(first_of(scenario.error()));
  ScenarioValidation out;
  out.name = scenario->values.name();
  *profile = scenario->values.cost().profile();
  if (request.record) {
    if (Result<void> ok = record(request, path, out.name); !ok) return tl::unexpected<Mistake>(ok.error());
  }
  Result<std::vector<Recording>> recordings = read_recordings(request.recordings + "/" + out.name);
  if (!recordings) return tl::unexpected<Mistake>(recordings.error());
  tl::expected<Composed, Mistakes> composed = compose(*scenario);
  if (!composed) return tl::unexpected<Mistake>(first_of(composed.error()));
  if (request.progress) request.progress(fmt::format("{}: replay and simulation", out.name));
  const Result<Priced> priced = replay_all(&*recordings, &*composed, &out);
  if (!priced) return tl::unexpected<Mistake>(priced.error());
  all->steps.insert(all->steps.end(), priced->steps.begin(), priced->steps.end());
  all->copies.insert(all->copies.end(), priced->copies.begin(), priced->copies.end());
  all->details += priced->details;
  if (Result<void> ok = compare_runs(request, path, *recordings, &out); !ok)
    return tl::unexpected<Mistake>(ok.error());
  judge(request.known, &out);
  return out;
}

}  // namespace

Result<Validation> run_validation(const ValidateRequest& request) {
  Validation out;
  Priced all;
  for (const std::string& path : request.scenarios) {
    Result<ScenarioValidation> one = validate_one(request, path, &out.profile, &all);
    if (!one) return tl::unexpected<Mistake>(one.error());
    out.scenarios.push_back(std::move(*one));
  }
  out.steps = statistics_of(all.steps), out.copies = statistics_of(all.copies);
  out.details = kDetailTitles + all.details;
  return out;
}

Result<std::vector<KnownDeviation>> parse_known_deviations(std::string_view text, const std::string& where) {
  v1::KnownDeviations read;
  if (auto ok = parse_textproto(text, where, &read); !ok) return tl::unexpected<Mistake>(ok.error());
  std::vector<KnownDeviation> out;
  for (const v1::KnownDeviation& one : read.deviation()) {
    if (one.scenario().empty() || one.figure().empty() || one.because().empty())
      return mistake(where,
                     fmt::format("a deviation of \"{}\" in \"{}\" lacks a name or its reason", one.figure(),
                                 one.scenario()),
                     "scenario, figure and because");
    out.push_back({one.scenario(), one.figure(), one.because(), one.until()});
  }
  return out;
}

}  // namespace kvtwin
