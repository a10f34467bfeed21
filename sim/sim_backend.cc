#include "sim/sim_backend.h"

#include <algorithm>
#include <memory>
#include <string>
#include <tuple>

#include "engine/base/check.h"
#include "sim/copy_engines.h"
#include "sim/simgrid_adapter.h"

namespace kvtwin::sim {
namespace {

struct PendingTimer {
  Instant at{};
  uint64_t order = 0;
  Timer timer;
  // For a heap with the earliest on top.
  friend bool operator<(const PendingTimer& a, const PendingTimer& b) {
    return std::tie(b.at, b.order) < std::tie(a.at, a.order);
  }
};

struct EndedTransfer {
  Instant at{};
  TransferDone transfer;
  friend bool operator<(const EndedTransfer& a, const EndedTransfer& b) {
    return std::tie(b.at, b.transfer.engine, b.transfer.transfer) <
           std::tie(a.at, a.transfer.engine, a.transfer.transfer);
  }
};

template <typename T>
void push(std::vector<T>* heap, const T& value) {
  heap->push_back(value);
  std::push_heap(heap->begin(), heap->end());
}

template <typename T>
T pop(std::vector<T>* heap) {
  std::pop_heap(heap->begin(), heap->end());
  const T value = heap->back();
  heap->pop_back();
  return value;
}

// When SimGrid's clock must be for the things of `at` to be told: late enough that every copy that ends at
// that nanosecond has ended.
double told_at(Instant at) { return static_cast<double>(at.ns) + kClockMarginNs; }

std::vector<CopyEngines::Place> places_of(const SimConfig& config) {
  std::vector<CopyEngines::Place> places;
  for (const SimEngine& engine : config.engines) places.push_back({engine.gpu_first, engine.gpus});
  return places;
}

// next() knows the ends of steps and timers as integers; only the ends of copies are SimGrid's to say.
// It picks the earliest instant that can be next, lets SimGrid's clock come there, which may bring a copy
// that ended before, and answers when nothing earlier is left.
class SimBackend final : public Backend {
 public:
  explicit SimBackend(const SimConfig& config)
      : config_(config),
        grid_(config.node),
        copies_(config.node, places_of(config), &grid_,
                [this](Instant at, uint64_t id) { transfer_ended(at, id); }) {
    for (size_t i = 0; i < config.engines.size(); ++i) {
      const SimEngine& engine = config.engines[i];
      clocks_.emplace_back(EngineId{static_cast<uint16_t>(i)}, engine.cost, engine.steps_in_flight_max,
                           engine.first_step_host);
    }
  }

  SimGrid& grid() { return grid_; }

  void submit(const Command& command) override {
    if (const auto* launch = std::get_if<LaunchStep>(&command)) {
      clocks_.at(raw(launch->engine)).launch(now_, *launch);
    } else if (const auto* transfer = std::get_if<StartTransfer>(&command)) {
      start(*transfer);
    } else if (const auto* timer = std::get_if<SetTimer>(&command)) {
      push(&timers_, {std::max(timer->at, now_), timers_set_++, {timer->engine, timer->timer}});
    }
    // Nothing else takes time here, and this world keeps no state of calls or sessions.
  }

  bool next(Instant* now, Event* event) override {
    for (;;) {
      const Instant known = earliest_known();
      const Instant wake = look_ahead(known);
      if (wake == kNever) {
        if (!copies_.busy()) return false;
        grid_.wait();
      } else if (!grid_.reached(told_at(wake))) {
        grid_.wait_until(told_at(wake));
      } else if (wake == known) {
        KVT_CHECK(known >= now_);
        *now = now_ = known;
        take(event);
        return true;
      }
    }
  }

  bool interrupt(EngineId engine, Event* event) override {
    StepDone ended;
    if (!clocks_.at(raw(engine)).interrupt(now_, &ended)) return false;
    *event = ended;
    return true;
  }

  SimReport report() const {
    SimReport report;
    for (const StepClock& clock : clocks_) report.engines.push_back(clock.totals());
    return report;
  }

