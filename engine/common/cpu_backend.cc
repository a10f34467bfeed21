#include "engine/common/cpu_backend.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <tuple>

#include "engine/base/check.h"

namespace kvtwin::cpu {

Instant wall_clock() {
  return {std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count()};
}

Duration wall_time(const std::function<void()>& work) {
  const Instant before = wall_clock();
  work();
  return wall_clock() - before;
}

// A LaunchStep with its own buffers; the first `answered` of its steps are answered.
struct CpuBackend::Launch {
  Launch(const LaunchStep& from, Instant event, Instant at)
      : event_at(event),
        submitted(at),
        entries(from.entries.begin(), from.entries.end()),
        allocations(from.allocations.begin(), from.allocations.end()),
        compressions(from.compressions.begin(), from.compressions.end()),
        formats(from.formats.begin(), from.formats.end()),
        requantisations(from.requantisations.begin(), from.requantisations.end()),
        prefix_checkpoints(from.prefix_checkpoints.begin(), from.prefix_checkpoints.end()),
        passes(from.passes.begin(), from.passes.end()) {
    for (const PrefixHit& prefix_hit : from.prefix_hits) {
      reused.emplace_back(prefix_hit.pages.begin(), prefix_hit.pages.end());
      reused_entries.emplace_back(prefix_hit.kv_entries.begin(), prefix_hit.kv_entries.end());
      reused_shared.emplace_back(prefix_hit.shared.begin(), prefix_hit.shared.end());
      prefix_hits.push_back({prefix_hit.request, reused.back(), prefix_hit.prefix_checkpoint,
                             reused_entries.back(), reused_shared.back()});
    }
    for (Compression& compression : compressions) {
      forced.emplace_back(compression.forced.begin(), compression.forced.end());
      keep.emplace_back(compression.keep.begin(), compression.keep.end());
      compression.forced = forced.back();
      compression.keep = keep.back();
    }
    command = from;
    command.entries = entries;
    command.allocations = allocations;
    command.prefix_hits = prefix_hits;
    command.compressions = compressions;
    command.formats = formats;
    command.requantisations = requantisations;
    command.prefix_checkpoints = prefix_checkpoints;
    command.passes = passes;
    steps = from.repeat;
  }

