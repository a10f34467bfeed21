#include "engine/scheduler/core.h"

#include <utility>

#include "engine/base/check.h"
#include "engine/base/prng.h"
#include "engine/kv/managers/kv_kind.h"
#include "engine/methods/registry.h"
#include "engine/scheduler/scheduler.h"

namespace kvtwin {

struct Core::State {
  State(const CoreConfig& config, PolicyAxes policies)
      : context(config, std::move(policies)), kv(make_kv_manager(&context)), scheduler(&context, kv.get()) {
    KVT_CHECK(!validate_limits(context.config).has_value());
    KVT_CHECK(!validate_axes(context.axes, context.config.policies, context.config).has_value());
  }

  KvContext context;
  const std::unique_ptr<KvManager> kv;
  Scheduler scheduler;
};

Core::Core(const CoreConfig& config) : Core(config, make_axes(config.policies)) {}
Core::Core(const CoreConfig& config, PolicyAxes axes)
    : state_(std::make_unique<State>(config, std::move(axes))) {}
Core::~Core() = default;
Core::Core(Core&&) noexcept = default;

void Core::apply(Instant now, const Event& event, std::vector<Command>* commands) {
  state_->context.out = commands;
  state_->scheduler.apply(now, event);
  state_->context.out = nullptr;
}

bool Core::idle() const {
  return state_->scheduler.requests().live() == 0 && state_->scheduler.launches().empty() &&
         state_->kv->idle();
}

uint32_t Core::tokens_cached(const RequestReady& request) const { return state_->kv->tokens_cached(request); }

// Excludes pages and KV entries of steps that the backend could not have started yet.
CoreGauges Core::gauges() const {
  const Scheduler& scheduler = state_->scheduler;
  uint32_t started = 0;
  const Launch* const newest = scheduler.launches().ahead(&started);
  CoreGauges gauges{state_->kv->usage(scheduler.requests().running(), newest, started)};
  gauges.requests_running = static_cast<uint32_t>(scheduler.requests().running().size());
  gauges.requests_waiting = scheduler.requests().live() - gauges.requests_running;
  gauges.step_in_flight = !scheduler.launches().empty();
  return gauges;
}

uint64_t Core::digest() const { return draw({state_->context.digest.sum(), state_->context.steps.done}); }

void Core::check_invariants() const { state_->scheduler.check_invariants(); }

}  // namespace kvtwin
