#include "scenarios/validate/forced_outcomes.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "engine/recorder/recorder_outcomes.h"
#include "engine/recorder/recorder_replay.h"

namespace kvtwin {
namespace {

// Supplies one engine's retained counts from the log.
class LoggedOutcomes final : public OutcomeSource {
 public:
  explicit LoggedOutcomes(const Log::Engine& engine) : engine_(engine) {}

  void step(const LaunchStep& launch, uint32_t, DataOutcomes* values) override {
    values->clear();
    // Coalesced steps end with the step that has outcomes.
    const auto busy_period = std::lower_bound(
        engine_.coalesced_runs.begin(), engine_.coalesced_runs.end(), raw(launch.step),
        [](const Log::CoalescedSteps& one, uint64_t step) { return one.step + one.steps <= step; });
    if (busy_period == engine_.coalesced_runs.end()) return;
    for (const Compression& compression : launch.compressions) {
      const RequestId request = launch.entries[compression.entry].request;
      for (const Log::Retained& retained : busy_period->retained) {
        if (retained.request != request) continue;
        values->retained_counts.insert(values->retained_counts.end(), retained.counts.begin(),
                                       retained.counts.end());
        values->retained_live.insert(values->retained_live.end(), retained.live.begin(), retained.live.end());
      }
      values->end_retained(request);
    }
    values->link_retained();
  }
  void notify(const Command&) override {}

 private:
  const Log::Engine& engine_;
};

// Queries the sources at each command, as a backend does.
class Asking final : public Observer {
 public:
  explicit Asking(std::vector<OutcomeSource*> sources) : sources_(std::move(sources)) {}

  void saw_command(Instant, const Command& command) override {
    const auto* launch = std::get_if<LaunchStep>(&command);
    if (launch != nullptr) {
      DataOutcomes values;
      sources_.at(raw(launch->engine))->step(*launch, 0, &values);
      return;
    }
    for (OutcomeSource* source : sources_) source->notify(command);
  }

 private:
  const std::vector<OutcomeSource*> sources_;
};

bool awaits_outcomes(const Log& log) {
  const auto retains = [](const Log::CoalescedSteps& busy_period) {
    return std::any_of(
        busy_period.retained.begin(), busy_period.retained.end(),
        [](const Log::Retained& retained) { return !retained.counts.empty() || !retained.live.empty(); });
  };
  return std::any_of(log.engines.begin(), log.engines.end(), [&](const Log::Engine& engine) {
    return std::any_of(engine.coalesced_runs.begin(), engine.coalesced_runs.end(), retains);
  });
}

}  // namespace

Result<std::string> retained_outcomes(const std::string& name, const Log& log) {
  if (!awaits_outcomes(log)) return std::string();
  OutcomeLog outcomes(static_cast<uint32_t>(log.engines.size()));
  std::vector<std::unique_ptr<LoggedOutcomes>> logged;
  std::vector<OutcomeSource*> sources;
  for (const Log::Engine& engine : log.engines) {
    logged.push_back(std::make_unique<LoggedOutcomes>(engine));
    sources.push_back(outcomes.watch(logged.back().get()));
  }
  Asking asking(sources);
  const Result<Replayed> replayed = replay(name, log, {&asking});
  if (!replayed) return tl::unexpected<Error>(replayed.error());
  return outcomes.finish();
}

}  // namespace kvtwin