  LaunchStep command;
  Instant event_at{};  // of the event that led to it
  Instant submitted{};
  uint32_t steps = 0;  // less than command.repeat after a cut
  uint32_t answered = 0;
  std::vector<PlanEntry> entries;
  std::vector<PageAllocation> allocations;
  std::vector<PrefixHit> prefix_hits;
  std::vector<Compression> compressions;
  std::vector<FormatRun> formats;
  std::vector<Requantisation> requantisations;
  std::vector<PrefixCheckpoint> prefix_checkpoints;
  std::vector<ProbePass> passes;
  std::deque<std::vector<PageId>> reused;
  std::deque<std::vector<uint32_t>> reused_entries, reused_shared;
  std::deque<std::vector<Compression::Forced>> forced;
  std::deque<std::vector<uint32_t>> keep;
};

struct CpuBackend::Engine {
  EngineId id{};
  uint32_t in_flight_max = 1;
  std::deque<std::unique_ptr<Launch>> launches;
  // The running step has been performed and is not answered yet.
  bool performed = false;
  Instant end{};         // of the performed step, or else of the last answered one
  Duration host{};       // time that the performed step waited for the host
  Instant host_free{};   // its host has finished with the events before the last one
  bool handles = false;  // it was sent an event after the last next()
  DataOutcomes values;
  // End of the last copy to the GPU ([1]) and of all others ([0]). Without copy_time, all copies use [0].
  Instant copies_until[2]{};
  DataOutcomes answered_outcomes;  // storage of the last answer
  Instant answered_end{};
};

CpuBackend::CpuBackend(const CpuBackendOptions& options, OutcomeSource* engines, Stopwatch stopwatch)
    : options_(options), source_(engines), stopwatch_(std::move(stopwatch)) {
  for (const uint32_t in_flight : options.steps_in_flight_max) {
    KVT_CHECK(in_flight == 1 || in_flight == 2);
    auto engine = std::make_unique<Engine>();
    engine->id = EngineId{static_cast<uint16_t>(engines_.size())};
    engine->in_flight_max = in_flight;
    engines_.push_back(std::move(engine));
  }
}
CpuBackend::~CpuBackend() = default;

// An event is about to be delivered to `engine`. What happens before a run's first event prepares the run.
void CpuBackend::begin_handling(Engine* engine) {
  if (!delivered_) delivered_ = host_now();
  engine->handles = true;
}

// The driver asks for the next event: the host has finished with those before.
void CpuBackend::end_handling() {
  const Duration took = since_event();
  for (const auto& engine : engines_) {
    if (engine->handles) engine->host_free = std::max(now_, engine->host_free) + took;
    engine->handles = false;
  }
}

Instant CpuBackend::submitted_at(EngineId engine) const {
  return std::max(now_, engines_.at(raw(engine))->host_free) + since_event();
}

// The duration of an engine's work, which is no time of the host.
Duration CpuBackend::measure(const std::function<void()>& work) {
  const Instant before = host_now();
  const Duration took = stopwatch_(work);
  if (delivered_) *delivered_ = *delivered_ + (host_now() - before);
  return took;
}

void CpuBackend::submit(const Command& command) {
  if (const auto* launch = std::get_if<LaunchStep>(&command)) {
    Engine& engine = *engines_.at(raw(launch->engine));
    engine.launches.push_back(std::make_unique<Launch>(*launch, now_, submitted_at(launch->engine)));
  } else if (const auto* transfer = std::get_if<StartTransfer>(&command)) {
    start(*transfer, command);
  } else if (const auto* timer = std::get_if<SetTimer>(&command)) {
    alarms_.push_back({std::max(timer->at, now_), alarms_set_++, {timer->engine, timer->timer}});
  } else {
    source_->notify(command);
  }
}

// Copies of one engine and direction run one after another, concurrently with its steps.
void CpuBackend::start(const StartTransfer& command, const Command& whole) {
  const TransferDone done{command.engine, command.transfer};
  const Instant submitted = submitted_at(command.engine);
  if (options_.copy_time) {
    source_->notify(whole);
    return copies_.push_back({submitted, done, false, command.target_tier == Tier::kGpu});
  }
  Instant& until = engines_.at(raw(command.engine))->copies_until[false];
  until = std::max(until, submitted) + measure([&] { source_->notify(whole); });
  copies_.push_back({until, done});
}

void CpuBackend::time_copies() {
  for (Copy& copy : copies_) {
    if (copy.timed) continue;
    Instant& until = engines_.at(raw(copy.done.engine))->copies_until[copy.to_gpu];
    const Duration took = options_.copy_time(copy.done.engine, copy.done.transfer);
    copy.at = until = std::max(until, copy.at) + took;
    copy.timed = true;
  }
}

// Performs the engine's next step, unless one is performed already.
void CpuBackend::perform_next(Engine* engine) {
  if (engine->performed || engine->launches.empty()) return;
  const Launch& launch = *engine->launches.front();
  // Without its host, the step would start then.
  const Instant ready = std::max(engine->end, launch.event_at);
  const bool follows = launch.answered > 0 && engine->in_flight_max == 1;
  const Instant start = std::max({ready, launch.submitted, follows ? engine->host_free : Instant{}});
  if (options_.before_step) options_.before_step(launch.command, launch.answered);
  engine->host = start - ready;
  engine->end = start + measure([&] { source_->step(launch.command, launch.answered, &engine->values); });
  engine->performed = true;
}

bool CpuBackend::next(Instant* now, Event* event) {
  end_handling();
  Engine* first = nullptr;
  for (const auto& engine : engines_) {
    perform_next(engine.get());
    if (engine->performed && (first == nullptr || engine->end < first->end)) first = engine.get();
  }
  time_copies();
  const auto copy = std::min_element(copies_.begin(), copies_.end(), [](const Copy& a, const Copy& b) {
    return std::tie(a.at, a.done.engine, a.done.transfer) < std::tie(b.at, b.done.engine, b.done.transfer);
  });
  const auto alarm = std::min_element(alarms_.begin(), alarms_.end(), [](const Alarm& a, const Alarm& b) {
    return std::tie(a.at, a.order) < std::tie(b.at, b.order);
  });
  const Instant step_at = first != nullptr ? first->end : kNever;
  const Instant copy_at = copy != copies_.end() ? copy->at : kNever;
  const Instant alarm_at = alarm != alarms_.end() ? alarm->at : kNever;
  const Instant at = std::min({step_at, copy_at, alarm_at});
  if (at == kNever) return false;
  KVT_CHECK(at >= now_);
  if (first == nullptr) pass_time(at);
  *now = now_ = at;
  if (step_at == at) {
    answer(first, event);
  } else if (copy_at == at) {
    *event = copy->done;
    copies_.erase(copy);
  } else {
    *event = alarm->timer;
    alarms_.erase(alarm);
  }
  delivered_ = host_now();
  return true;
}

void CpuBackend::pass_time(Instant to) {
  if (options_.sleep) std::this_thread::sleep_for(std::chrono::nanoseconds((to - now_).ns));
}

bool CpuBackend::interrupt(EngineId id, Event* event) {
  Engine& engine = *engines_.at(raw(id));
  begin_handling(&engine);
  // A step without duration may have ended at this instant and not been performed yet.
  perform_next(&engine);
  if (engine.performed && engine.end <= now_) {
    answer(&engine, event);
    return true;
  }
  cut(&engine, engine.in_flight_max);
  return false;
}

void CpuBackend::answer(Engine* engine, Event* event) {
  Launch& launch = *engine->launches.front();
  std::swap(engine->values, engine->answered_outcomes);
  engine->answered_end = engine->end;
  engine->performed = false;
  engine->handles = true;
  const DataOutcomes& values = engine->answered_outcomes;
  *event = StepDone{.engine = engine->id,
                    .step = StepId{raw(launch.command.step) + launch.answered},
                    .ends = {&engine->answered_end, 1},
                    .outcome = {.host = engine->host},
                    .eos = values.eos,
                    .retained = values.retained};
  ++launch.answered;
  if (launch.answered == launch.steps) engine->launches.pop_front();
  // A coalesced run ends when a request ends; with two in flight one more step of it is already launched.
  if (!values.eos.empty()) cut(engine, engine->in_flight_max - 1);
}

// Of the unanswered steps, only the next `steps` run; but every launch has at least one.
void CpuBackend::cut(Engine* engine, uint32_t steps) {
  for (const auto& launch : engine->launches) {
    const uint32_t least = launch->answered > 0 ? launch->answered : 1;
    const uint32_t keep = std::max(least, std::min(launch->steps, launch->answered + steps));
    steps -= std::min(steps, keep - launch->answered);
    launch->steps = keep;
  }
  while (!engine->launches.empty() && engine->launches.back()->answered == engine->launches.back()->steps)
    engine->launches.pop_back();
}

}  // namespace kvtwin::cpu
