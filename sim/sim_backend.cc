#include "sim/sim_backend.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <string>
#include <tuple>

#include "engine/base/check.h"
#include "sim/copy_engines.h"
#include "sim/expanded_step.h"
#include "sim/simgrid_adapter.h"

namespace kvtwin::sim {
namespace {

struct PendingTimer {
  Instant at{};
  uint64_t order = 0;
  Timer timer;
  // For a heap with the earliest timer on top.
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

// The time of SimGrid's clock at which events of `at` may be reported: every copy that ends at that
// nanosecond has ended by then.
double answered_at(Instant at) { return static_cast<double>(at.ns) + kClockMarginNs; }

std::vector<CopyEngines::Place> places_of(const SimConfig& config) {
  std::vector<CopyEngines::Place> places;
  for (const SimEngine& engine : config.engines) places.push_back({engine.gpu_first, engine.gpus});
  return places;
}

// Expander decides, step by step, whether a step that moves pages is collapsed or executed operation by
// operation, and executes it.
//
// Each PCIe link belongs to one GPU, so the only shared links are those of a socket's memory, shared by two
// or more GPUs.
class Expander final : public StepRunner {
 public:
  // `ended(engine, took, exposed)` is called in SimGrid's kernel.
  using Ended = std::function<void(uint32_t engine, Ticks took, Ticks exposed)>;

  Expander(const SimConfig& config, const std::deque<StepClock>* clocks, SimGrid* grid, Ended ended)
      : config_(config), clocks_(*clocks), grid_(grid), steps_(grid), ended_(std::move(ended)) {
    demands_.resize(config.engines.size());
    numbers_.resize(config.engines.size());
    for (size_t i = 0; i < config.engines.size(); ++i) {
      const SimEngine& engine = config.engines[i];
      if (engine.pricer == nullptr) continue;
      ExpandedSteps::Site site{.gpu = engine.gpu_first, .in = {}, .out = {}};
      for (uint32_t gpu = engine.gpu_first; gpu < engine.gpu_first + engine.gpus; ++gpu) {
        site.in.push_back(grid->host_to_gpu(socket_of(config.node, gpu), gpu));
        site.out.push_back(grid->gpu_to_host(gpu, socket_of(config.node, gpu)));
      }
      numbers_[i] = steps_.add_engine(engine.pricer->graph(), site);
    }
  }

  void on_done(Token token) { steps_.on_done(token); }

  bool take(const Offer& offer) override {
    const uint32_t index = raw(offer.engine);
    const uint64_t bytes = offer.alone.bytes_in + offer.alone.bytes_out;
    demands_[index] = {bytes, offer.took};
    // While pieces of earlier steps run, only SimGrid knows when the step can start.
    const bool behind = steps_.busy(numbers_[index]);
    if (!behind && choose_fidelity(config_.fidelity, bytes > 0, utilisation(index)) == Fidelity::kCollapsed) {
      return false;
    }
    std::vector<double> carried;
    for (const Ticks at : offer.pricer->carried()) {
      carried.push_back(static_cast<double>(offer.base.ns) + static_cast<double>(at) / kTicksPerNs);
    }
    offer.pricer->forget_carried();
    grid_->at(offer.start_ns, [this, index, carried = std::move(carried), pricer = offer.pricer] {
      const auto done = [this, index](const ExpandedSteps::Timing& timing) {
        const auto ticks = [](double ns) { return static_cast<Ticks>(std::llround(ns * kTicksPerNs)); };
        ended_(index, ticks(timing.end_ns - timing.start_ns), ticks(timing.exposed_ns));
      };
      steps_.start(numbers_[index], pricer->outcomes(), done, carried);
    });
    return true;
  }

 private:
  // Predicted utilisation of the most loaded memory that `engine` shares, from the last step of every engine.
  double utilisation(uint32_t index) const {
    double most = 0;
    const SimEngine& asking = config_.engines[index];
    for (uint32_t gpu = asking.gpu_first; gpu < asking.gpu_first + asking.gpus; ++gpu) {
      std::vector<LinkDemand> demands;
      for (uint32_t i = 0; i < config_.engines.size(); ++i) {
        const SimEngine& engine = config_.engines[i];
        if (i != index && clocks_[i].idle()) continue;
        for (uint32_t other = engine.gpu_first; other < engine.gpu_first + engine.gpus; ++other) {
          if (socket_of(config_.node, other) == socket_of(config_.node, gpu)) demands.push_back(demands_[i]);
        }
      }
      if (demands.size() < 2) continue;
      most = std::max(most,
                      predicted_utilisation(demands, node_of(config_.node, gpu).node->host_memory_gb_per_s));
    }
    return most;
  }

