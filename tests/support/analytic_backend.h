// AnalyticBackend is the simulated backend in plain arithmetic, without SimGrid and without lazy evaluation.
// sim/ must reproduce it event for event as long as no two copies share a link. It is written to be obviously
// right, not fast: each end is computed when its command arrives, and the calendar is one std::map in the
// order that backend.h requires.

#ifndef KVTWIN_TESTS_SUPPORT_ANALYTIC_BACKEND_H_
#define KVTWIN_TESTS_SUPPORT_ANALYTIC_BACKEND_H_

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "sim/sim_backend.h"

namespace kvtwin::testing {

class AnalyticBackend final : public Backend {
 public:
  explicit AnalyticBackend(const sim::SimConfig& config) : config_(config), engines_(config.engines.size()) {}

  void submit(const Command& command) override {
    if (const auto* launch = std::get_if<LaunchStep>(&command)) add_steps(*launch);
    if (const auto* transfer = std::get_if<StartTransfer>(&command)) add_transfer(*transfer);
    if (const auto* timer = std::get_if<SetTimer>(&command)) {
      calendar_.emplace(Key{std::max(timer->at, now_), 2, 0, timers_++}, Timer{timer->engine, timer->timer});
    }
  }

  bool next(Instant* now, Event* event) override {
    Key first{kNever, 9, 0, 0};
    if (!calendar_.empty()) first = calendar_.begin()->first;
    for (uint32_t i = 0; i < engines_.size(); ++i) {
      if (!engines_[i].steps.empty()) first = std::min(first, Key{answer_at(i), 0, i, 0});
    }
    if (std::get<0>(first) == kNever) return false;
    *now = now_ = std::get<0>(first);
    if (std::get<1>(first) == 0) {
      *event = answer(std::get<2>(first), answer_count(std::get<2>(first)));
    } else {
      *event = calendar_.begin()->second;
      calendar_.erase(calendar_.begin());
    }
    return true;
  }

  bool interrupt(EngineId id, Event* event) override {
    auto& steps = engines_[raw(id)].steps;
    const size_t piece = steps.empty() ? 0 : answer_count(raw(id));
    size_t done = 0;
    while (done < piece && at(steps[done].end) <= now_) ++done;
    if (done > 0) {
      *event = answer(raw(id), done);
      return true;
    }
    steps.resize(std::min<size_t>(steps.size(), config_.engines[raw(id)].steps_in_flight_max));
    for (Step& step : steps) step.alone = true;
    return false;
  }

 private:
  using Key = std::tuple<Instant, int, uint32_t, uint64_t>;  // instant, kind, engine, number

  struct Step {
    StepId id{};
    uint64_t launch = 0;
    bool alone = false;  // answered separately
    Ticks end = 0, exposed = 0;
  };
  struct Engine {
    std::vector<Step> steps;                // unanswered
    std::vector<Step> answered{2, Step{}};  // the last two
    uint64_t launches = 0;
    std::vector<Instant> ends;
    std::map<int, Instant> copies_until;  // per direction
  };

  static Instant at(Ticks ticks) { return {ticks / kTicksPerNs}; }

  void add_steps(const LaunchStep& launch) {
    Engine& engine = engines_[raw(launch.engine)];
    const sim::SimEngine& config = config_.engines[raw(launch.engine)];
    ++engine.launches;
    for (uint32_t i = 0; i < launch.repeat; ++i) {
      StepShape shape;
      std::vector<ChunkShape> chunks;
      for (const PlanEntry& entry : launch.entries) {
        shape.logits_rows += entry.samples;
        if (entry.kind == EntryKind::kDecode) {
          ++shape.decodes;
          shape.decode_context_sum += entry.context + i;
          shape.decode_context_max = std::max(shape.decode_context_max, entry.context + i);
        } else {
          chunks.push_back({entry.tokens, entry.context});
        }
      }
      shape.tokens = launch.tokens;
      shape.tokens_padded = launch.tokens_padded;
      shape.chunks = chunks;
      const StepCost cost = config.cost->step(shape);
      std::vector<Step> past = engine.answered;
      past.insert(past.end(), engine.steps.begin(), engine.steps.end());
      const Step& before = past.back();
      const Ticks planned =
          std::max(now_.ns * kTicksPerNs, past[past.size() - config.steps_in_flight_max].end);
      Step step{StepId{raw(launch.step) + i}, engine.launches, false, 0, 0};
      if (config.steps_in_flight_max == 2 && i + 1 == launch.repeat) step.alone = true;
      step.end = std::max(before.end, planned) + std::max<Ticks>(0, cost.host + cost.device);
      step.exposed = before.exposed + std::max<Ticks>(0, cost.host);
      engine.steps.push_back(step);
    }
  }

  size_t answer_count(uint32_t index) const {
    const auto& steps = engines_[index].steps;
    if (steps[0].alone) return 1;
    size_t count = 0;
    while (count < steps.size() && !steps[count].alone && steps[count].launch == steps[0].launch) ++count;
    return count;
  }
  Instant answer_at(uint32_t index) const { return at(engines_[index].steps[answer_count(index) - 1].end); }

  StepDone answer(uint32_t index, size_t count) {
    Engine& engine = engines_[index];
    StepDone done{.engine = EngineId{static_cast<uint16_t>(index)},
                  .step = engine.steps[0].id,
                  .ends = {},
                  .outcome = {},
                  .eos = {}};
    const Ticks exposed_before = engine.answered.back().exposed;
    engine.ends.clear();
    for (size_t i = 0; i < count; ++i) {
      engine.ends.push_back(at(engine.steps[i].end));
      engine.answered = {engine.answered.back(), engine.steps[i]};
    }
    engine.steps.erase(engine.steps.begin(), engine.steps.begin() + static_cast<ptrdiff_t>(count));
    done.ends = engine.ends;
    done.outcome.host = {at(engine.answered.back().exposed) - at(exposed_before)};
    return done;
  }

  // No other engine uses the path: every GPU moves the same fraction at the same time, after its engine's
  // earlier copies in that direction.
  void add_transfer(const StartTransfer& command) {
    Engine& engine = engines_[raw(command.engine)];
    const sim::SimEngine& config = config_.engines[raw(command.engine)];
    const uint64_t bytes = command.source.size() * config.page_bytes;
    Instant end = now_;
    if (bytes > 0) {
      const bool in = command.target_tier == Tier::kGpu;
      Instant& until = engine.copies_until[in];
      until = std::max(until, now_) + (in ? config_.node.copy_overhead_in : config_.node.copy_overhead_out) +
              sim::copy_time(div_ceil<uint64_t>(bytes, config.gpus), config_.node.pcie_gb_per_s);
      end = until;
    }
    calendar_.emplace(Key{end, 1, raw(command.engine), raw(command.transfer)},
                      TransferDone{command.engine, command.transfer});
  }

  const sim::SimConfig config_;
  std::vector<Engine> engines_;
  std::map<Key, Event> calendar_;
  Instant now_{};
  uint64_t timers_ = 0;
};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_ANALYTIC_BACKEND_H_
