#include "sim/step_clock.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin::sim {
namespace {

constexpr int kTicksPerNsLog2 = 10;
static_assert(Ticks{1} << kTicksPerNsLog2 == kTicksPerNs);

StepShape shape_of(const LaunchStep& command, std::vector<ChunkShape>* chunks) {
  StepShape shape;
  chunks->clear();
  for (const PlanEntry& entry : command.entries) {
    shape.logits_rows += entry.samples ? 1 : 0;
    switch (entry.kind) {
      case EntryKind::kDecode:
        ++shape.decodes;
        shape.decode_context_sum += entry.live();
        shape.decode_context_max = std::max(shape.decode_context_max, entry.live());
        break;
      case EntryKind::kChunk:
      case EntryKind::kProbe:  // computes like a chunk and keeps nothing
        chunks->push_back({entry.tokens, entry.live()});
        break;
      case EntryKind::kMaintain:  // moves pages on the device: no policy asks for it yet, and no price exists
        break;
    }
  }
  shape.tokens = command.tokens;
  shape.tokens_padded = command.tokens_padded;
  shape.chunks = *chunks;
  return shape;
}

}  // namespace

StepClock::StepClock(EngineId engine, CostModel* cost, uint32_t steps_in_flight_max, Duration first_step_host)
    : engine_(engine),
      cost_(cost),
      in_flight_max_(steps_in_flight_max),
      first_step_host_(first_step_host.ns * kTicksPerNs),
      priced_(kHistory) {
  KVT_CHECK(cost != nullptr);
  KVT_CHECK(steps_in_flight_max == 1 || steps_in_flight_max == 2);
}

void StepClock::launch(Instant now, const LaunchStep& command) {
  KVT_CHECK(command.engine == engine_);
  KVT_CHECK(command.repeat >= 1);
  // The clock of ticks reaches 104 days: move its zero long before.
  if (now.ns - base_.ns > int64_t{1} << 42) move_base(now);
  Launch& launch = launches_.emplace_back();
  launch.first = command.step;
  launch.steps = command.repeat;
  launch.submitted = (now.ns - base_.ns) * kTicksPerNs;
  launch.shape = shape_of(command, &launch.chunks);
  launch.shape.chunks = launch.chunks;
  KVT_CHECK(command.repeat == 1 || launch.chunks.empty());
  for (const PlanEntry& entry : command.entries) {
    if (entry.grows) {
      ++launch.growing;
      launch.growing_max = std::max(launch.growing_max, entry.live());
    }
  }
}

void StepClock::move_base(Instant now) {
  const int64_t by_ns = now.ns - base_.ns;
  const auto moved = [&](Ticks ticks) {
    const int64_t ns = (ticks >> kTicksPerNsLog2) - by_ns;
    // So long ago that it does not fit, nor matter: everything planned from now on starts later.
    if (ns < -(int64_t{1} << 51)) return -(Ticks{1} << 61);
    return ns * kTicksPerNs + (ticks & (kTicksPerNs - 1));
  };
  for (Priced& step : priced_) {
    step.end = moved(step.end);
  }
  for (Launch& launch : launches_) launch.submitted = moved(launch.submitted);
  base_ = now;
}

// Down, also before base_.
Instant StepClock::instant_of(Ticks ticks) const { return {base_.ns + (ticks >> kTicksPerNsLog2)}; }

StepClock::Outlook StepClock::outlook() const {
  if (launches_.empty()) return {};
  const uint32_t steps = answer_steps();
  if (unanswered_priced() >= steps) return {instant_of(priced_[head_ + steps - 1].end), true};
  return {std::max(instant_of(priced_.back().end), instant_of(launches_.front().submitted)), false};
}

void StepClock::look_ahead(Instant limit) {
  for (uint32_t i = 0; i < kPriceBlock; ++i) {
    const Outlook seen = outlook();
    if (seen.known || seen.at > limit) return;
    price_next();
  }
}

