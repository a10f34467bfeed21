// A seeded toy policy to compare backends with. It launches single and coalesced steps, starts transfers,
// sets timers, and lets external events interrupt coalesced steps as the driver does. The work of a step
// depends on its number only, so coalescing must not change any instant.

#ifndef KVTWIN_TESTS_UNIT_SIM_SCRIPT_H_
#define KVTWIN_TESTS_UNIT_SIM_SCRIPT_H_

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "engine/base/prng.h"
#include "engine/runtime/backend.h"
#include "models/cost/cost_model.h"
#include "sim/sim_backend.h"

namespace kvtwin::testing {

// Prices with odd fractions of a nanosecond; or, if `coarse`, whole microseconds, so that many events
// coincide.
class ToyCost final : public CostModel {
 public:
  ToyCost(uint64_t seed, bool coarse, Ticks host) : seed_(seed), coarse_(coarse), host_(host) {}
  StepCost step(const StepShape& shape) override {
    ++requests;
    uint64_t ticks = 1'500'000 + draw({seed_, shape.decode_context_sum, shape.tokens_padded}) % 900'000;
    ticks += shape.decodes * 70'001 + shape.decode_context_sum * 13 + shape.decode_context_max * 3;
    for (const ChunkShape& chunk : shape.chunks) ticks += chunk.tokens * 9'973 + chunk.context * 11;
    if (coarse_)
      ticks = std::max<uint64_t>(1, ticks / 1'024'000) * 1'024'000 * (draw({seed_, ticks}) % 8 > 0);
    const auto device = static_cast<Ticks>(ticks);
    return {.device = device, .host = host_, .by_evidence = {0, device / 3, 0, device - device / 3}};
  }
  uint64_t requests = 0;

 private:
  const uint64_t seed_;
  const bool coarse_;
  const Ticks host_;
};

struct ScriptOptions {
  uint64_t seed = 0;
  bool coalesce = true;
  uint32_t steps = 300;    // per engine
  uint32_t outside = 120;  // number of external events
  int64_t outside_gap_ns_max = 40'000;
  bool coarse = false;  // external events at whole microseconds
  bool transfers = true;
  Instant start{};  // nothing happens before
};

class Script {
 public:
  Script(const sim::SimConfig& config, const ScriptOptions& options, Backend* backend)
      : config_(config), options_(options), backend_(backend), engines_(config.engines.size()) {}

  // One line per single step and per other event, in the reported order, with times since the start.
  std::string run() {
    Instant at = options_.start;
    for (uint32_t i = 0; i < options_.outside; ++i) {
      const auto gap = static_cast<int64_t>(pick({1, i}, static_cast<uint64_t>(options_.outside_gap_ns_max)));
      at = at + Duration{options_.coarse ? gap / 1000 * 1000 : gap};
      backend_->submit(SetTimer{kClient, TimerId{i}, at});
    }
    Event event;
    while (backend_->next(&now_, &event)) take(event);
    return std::move(log_);
  }

 private:
  struct Engine {
    uint64_t planned = 0;  // single steps launched and not cancelled
    uint64_t ended = 0;
    uint64_t transfers = 0;
    int64_t answered_ns = 0;
    int64_t host_ns = 0;
    bool finished = false;
  };

  uint64_t pick(std::initializer_list<uint64_t> key, uint64_t below) const {
    uint64_t word = options_.seed;
    for (const uint64_t k : key) word = draw({word, k});
    return word % below;
  }
  void line(Instant at, const char* what, uint64_t engine, uint64_t number, int64_t more = 0) {
    log_ += fmt::format("{} {} e{} {} {}\n", at.ns - options_.start.ns, what, engine, number, more);
  }

  void take(const Event& event) {
    if (const auto* done = std::get_if<StepDone>(&event)) return steps_ended(*done, now_);
    if (const auto* done = std::get_if<TransferDone>(&event)) {
      from_outside(raw(done->engine));
      line(now_, "transfer", raw(done->engine), raw(done->transfer));
      return plan(raw(done->engine));
    }
    const auto& timer = std::get<Timer>(event);
    const uint64_t number = raw(timer.timer);
    const auto index = static_cast<uint32_t>(pick({2, number}, engines_.size()));
    from_outside(index);
    line(now_, "outside", index, number);
    if (options_.transfers && pick({3, number}, 3) == 0) start_transfer(index, number);
    plan(index);
  }

