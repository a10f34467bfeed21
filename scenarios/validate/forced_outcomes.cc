#include "scenarios/validate/forced_outcomes.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "engine/recorder_outcomes.h"
#include "engine/recorder_replay.h"

namespace kvtwin {
namespace {

// Answers for one engine what the log says its compressions retained.
class LoggedOutcomes final : public OutcomeSource {
 public:
  explicit LoggedOutcomes(const Log::Engine& engine) : engine_(engine) {}

  void step(const LaunchStep& launch, uint32_t, StepValues* values) override {
    values->clear();
    // A stretch ends with the step that has outcomes.
    const auto stretch =
        std::lower_bound(engine_.stretches.begin(), engine_.stretches.end(), raw(launch.step),
                         [](const Log::Stretch& one, uint64_t step) { return one.step + one.steps <= step; });
    if (stretch == engine_.stretches.end()) return;
    for (const Compression& compression : launch.compressions) {
      const CallId call = launch.entries[compression.entry].call;
      for (const Log::Kept& kept : stretch->kept) {
        if (kept.call != call) continue;
        values->kept_counts.insert(values->kept_counts.end(), kept.counts.begin(), kept.counts.end());
        values->kept_live.insert(values->kept_live.end(), kept.live.begin(), kept.live.end());
      }
      values->end_kept(call);
    }
    values->link_kept();
  }
  void told(const Command&) override {}

 private:
  const Log::Engine& engine_;
};

// Asks the sources as a backend does.
class Asking final : public Observer {
 public:
  explicit Asking(std::vector<OutcomeSource*> sources) : sources_(std::move(sources)) {}

  void saw_command(Instant, const Command& command) override {
    const auto* launch = std::get_if<LaunchStep>(&command);
    if (launch != nullptr) {
      StepValues values;
      sources_.at(raw(launch->engine))->step(*launch, 0, &values);
      return;
    }
    for (OutcomeSource* source : sources_) source->told(command);
  }

 private:
  const std::vector<OutcomeSource*> sources_;
};

bool awaits_outcomes(const Log& log) {
  const auto retains = [](const Log::Stretch& stretch) {
    return std::any_of(stretch.kept.begin(), stretch.kept.end(),
                       [](const Log::Kept& kept) { return !kept.counts.empty() || !kept.live.empty(); });
  };
  return std::any_of(log.engines.begin(), log.engines.end(), [&](const Log::Engine& engine) {
    return std::any_of(engine.stretches.begin(), engine.stretches.end(), retains);
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
  if (!replayed) return tl::unexpected<Mistake>(replayed.error());
  return outcomes.finish();
}

}  // namespace kvtwin
