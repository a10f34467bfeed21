#include "engine/recorder/recorder_replay.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/methods/registry.h"
#include "engine/recorder/recorder.h"
#include "engine/recorder/recorder_backend.h"

namespace kvtwin {
namespace {

struct Finding {
  Instant at = kNever;
  std::string text;
};

void keep_earlier(Finding* first, Instant at, std::string text) {
  if (at < first->at) *first = {at, std::move(text)};
}

double seconds(Instant at) { return static_cast<double>(at.ns) / 1e9; }

Instant starts_at(const Log::Engine& engine, const Log::CoalescedSteps& coalesced) {
  return coalesced.step == 0 ? Instant{} : engine.ends[coalesced.step - 1];
}

void compare_coalesced(size_t id, const Log::Engine& was, const Log::Engine& is, Finding* first) {
  const size_t common = std::min(was.coalesced_runs.size(), is.coalesced_runs.size());
  for (size_t i = 0; i < common; ++i) {
    const Log::CoalescedSteps &a = was.coalesced_runs[i], &b = is.coalesced_runs[i];
    if (a.plan != b.plan || a.step != b.step) {
      keep_earlier(first, starts_at(was, a),
                   fmt::format("engine {}: step {}, launched at {:.6f} s, has another plan", id, a.step,
                               seconds(starts_at(was, a))));
      return;
    }
    if (a.steps != b.steps) {
      const uint64_t step = a.step + std::min(a.steps, b.steps);
      keep_earlier(first, was.ends[std::min<uint64_t>(step, was.ends.size()) - 1],
                   fmt::format("engine {}: from step {} on, the batch is another", id, step));
      return;
    }
  }
  if (was.coalesced_runs.size() == is.coalesced_runs.size()) return;
  const Log::Engine& longer = was.coalesced_runs.size() > common ? was : is;
  const Instant at = starts_at(longer, longer.coalesced_runs[common]);
  keep_earlier(first, at,
               fmt::format("engine {}: step {}, launched at {:.6f} s, exists only in the {} run", id,
                           longer.coalesced_runs[common].step, seconds(at),
                           &longer == &was ? "recorded" : "replayed"));
}

void compare_checkpoints(size_t id, const Log::Engine& was, const Log::Engine& is, Finding* first) {
  const size_t common = std::min(was.checkpoints.size(), is.checkpoints.size());
  for (size_t i = 0; i < common; ++i) {
    const Log::Checkpoint &a = was.checkpoints[i], &b = is.checkpoints[i];
    if (a.digest == b.digest && a.steps == b.steps && a.at == b.at) continue;
    keep_earlier(
        first, a.at,
        fmt::format("engine {}: after event {} from outside, at {:.6f} s and step {}, decisions differ "
                    "(digest {:016x}, recorded {:016x}); the one before agrees",
                    id, a.outside, seconds(a.at), a.steps, b.digest, a.digest));
    return;
  }
  if (was.checkpoints.size() == is.checkpoints.size()) return;
  const Log::Engine& longer = was.checkpoints.size() > common ? was : is;
  keep_earlier(first, longer.checkpoints[common].at,
               fmt::format("engine {}: event {} from outside, at {:.6f} s, exists only in the {} run", id,
                           longer.checkpoints[common].outside, seconds(longer.checkpoints[common].at),
                           &longer == &was ? "recorded" : "replayed"));
}

// Policies that the caller supplies (make_axes) have no names to look up.
std::optional<std::string> wrong_config(const RunOptions& options, const CoreConfig& config) {
  if (!options.make_axes) return validate_core_config(config);
  if (auto problem = validate_limits(config)) return problem;
  return validate_axes(options.make_axes(config), config.policies, config);
}

}  // namespace

Result<Replayed> replay(const std::string& name, const Log& log, const std::vector<Observer*>& observers) {
  for (const CoreConfig& config : log.options.engines) {
    if (const std::optional<std::string> problem = wrong_config(log.options, config)) {
      return make_error(fmt::format("{}: engine {}", name, raw(config.engine)), *problem);
    }
  }
  Recorder recorder(log.options, {log.scenario, log.seed});
  RecordedBackend backend(&log);
  RecordedClient client(&log);
  std::vector<Observer*> all = observers;
  all.push_back(&recorder);
  Replayed out;
  out.end = run(log.options, recorder.watch(&client), &backend, all);
  out.same = out.end.digest == log.digest;
  if (out.same) return out;

  const Result<Log> again = read_log("the replayed run", recorder.finish(out.end));
  if (!again) return tl::unexpected(again.error());
  Finding first;
  for (size_t i = 0; i < log.engines.size(); ++i) {
    compare_coalesced(i, log.engines[i], again->engines[i], &first);
    compare_checkpoints(i, log.engines[i], again->engines[i], &first);
  }
  out.difference =
      first.at == kNever ? "the last decisions of the run, or the placement of requests" : first.text;
  return out;
}

}  // namespace kvtwin