  // Interrupts as engine/runtime/driver.cc does before it forwards an event to an engine.
  void from_outside(uint32_t index) {
    Event ended;
    Engine& engine = engines_[index];
    while (backend_->interrupt(EngineId{static_cast<uint16_t>(index)}, &ended)) {
      steps_ended(std::get<StepDone>(ended), std::get<StepDone>(ended).ends.back());
    }
    engine.planned = std::min(engine.planned, engine.ended + config_.engines[index].steps_in_flight_max);
  }

  void steps_ended(const StepDone& done, Instant at) {
    Engine& engine = engines_[raw(done.engine)];
    uint64_t number = raw(done.step);
    engine.host_ns += done.outcome.host.ns;
    for (const Instant end : done.ends) {
      if (number != engine.ended) log_ += "WRONG STEP " + std::to_string(engine.ended) + "\n";
      if (end.ns < engine.answered_ns) log_ += "BACKWARDS\n";
      engine.answered_ns = end.ns;
      line(end, "step", raw(done.engine), number++);
      ++engine.ended;
    }
    if (done.ends.back() != at) log_ += "NOT THE LAST END\n";
    plan(raw(done.engine));
  }

  void plan(uint32_t index) {
    Engine& engine = engines_[index];
    while (engine.planned < options_.steps &&
           engine.planned - engine.ended < config_.engines[index].steps_in_flight_max) {
      launch(index);
    }
    if (engine.ended == options_.steps && !engine.finished) {
      line({engine.answered_ns}, "finished", index, 0, engine.host_ns);
      engine.finished = true;
    }
  }

  // Launches 1 to 97 coalesced steps (their numbers share a batch); the first of each launch has a chunk.
  void launch(uint32_t index) {
    Engine& engine = engines_[index];
    const uint64_t n = engine.planned;
    uint64_t first = 0, length = 0;
    for (uint64_t s = 0; first + length <= n; ++s) {
      first += length;
      length = 1 + pick({4, index, s}, pick({5, index, s}, 4) == 0 ? 97 : 9);
    }
    const auto batch = static_cast<uint32_t>(1 + pick({6, index, first}, 7));
    entries_.clear();
    for (uint32_t i = 0; i < batch; ++i) {
      const auto context = static_cast<uint32_t>(pick({7, index, first, i}, 5000) + (n - first));
      entries_.push_back({RequestId{i}, EntryKind::kDecode, false, true, 1, context});
    }
    LaunchStep command{.engine = EngineId{static_cast<uint16_t>(index)},
                       .step = StepId{n},
                       .repeat = 1,
                       .tokens = batch,
                       .tokens_padded = (batch + 3) / 4 * 4,
                       .entries = {},
                       .allocations = {},
                       .prefix_hits = {}};
    if (n == first) {
      const auto tokens = static_cast<uint32_t>(1 + pick({8, index, first}, 300));
      entries_.push_back({RequestId{99}, EntryKind::kChunk, true, false, tokens, 7});
      command.tokens += tokens;
      command.tokens_padded += tokens;
    } else if (options_.coalesce) {
      const uint64_t left = std::min<uint64_t>(first + length, options_.steps) - n;
      command.repeat = static_cast<uint32_t>(1 + pick({9, index, n}, left));
    }
    command.entries = entries_;
    engine.planned += command.repeat;
    backend_->submit(command);
  }

  void start_transfer(uint32_t index, uint64_t number) {
    pages_.assign(pick({10, number}, 5) == 0 ? 0 : 1 + pick({11, number}, 40), PageId{});
    const bool in = pick({12, number}, 2) == 0;
    backend_->submit(StartTransfer{.engine = EngineId{static_cast<uint16_t>(index)},
                                   .transfer = TransferId{engines_[index].transfers++},
                                   .kind = in ? TransferKind::kLoad : TransferKind::kOffload,
                                   .source_tier = in ? Tier::kHost : Tier::kGpu,
                                   .target_tier = in ? Tier::kGpu : Tier::kHost,
                                   .source = pages_,
                                   .target = pages_});
  }

  const sim::SimConfig& config_;
  const ScriptOptions options_;
  Backend* const backend_;
  std::vector<Engine> engines_;
  std::vector<PlanEntry> entries_;
  std::vector<PageId> pages_;
  Instant now_{};
  std::string log_;
};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_SIM_SCRIPT_H_
