// The contract of every backend (engine/runtime/backend.h) as a check for any Backend: a seeded policy
// submits steps, transfers and timers, interrupts, and reports violations.

#ifndef KVTWIN_TESTS_CONFORMANCE_CONTRACT_H_
#define KVTWIN_TESTS_CONFORMANCE_CONTRACT_H_

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "engine/base/prng.h"
#include "engine/runtime/backend.h"

namespace kvtwin::testing {

struct ContractOptions {
  uint64_t seed = 0;
  uint32_t engines = 1;
  uint32_t steps_in_flight_max = 1;
  bool may_split = false;  // the backend may answer coalesced steps in more parts than required
};

class Contract {
 public:
  Contract(const ContractOptions& options, Backend* backend)
      : options_(options), backend_(backend), prng_(options.seed), engines_(options.engines) {}

  // All violations, one per line. Empty: this seed finds none.
  std::string check() {
    Instant now;
    Event event;
    if (backend_->next(&now, &event)) complain("an idle backend reported an event");
    for (uint32_t i = 0; i < options_.engines; ++i) {
      if (backend_->interrupt(engine_id(i), &event))
        complain("interrupt() of an idle engine reported an event");
    }
    for (uint32_t i = 0; i < 60; ++i) set_timer({static_cast<int64_t>(prng_.range(0, 3000)) * 100});
    uint64_t events = 0;
    while (backend_->next(&now, &event)) {
      if (++events > 100'000) return complain("the backend never comes to rest"), text_;
      if (now < now_) complain("now went backwards");
      check_order(now, event);
      now_ = now;
      take(event);
    }
    for (const Engine& engine : engines_) {
      if (!engine.left.empty()) complain("the backend came to rest with steps unanswered");
    }
    if (!transfers_.empty()) complain("the backend came to rest with transfers unanswered");
    if (timers_due_ != 0) complain("the backend came to rest with timers set");
    if (backend_->next(&now, &event)) complain("the backend came to rest and then reported an event");
    return text_;
  }

 private:
  struct CoalescedSteps {
    uint64_t first = 0;
    uint32_t steps = 0;
    bool one_by_one = false;
  };
  struct Engine {
    std::vector<CoalescedSteps> left;  // unanswered
    uint64_t launched = 0;
    uint64_t transfers = 0;
    Instant last_end{};
  };
  using Rank = std::tuple<int, uint64_t, uint64_t>;  // kind, engine, number

  static EngineId engine_id(uint32_t index) { return EngineId{static_cast<uint16_t>(index)}; }
  void complain(const std::string& what) { text_ += fmt::format("at {} ns: {}\n", now_.ns, what); }

  Rank rank_of(const Event& event) const {
    if (const auto* done = std::get_if<StepDone>(&event)) return {0, raw(done->engine), raw(done->step)};
    if (const auto* done = std::get_if<TransferDone>(&event))
      return {1, raw(done->engine), raw(done->transfer)};
    if (const auto* done = std::get_if<TransferFailed>(&event))
      return {1, raw(done->engine), raw(done->transfer)};
    if (const auto* timer = std::get_if<Timer>(&event)) return {2, 0, raw(timer->timer)};
    return {9, 0, 0};
  }

  // Events of one instant, without a command submitted between them, come in the order of backend.h.
  void check_order(Instant now, const Event& event) {
    const Rank rank = rank_of(event);
    if (std::get<0>(rank) == 9) complain("a backend reported an event of Clients");
    if (now == now_ && !submitted_ && rank <= rank_) complain("events of one instant are in the wrong order");
    rank_ = rank;
    submitted_ = false;
  }

  void take(const Event& event) {
    if (const auto* done = std::get_if<StepDone>(&event)) {
      if (done->ends.empty() || done->ends.back() != now_)
        complain("a StepDone's last end is not its instant");
      steps_ended(*done, true);
      return act();
    }
    if (std::holds_alternative<Timer>(event)) {
      --timers_due_;
      const uint64_t number = raw(std::get<Timer>(event).timer);
      const auto due = due_.find(number);
      if (due == due_.end() || due->second != now_) complain("a timer at an instant that was not set");
      if (due != due_.end()) due_.erase(due);
      outside(static_cast<uint32_t>(prng_.range(0, options_.engines - 1)));
      return act();
    }
    const Rank rank = rank_of(event);
    if (transfers_.erase({std::get<1>(rank), std::get<2>(rank)}) != 1)
      complain("a transfer that was not started");
    outside(static_cast<uint32_t>(std::get<1>(rank)));
    act();
  }

  void outside(uint32_t index) {
    Engine& engine = engines_[index];
    Event event;
    for (int i = 0; backend_->interrupt(engine_id(index), &event); ++i) {
      if (i > 10'000) return complain("interrupt() does not end");
      if (!std::holds_alternative<StepDone>(event))
        return complain("interrupt() reported an event other than StepDone");
      steps_ended(std::get<StepDone>(event), false);
      if (engine.last_end > now_) complain("interrupt() reported a step that has not ended");
      plan(index);
    }
    if (backend_->interrupt(engine_id(index), &event)) complain("a second interrupt() reported an event");
    uint32_t keep = options_.steps_in_flight_max;
    for (CoalescedSteps& coalesced : engine.left) {
      coalesced.steps = std::min(coalesced.steps, keep);
      coalesced.one_by_one = true;
      keep -= coalesced.steps;
    }
    std::erase_if(engine.left, [](const CoalescedSteps& coalesced) { return coalesced.steps == 0; });
    if (!engine.left.empty()) engine.launched = engine.left.back().first + engine.left.back().steps;
  }

  void steps_ended(const StepDone& done, bool by_next) {
    Engine& engine = engines_[raw(done.engine)];
    if (engine.left.empty()) return complain("steps that were not launched");
    CoalescedSteps& coalesced = engine.left.front();
    const auto count = static_cast<uint32_t>(done.ends.size());
    if (raw(done.step) != coalesced.first) complain("steps out of order");
    if (count == 0 || count > coalesced.steps) return complain("an answer of a wrong number of steps");
    if (coalesced.one_by_one && count != 1) complain("after an interrupt steps must be answered one by one");
    const uint32_t whole =
        options_.steps_in_flight_max == 2 && coalesced.steps > 1 ? coalesced.steps - 1 : coalesced.steps;
    if (count > whole) complain("with two in flight the last step must be answered separately");
    if (by_next && !options_.may_split && !coalesced.one_by_one && count != whole) {
      complain(fmt::format("{} steps of {} were answered without an interrupt", count, coalesced.steps));
    }
    for (const Instant end : done.ends) {
      if (end < engine.last_end) complain("a step ended before its predecessor");
      engine.last_end = end;
    }
    coalesced.first += count;
    coalesced.steps -= count;
    if (coalesced.steps == 0) engine.left.erase(engine.left.begin());
  }

  uint64_t in_flight(const Engine& engine) const {
    uint64_t steps = 0;
    for (const CoalescedSteps& coalesced : engine.left) steps += coalesced.steps;
    return steps;
  }

  void plan(uint32_t index) {
    Engine& engine = engines_[index];
    while (in_flight(engine) < options_.steps_in_flight_max && engine.launched < 150 && prng_.chance(9, 10)) {
      const auto repeat = static_cast<uint32_t>(prng_.chance(1, 2) ? 1 : prng_.range(1, 30));
      const PlanEntry entry{RequestId{index},
                            EntryKind::kDecode,
                            engine.launched == 0,
                            true,
                            1,
                            static_cast<uint32_t>(engine.launched)};
      backend_->submit(LaunchStep{.engine = engine_id(index),
                                  .step = StepId{engine.launched},
                                  .repeat = repeat,
                                  .tokens = 1,
                                  .tokens_padded = 1,
                                  .entries = {&entry, 1},
                                  .allocations = {},
                                  .prefix_hits = {}});
      engine.left.push_back({engine.launched, repeat, false});
      engine.launched += repeat;
      submitted_ = true;
    }
  }

  void act() {
    for (uint32_t i = 0; i < options_.engines; ++i) plan(i);
    if (prng_.chance(1, 8) && timers_set_ < 200)
      set_timer({now_.ns + static_cast<int64_t>(prng_.range(0, 50)) * 100 - 1000});
    if (!prng_.chance(1, 6) || engines_[0].transfers > 60) return;
    const auto index = static_cast<uint32_t>(prng_.range(0, options_.engines - 1));
    const std::vector<PageId> pages(prng_.range(0, 5));
    const bool in = prng_.chance(1, 2);
    const uint64_t number = engines_[index].transfers++;
    transfers_.insert({index, number});
    backend_->submit(
        StartTransfer{engine_id(index), TransferId{number}, in ? TransferKind::kLoad : TransferKind::kOffload,
                      in ? Tier::kHost : Tier::kGpu, in ? Tier::kGpu : Tier::kHost, pages, pages});
    submitted_ = true;
  }

  void set_timer(Instant at) {
    at = std::max(at, Instant{});
    due_[timers_set_] = std::max(at, now_);  // a time in the past means now
    backend_->submit(SetTimer{kClient, TimerId{timers_set_++}, at});
    ++timers_due_;
    submitted_ = true;
  }

  const ContractOptions options_;
  Backend* const backend_;
  Prng prng_;
  std::vector<Engine> engines_;
  std::set<std::pair<uint64_t, uint64_t>> transfers_;
  std::map<uint64_t, Instant> due_;
  uint64_t timers_set_ = 0;
  int64_t timers_due_ = 0;
  Instant now_{};
  Rank rank_{};
  bool submitted_ = true;
  std::string text_;
};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_CONFORMANCE_CONTRACT_H_