 private:
  void start(const StartTransfer& command) {
    KVT_CHECK(command.source.size() == command.target.size());
    const uint64_t bytes = command.source.size() * config_.engines.at(raw(command.engine)).page_bytes;
    const TransferDone done{command.engine, command.transfer};
    if (bytes == 0) return push(&ended_, {now_, done});
    if (ids_free_.empty()) {
      ids_free_.push_back(running_.size());
      running_.emplace_back();
    }
    const uint64_t id = ids_free_.back();
    ids_free_.pop_back();
    running_[id] = done;
    copies_.start(now_, raw(command.engine), command.source_tier, command.target_tier, bytes, id);
  }

  // In SimGrid's kernel, while the driver sleeps.
  void transfer_ended(Instant at, uint64_t id) {
    at = std::max(at, now_);
    push(&ended_, {at, running_[id]});
    ids_free_.push_back(id);
    grid_.wake_by(told_at(at));
  }

  Instant earliest_known() const {
    Instant at = kNever;
    if (!timers_.empty()) at = std::min(at, timers_.front().at);
    if (!ended_.empty()) at = std::min(at, ended_.front().at);
    for (const StepClock& clock : clocks_) {
      if (const auto seen = clock.outlook(); seen.known) at = std::min(at, seen.at);
    }
    return at;
  }

  // Prices on where an answer might come before `known`. Returns the next instant to look at: the next
  // answer's, or an earlier one at which a stretch must be priced further. While copies run, no stretch
  // is priced beyond what SimGrid's clock has reached: their ends may cut it short.
  Instant look_ahead(Instant known) {
    Instant wake = known;
    for (StepClock& clock : clocks_) {
      auto seen = clock.outlook();
      while (!seen.known && seen.at <= wake && (!copies_.busy() || grid_.reached(told_at(seen.at)))) {
        clock.look_ahead(wake);
        seen = clock.outlook();
      }
      wake = std::min(wake, seen.at);
    }
    return wake;
  }

  // Of one instant: steps by engine, transfers by engine and number, timers in the order they were set.
  void take(Event* event) {
    for (StepClock& clock : clocks_) {
      const auto seen = clock.outlook();
      if (!seen.known || seen.at != now_) continue;
      *event = clock.take();
      return;
    }
    if (!ended_.empty() && ended_.front().at == now_) {
      *event = pop(&ended_).transfer;
    } else {
      *event = pop(&timers_).timer;
    }
  }

  const SimConfig& config_;
  SimGrid grid_;
  CopyEngines copies_;
  std::vector<StepClock> clocks_;
  Instant now_{};
  std::vector<PendingTimer> timers_;   // heap
  std::vector<EndedTransfer> ended_;   // heap
  std::vector<TransferDone> running_;  // by the number that CopyEngines knows them by
  std::vector<uint64_t> ids_free_;
  uint64_t timers_set_ = 0;
};

}  // namespace

Result<void> validate_sim_config(const SimConfig& config) {
  if (const auto node = validate_platform(config.node); !node) return node;
  if (config.engines.empty()) return mistake("engines", "there are none", "at least one would be right");
  for (size_t i = 0; i < config.engines.size(); ++i) {
    const SimEngine& engine = config.engines[i];
    const std::string where = "engines[" + std::to_string(i) + "]";
    if (engine.cost == nullptr) return mistake(where, "cost is missing");
    if (engine.steps_in_flight_max < 1 || engine.steps_in_flight_max > 2) {
      return mistake(where, "steps_in_flight_max is " + std::to_string(engine.steps_in_flight_max),
                     "1 or 2 would be right");
    }
    if (engine.page_bytes > uint64_t{1} << 40) {
      return mistake(where, "page_bytes is " + std::to_string(engine.page_bytes),
                     "at most 1 TiB would be right");
    }
    if (engine.gpus == 0 || uint64_t{engine.gpu_first} + engine.gpus > config.node.gpus) {
      return mistake(where,
                     "GPUs " + std::to_string(engine.gpu_first) + " to " +
                         std::to_string(uint64_t{engine.gpu_first} + engine.gpus) + " (not included)",
                     "the node has " + std::to_string(config.node.gpus));
    }
  }
  return {};
}

SimReport simulate(const SimConfig& config, const std::function<void(Backend*)>& body) {
  KVT_CHECK(validate_sim_config(config).has_value());
  SimBackend world(config);
  world.grid().run([&] { body(&world); });
  return world.report();
}

}  // namespace kvtwin::sim
