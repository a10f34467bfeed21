// Core::apply in its steady state: what a decision costs, in call-steps (one call's share of one step).

#include <benchmark/benchmark.h>

#include <algorithm>
#include <deque>
#include <vector>

#include "engine/policy/core.h"

namespace kvtwin {
namespace {

// `calls` calls decode for ever (as far as this benchmark lives) and are answered at once.
class Steady {
 public:
  Steady(uint32_t calls, uint32_t repeat_max, uint32_t in_flight)
      : config_(config(repeat_max, in_flight)), core_(config_) {
    for (uint32_t i = 0; i < calls; ++i) arrive();
    while (warm_ < 4 * calls) warm_ += answer() > 1 ? 4 * calls : 1;
  }

  // Answers the launch in flight. Returns how many single steps that was.
  uint32_t answer() {
    const auto steps = static_cast<uint32_t>(ends_of_launches_.front() - done_);
    const uint32_t piece = config_.steps_in_flight_max == 2 && steps > 1 ? steps - 1 : steps;
    if (piece == steps) ends_of_launches_.pop_front();
    now_ = now_ + Duration{10};
    ends_.assign(piece, now_);
    commands_.clear();
    core_.apply(now_, StepDone{config_.engine, StepId{done_}, ends_, {}, {}}, &commands_);
    done_ += piece;
    take();
    return piece;
  }
  uint64_t digest() const { return core_.digest(); }

 private:
  static CoreConfig config(uint32_t repeat_max, uint32_t in_flight) {
    CoreConfig config;
    config.pages_gpu = 200'000;
    config.calls_max = 1'024;
    config.step_tokens_max = 8'192;
    config.repeat_max = repeat_max;
    config.steps_in_flight_max = in_flight;
    return config;
  }

  void arrive() {
    CallReady ready;
    ready.call = CallId{call_next_++};
    ready.prompt_tokens = 500 + 13 * call_next_ % 300;
    ready.output_tokens = 300 + 97 * call_next_ % 700;
    // What backend.h says of interrupt(): the stretch in flight ends after the step that runs.
    if (!ends_of_launches_.empty()) {
      const uint64_t end = std::max(done_ + config_.steps_in_flight_max, last_first_ + 1);
      ends_of_launches_.back() = std::min(ends_of_launches_.back(), end);
    }
    commands_.clear();
    core_.apply(now_, ready, &commands_);
    take();
  }

  void take() {
    uint32_t finished = 0;
    for (const Command& command : commands_) {
      if (const auto* launch = std::get_if<LaunchStep>(&command)) {
        last_first_ = raw(launch->step);
        ends_of_launches_.push_back(last_first_ + launch->repeat);
      }
      finished += std::holds_alternative<FinishCall>(command) ? 1 : 0;
    }
    while (finished-- > 0) arrive();  // another takes its place
  }

  const CoreConfig config_;
  Core core_;
  std::vector<Command> commands_;
  std::vector<Instant> ends_;
  std::deque<uint64_t> ends_of_launches_;
  uint64_t last_first_ = 0, done_ = 0;
  uint32_t call_next_ = 0, warm_ = 0;
  Instant now_{};
};

void core_apply(benchmark::State& state, uint32_t repeat_max, uint32_t in_flight) {
  const auto calls = static_cast<uint32_t>(state.range(0));
  Steady steady(calls, repeat_max, in_flight);
  uint64_t steps = 0;
  for (auto _ : state) steps += steady.answer();
  state.counters["call_steps"] =
      benchmark::Counter(static_cast<double>(steps * calls), benchmark::Counter::kIsRate);
  state.counters["steps_per_apply"] = static_cast<double>(steps) / static_cast<double>(state.iterations());
}
BENCHMARK_CAPTURE(core_apply, every_step, 1, 1)->Arg(50)->Arg(256);
BENCHMARK_CAPTURE(core_apply, every_step_two_in_flight, 1, 2)->Arg(50);
BENCHMARK_CAPTURE(core_apply, folded, 1u << 20, 1)->Arg(50)->Arg(256);
BENCHMARK_CAPTURE(core_apply, folded_two_in_flight, 1u << 20, 2)->Arg(50);

}  // namespace
}  // namespace kvtwin