  const SimConfig& config_;
  const std::deque<StepClock>& clocks_;
  SimGrid* const grid_;
  ExpandedSteps steps_;
  const Ended ended_;
  std::vector<LinkDemand> demands_;  // of one GPU of each engine
  std::vector<uint32_t> numbers_;    // engine numbers in steps_
};

// next() knows the ends of steps and timers as integers; only ends of copies come from SimGrid. It picks the
// earliest possible instant, advances SimGrid's clock to it, which may complete a copy that ends before, and
// answers when nothing earlier is left.
class SimBackend final : public Backend {
 public:
  explicit SimBackend(const SimConfig& config)
      : config_(config),
        grid_(config.node),
        copies_(
            config.node, places_of(config), &grid_,
            [this](Instant at, uint64_t id) { transfer_ended(at, id); }, config.prefill_engines),
        expander_(config, &clocks_, &grid_,
                  [this](uint32_t engine, Ticks took, Ticks exposed) { step_ended(engine, took, exposed); }) {
    grid_.on_done([this](Token token) {
      ExpandedSteps::is_ours(token) ? expander_.on_done(token) : copies_.on_done(token);
    });
    for (size_t i = 0; i < config.engines.size(); ++i) {
      const SimEngine& engine = config.engines[i];
      clocks_.emplace_back(EngineId{static_cast<uint16_t>(i)}, engine.cost, engine.steps_in_flight_max,
                           engine.first_step_host);
      clocks_.back().extend(engine.source, engine.pricer, engine.gpus, &expander_);
      clocks_.back().watch(engine.watcher);
      clocks_.back().set_partition(engine.partition);
      clocks_.back().set_lists_entries(engine.lists_entries);
    }
  }

  SimGrid& grid() { return grid_; }

  void submit(const Command& command) override {
    if (const auto* launch = std::get_if<LaunchStep>(&command)) {
      return clocks_.at(raw(launch->engine)).launch(now_, *launch);
    }
    notify_source(command);
    if (const auto* transfer = std::get_if<StartTransfer>(&command)) {
      start(*transfer);
    } else if (const auto* timer = std::get_if<SetTimer>(&command)) {
      push(&timers_, {std::max(timer->at, now_), timers_set_++, {timer->engine, timer->timer}});
    }
    // No other command takes time, and this backend holds no state of requests or sessions.
  }