bool StepClock::price_next() {
  Launch* launch = nullptr;
  for (Launch& candidate : launches_) {
    if (candidate.priced == candidate.steps) continue;
    launch = &candidate;
    break;
  }
  if (launch == nullptr) return false;
  const StepCost cost = cost_->step(launch->shape);
  KVT_CHECK(cost.device >= 0);
  const Priced& before = priced_.back();
  const Ticks submitted = std::max(launch->submitted, priced_[priced_.size() - in_flight_max_].end);
  const Ticks host = cost.host + (started_ ? 0 : first_step_host_);
  started_ = true;
  Priced step;
  step.end = std::max(before.end, submitted) + std::max<Ticks>(0, host + cost.device);
  step.host_exposed = before.host_exposed + std::max<Ticks>(0, host);
  for (size_t i = 0; i < step.by_evidence.size(); ++i) {
    step.by_evidence[i] = before.by_evidence[i] + cost.by_evidence[i];
  }
  priced_.push_back(step);
  ++launch->priced;
  launch->shape.decode_context_sum += launch->growing;
  launch->shape.decode_context_max = std::max(launch->shape.decode_context_max, ++launch->growing_max);
  return true;
}

// How many steps the next answer holds.
uint32_t StepClock::answer_steps() const {
  const Launch& launch = launches_.front();
  if (launch.one_by_one) return 1;
  // With two in flight the last step of a stretch is told apart: while it runs, the next is planned.
  return in_flight_max_ == 2 && launch.steps > 1 ? launch.steps - 1 : launch.steps;
}

StepDone StepClock::take() {
  KVT_CHECK(!launches_.empty() && outlook().known);
  return answer(answer_steps());
}

bool StepClock::interrupt(Instant now, StepDone* ended) {
  if (launches_.empty()) return false;
  while (instant_of(priced_.back().end) <= now && price_next()) {
  }
  const size_t piece = std::min<size_t>(answer_steps(), unanswered_priced());
  const auto unanswered = priced_.begin() + static_cast<ptrdiff_t>(head_);
  const auto running = std::partition_point(unanswered, unanswered + static_cast<ptrdiff_t>(piece),
                                            [&](const Priced& step) { return instant_of(step.end) <= now; });
  if (running != unanswered) {
    *ended = answer(static_cast<uint32_t>(running - unanswered));
    return true;
  }
  // What runs now completes, and with two in flight the step behind it; later ones never run.
  uint32_t keep = in_flight_max_;
  priced_.resize(std::min(priced_.size(), head_ + keep));
  for (Launch& launch : launches_) {
    launch.steps = std::min(launch.steps, keep);
    launch.priced = std::min(launch.priced, launch.steps);
    launch.one_by_one = true;
    keep -= launch.steps;
  }
  while (!launches_.empty() && launches_.back().steps == 0) launches_.pop_back();
  return false;
}

// Answers the next `steps` steps of the front launch. REQUIRES: they are priced.
StepDone StepClock::answer(uint32_t steps) {
  forget_answered();
  const Priced& before = priced_[head_ - 1];
  const Priced& last = priced_[head_ + steps - 1];
  const StepId first = launches_.front().first;
  ends_.clear();
  for (uint32_t i = 0; i < steps; ++i) ends_.push_back(instant_of(priced_[head_ + i].end));
  StepDone done{.engine = engine_, .step = first, .ends = ends_, .outcome = {}, .eos = {}};
  done.outcome.host = {last.host_exposed / kTicksPerNs - before.host_exposed / kTicksPerNs};
  totals_.steps += steps;
  totals_.host_exposed = last.host_exposed;
  totals_.by_evidence = last.by_evidence;
  head_ += steps;
  Launch& launch = launches_.front();
  launch.first = StepId{raw(launch.first) + steps};
  launch.steps -= steps;
  launch.priced -= steps;
  if (launch.steps == 0) launches_.pop_front();
  return done;
}

void StepClock::forget_answered() {
  if (head_ <= kHistory || head_ * 2 < priced_.size() || head_ < 64) return;
  priced_.erase(priced_.begin(), priced_.begin() + static_cast<ptrdiff_t>(head_ - kHistory));
  head_ = kHistory;
}

}  // namespace kvtwin::sim