  bool next(Instant* now, Event* event) override {
    for (;;) {
      const Instant known = earliest_known();
      const Instant wake = look_ahead(known);
      if (wake == kNever) {
        if (!busy()) return false;
        grid_.wait();
      } else if (!grid_.reached(answered_at(wake))) {
        grid_.wait_until(answered_at(wake));
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
  // Whether anything is in progress whose end only SimGrid knows.
  bool busy() const {
    return copies_.busy() || copies_to_begin_ > 0 ||
           std::any_of(clocks_.begin(), clocks_.end(),
                       [](const StepClock& clock) { return clock.running_delegated(); });
  }

  void notify_source(const Command& command) {
    std::visit(
        [&](const auto& c) {
          const size_t engine = raw(c.engine);  // timers of the client belong to no engine
          if (engine >= config_.engines.size() || config_.engines[engine].source == nullptr) return;
          config_.engines[engine].source->notify(command);
        },
        command);
  }

  // Of a page and its copy, the one on the GPU has the lower number, which implies its format.
  uint64_t bytes_of(const StartTransfer& command) const {
    const SimEngine& engine = config_.engines.at(raw(command.engine));
    uint64_t bytes = 0;
    for (size_t i = 0; i < command.source.size(); ++i) {
      const bool low_bit = std::min(raw(command.source[i]), raw(command.target[i])) < engine.pages_low_bit;
      bytes += low_bit ? engine.page_bytes_low_bit : engine.page_bytes;
    }
    return bytes;
  }

  void start(const StartTransfer& command) {
    KVT_CHECK(command.source.size() == command.target.size());
    const uint64_t bytes = bytes_of(command);
    const TransferDone done{command.engine, command.transfer};
    if (bytes == 0) return push(&ended_, {now_, done});
    if (ids_free_.empty()) {
      ids_free_.push_back(running_.size());
      running_.emplace_back();
    }
    const uint64_t id = ids_free_.back();
    ids_free_.pop_back();
    running_[id] = done;
    if (command.kind == TransferKind::kReceive) {
      return copies_.start_between(now_, raw(command.from), raw(command.engine), bytes, id);
    }
    const auto engine = raw(command.engine);
    const StepClock& clock = clocks_[engine];
    Instant begins = now_ + config_.engines[engine].planning.of(clock.decodes_launched());
    // Steps that have ended may still offload: their data is copied back only after it has arrived.
    if (command.source_tier == Tier::kHost) begins = std::max(begins, clock.offloaded_at());
    if (begins <= now_)
      return copies_.start(now_, engine, command.source_tier, command.target_tier, bytes, id);
    ++copies_to_begin_;
    const Tier source = command.source_tier, target = command.target_tier;
    grid_.at(static_cast<double>(begins.ns), [this, begins, engine, source, target, bytes, id] {
      --copies_to_begin_;
      copies_.start(begins, engine, source, target, bytes, id);
    });
  }

  // In SimGrid's kernel, while the driver sleeps.
  void transfer_ended(Instant at, uint64_t id) {
    at = std::max(at, now_);
    push(&ended_, {at, running_[id]});
    ids_free_.push_back(id);
    grid_.wake_by(answered_at(at));
  }

  // In SimGrid's kernel.
  void step_ended(uint32_t engine, Ticks took, Ticks exposed) {
    clocks_[engine].finish(took, exposed);
    grid_.wake_by(answered_at(clocks_[engine].next_event().at));
  }

  Instant earliest_known() const {
    Instant at = kNever;
    if (!timers_.empty()) at = std::min(at, timers_.front().at);
    if (!ended_.empty()) at = std::min(at, ended_.front().at);
    for (const StepClock& clock : clocks_) {
      if (const auto seen = clock.next_event(); seen.known) at = std::min(at, seen.at);
    }
    return at;
  }

  // Prices further where an answer may come before `known`. Returns the next instant of interest: that of the
  // next answer, or an earlier one at which coalesced steps must be priced further. While copies run, nothing
  // is priced beyond SimGrid's clock, because the end of a copy may interrupt coalesced steps. Lazy clocks
  // never price ahead.
  Instant look_ahead(Instant known) {
    Instant wake = known;
    for (StepClock& clock : clocks_) {
      auto seen = clock.next_event();
      while (!seen.known && !clock.running_delegated() && seen.at <= wake &&
             ((!clock.lazy() && !busy()) || grid_.reached(answered_at(seen.at)))) {
        clock.look_ahead(clock.lazy() ? seen.at : wake);
        seen = clock.next_event();
      }
      wake = std::min(wake, seen.at);
    }
    return wake;
  }

  // The events of one instant: steps by engine, transfers by engine and number, timers in the order in which
  // they were set.
  void take(Event* event) {
    for (StepClock& clock : clocks_) {
      const auto seen = clock.next_event();
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
  std::deque<StepClock> clocks_;  // a deque: others hold pointers to its elements
  Expander expander_;
  Instant now_{};
  std::vector<PendingTimer> timers_;   // heap
  std::vector<EndedTransfer> ended_;   // heap
  std::vector<TransferDone> running_;  // by the id given to CopyEngines
  std::vector<uint64_t> ids_free_;
  uint64_t timers_set_ = 0;
  uint32_t copies_to_begin_ = 0;
};

}  // namespace

// Checks that KV can be copied from every engine that computes prompts to every engine that decodes.
static Result<void> validate_ways(const SimConfig& config) {
  if (config.prefill_engines == 0) return {};
  if (config.prefill_engines >= config.engines.size()) {
    return make_error("prefill_engines", "is " + std::to_string(config.prefill_engines),
                      "fewer than there are engines would be right");
  }
  for (size_t to = config.prefill_engines; to < config.engines.size(); ++to) {
    for (size_t from = 0; from < config.prefill_engines; ++from) {
      const SimEngine &a = config.engines[from], &b = config.engines[to];
      if (a.page_bytes != b.page_bytes) {
        return make_error("engines[" + std::to_string(to) + "]",
                          "a page has " + std::to_string(b.page_bytes) + " bytes, and " +
                              std::to_string(a.page_bytes) + " on engines[" + std::to_string(from) + "]",
                          "pages are handed over whole: equal sizes would be right");
      }
      if (gpu_path_gb_per_s(config.node, a.gpu_first, b.gpu_first) > 0) continue;
      return make_error("engines[" + std::to_string(to) + "]",
                        "there is no way for KV from engines[" + std::to_string(from) + "]",
                        "one node, or network cards (nic_bytes_per_s) in both, would be right");
    }
  }
  return {};
}

Result<void> validate_sim_config(const SimConfig& config) {
  if (const auto node = validate_platform(config.node); !node) return node;
  if (config.engines.empty()) return make_error("engines", "there are none", "at least one would be right");
  for (size_t i = 0; i < config.engines.size(); ++i) {
    const SimEngine& engine = config.engines[i];
    const std::string where = "engines[" + std::to_string(i) + "]";
    if (engine.cost == nullptr) return make_error(where, "cost is missing");
    if (engine.steps_in_flight_max < 1 || engine.steps_in_flight_max > 2) {
      return make_error(where, "steps_in_flight_max is " + std::to_string(engine.steps_in_flight_max),
                        "1 or 2 would be right");
    }
    if (engine.source != nullptr && engine.retention != nullptr) {
      return make_error(where, "has a source and a retention, and both may say what is kept",
                        "a CombinedSource of the two as source would be right");
    }
    if (engine.page_bytes > uint64_t{1} << 40) {
      return make_error(where, "page_bytes is " + std::to_string(engine.page_bytes),
                        "at most 1 TiB would be right");
    }
    if (engine.gpus == 0 || uint64_t{engine.gpu_first} + engine.gpus > gpus_of(config.node)) {
      return make_error(where,
                        "GPUs " + std::to_string(engine.gpu_first) + " to " +
                            std::to_string(uint64_t{engine.gpu_first} + engine.gpus) + " (not included)",
                        "the node has " + std::to_string(gpus_of(config.node)));
    }
  }
  return validate_ways(config);
}

SimReport simulate(const SimConfig& config, const std::function<void(Backend*)>& body) {
  KVT_CHECK(validate_sim_config(config).has_value());
  SimBackend backend(config);
  backend.grid().run([&] { body(&backend); });
  return backend.report();
}

}  // namespace kvtwin::sim
