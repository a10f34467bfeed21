#include "sim/clock/step_clock.h"

#include <algorithm>

#include "engine/base/check.h"
#include "sim/clock/step_shape.h"

namespace kvtwin::sim {
namespace {

constexpr int kTicksPerNsLog2 = 10;
static_assert(Ticks{1} << kTicksPerNsLog2 == kTicksPerNs);

// By how much negative host time shortens the step, at most all of it. The result is at most 0.
Ticks early_by(Ticks host, Ticks took) { return std::max(std::min<Ticks>(0, host), -took); }

}  // namespace

StepClock::StepClock(EngineId engine, CostModel* cost, uint32_t steps_in_flight_max, Duration first_step_host)
    : engine_(engine),
      cost_(cost),
      in_flight_max_(steps_in_flight_max),
      first_step_host_(first_step_host.ns * kTicksPerNs),
      load_(cost->load_window(), cost->load_quarters()),
      busy_period_(cost->forgets_after()),
      graphs_(cost->graphs_kept()),
      priced_(kHistory) {
  KVT_CHECK(steps_in_flight_max == 1 || steps_in_flight_max == 2);
}

void StepClock::extend(OutcomeSource* source, GraphPricer* pricer, uint32_t gpus, StepRunner* runner) {
  KVT_CHECK(launches_.empty());
  source_ = source;
  pricer_ = pricer;
  runner_ = runner;
  gpus_ = gpus;
}

void StepClock::launch(Instant now, const LaunchStep& command) {
  KVT_CHECK(command.engine == engine_);
  KVT_CHECK(command.repeat >= 1);
  // Ticks reach 104 days: move their zero well before.
  if (now.ns - base_.ns > int64_t{1} << 42) move_base(now);
  Launch& launch = launches_.emplace_back();
  launch.first = command.step;
  launch.steps = command.repeat;
  launch.submitted = (now.ns - base_.ns) * kTicksPerNs;
  if (lazy()) launch.command = OwnedLaunch(command);
  if (partition_ != nullptr && pricer_ == nullptr) {
    for (const PlanEntry& entry : command.entries) {
      if (entry.kind == EntryKind::kDecode)
        launch.decodes.push_back({entry.context, entry.live(), entry.grows});
    }
  }
  launch.shape = shape_of(command, lists_entries_, &launch.chunks, &launch.passes);
  decodes_launched_ = launch.shape.decodes;
  for (const Compression& one : command.compressions)
    launch.compressions.push_back(shape_of(one, command.entries));
  launch.shape.compressions = launch.compressions;
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
    // So long ago that it does not fit, and irrelevant: everything planned from now on starts later.
    if (ns < -(int64_t{1} << 51)) return -(Ticks{1} << 61);
    return ns * kTicksPerNs + (ticks & (kTicksPerNs - 1));
  };
  for (Priced& step : priced_) {
    step.end = moved(step.end);
    step.offloaded = moved(step.offloaded);
  }
  offloaded_ = moved(offloaded_);
  for (Launch& launch : launches_) launch.submitted = moved(launch.submitted);
  if (delegated_step_) delegated_step_->start = moved(delegated_step_->start);
  if (pricer_ != nullptr) pricer_->move_base(by_ns * kTicksPerNs);
  load_.move_base(by_ns * kTicksPerNs);
  busy_period_.move_base(by_ns * kTicksPerNs);
  base_ = now;
}

// Rounds down, also before base_.
Instant StepClock::instant_of(Ticks ticks) const { return {base_.ns + (ticks >> kTicksPerNsLog2)}; }

StepClock::NextEvent StepClock::next_event() const {
  if (launches_.empty()) return {};
  const uint32_t steps = answer_steps();
  if (unanswered_priced() >= steps) return {instant_of(priced_[head_ + steps - 1].end), true};
  if (delegated_step_) return {kNever, false};
  return {std::max(instant_of(priced_.back().end), instant_of(launches_.front().submitted)), false};
}

void StepClock::look_ahead(Instant limit) {
  for (uint32_t i = 0; i < kPriceBlock; ++i) {
    const NextEvent seen = next_event();
    if (seen.known || seen.at > limit) return;
    price_next();
  }
}

StepClock::Launch* StepClock::next_launch() {
  for (Launch& launch : launches_) {
    if (launch.priced < launch.steps) return &launch;
  }
  return nullptr;
}

// Asks for the outcomes of the next step of `launch`.
void StepClock::ask(const Launch& launch) {
  outcomes_.clear();
  if (source_ != nullptr) source_->step(launch.command.step(), launch.answered + launch.priced, &outcomes_);
  for (const LayerRecall& recall : outcomes_.recalls) {
    totals_.pages_now += recall.blocking;
    totals_.pages_next += recall.background;
    totals_.heads_corrected += recall.corrected;
    totals_.heads_chose += recall.heads;
    totals_.pages_chosen += recall.chosen;
  }
  if (outcomes_.retained.empty() && outcomes_.eos.empty()) return;
  PendingResult& pending = pending_.emplace_back();
  pending.step = raw(launch.first) + launch.priced;
  pending.retained.swap(outcomes_.retained);
  pending.retained_counts.swap(outcomes_.retained_counts);
  pending.retained_live.swap(outcomes_.retained_live);
  pending.eos.swap(outcomes_.eos);
}

bool StepClock::price_next() {
  Launch* const launch = next_launch();
  if (launch == nullptr || delegated_step_) return false;
  if (!pending_.empty() && !pending_.back().eos.empty()) return false;  // later steps may never run
  const Ticks submitted = std::max(launch->submitted, priced_[priced_.size() - in_flight_max_].end);
  const Ticks start = std::max(priced_.back().end, submitted);
  const Ticks first = started_ ? 0 : first_step_host_;
  started_ = true;
  if (lazy()) ask(*launch);
  recall(launch, start);
  if (pricer_ != nullptr) {
    price_graph(launch, start, cost_->step(launch->shape).host + first);
  } else {
    const StepShape shape = launch->decodes.empty() ? launch->shape : slowed(launch);
    const StepCost cost = cost_->step(shape);
    KVT_CHECK(cost.device >= 0);
    const Ticks host = cost.host + first;
    const Ticks took = std::max(cost.least, host + cost.device);
    add_priced(start + took, host, {}, cost.by_evidence);
    remember(shape, start, priced_.back().end, {0, cost.attention, cost.added()});
    if (!launch->decodes.empty()) {
      priced_.back().entries_read += launch->shape.decode_context_sum;
      priced_.back().entries_waited += shape.decode_context_sum;
    }
    add_compression(cost.compression, took, *launch);
    ++launch->priced;
  }
  launch->shape.copied_pages = 0;  // the first single step copies them
  launch->shape.decode_context_sum += launch->growing;
  launch->shape.decode_context_max = std::max(launch->shape.decode_context_max, ++launch->growing_max);
  return true;
}

// Inputs of the next step's price other than its plan. Steps that are priced but not answered may still be
// cancelled: they count here, and are recorded when they are answered.
void StepClock::recall(Launch* launch, Ticks start) {
  StepShape& shape = launch->shape;
  shape.chunk_load = load_.fraction(start);
  shape.busy_ms = busy_period_.ms(start);
  shape.calm_ms = busy_period_.calm_ms(start), shape.busy_before_ms = busy_period_.length_ms();
  if (cost_->graphs_kept() == 0) return;
  graph_key_ = pricer_ == nullptr ? GraphShapes::key(shape)
                                  : pricer_->graph_key(shape, launch->command.step().entries,
                                                       launch->answered + launch->priced);
  uint32_t seen = graphs_.seen(graph_key_);
  for (size_t i = priced_.size(); i > head_ && seen < GraphShapes::kMost; --i)
    seen += priced_[i - 1].graph_key == graph_key_ ? 1 : 0;
  shape.graph = graphs_.use(graph_key_, seen);
}

// As RecentLoad::add().
void StepClock::remember(const StepShape& shape, Ticks begin, Ticks end, const RecentLoad::Parts& parts) {
  priced_.back().graph_key = graph_key_;
  load_.add(shape, begin, end, parts);
  busy_period_.add(shape, begin, end);
}

// The next step of `launch`, with decodes that read as much as equally divided attention reads in the time
// that theirs takes.
StepShape StepClock::slowed(Launch* launch) {
  PartitionPrice::Answer& answer = launch->slowdown;
  if (answer.steps == 0) {
    std::vector<DecodeLength> now = launch->decodes;
    const uint32_t offset = launch->answered + launch->priced;
    for (DecodeLength& request : now) {
      request.context += offset;
      request.live += request.grows ? offset : 0;
    }
    answer = partition_->ask(now);
    KVT_CHECK(answer.steps > 0);
  }
  --answer.steps;
  StepShape shape = launch->shape;
  const auto longer = [&](uint64_t kv_entries) { return (kv_entries * answer.slowdown_q16) >> 16; };
  shape.decode_context_sum = longer(shape.decode_context_sum + shape.decodes) - shape.decodes;
  shape.decode_context_max =
      static_cast<uint32_t>(std::min<uint64_t>(longer(shape.decode_context_max), UINT32_MAX));
  return shape;
}

void StepClock::price_graph(Launch* launch, Ticks start, Ticks host) {
  pricer_->prepare(launch->shape, launch->command.step().entries, launch->answered + launch->priced,
                   outcomes_.recalls);
  const Ticks begins = start + std::max<Ticks>(0, host);
  const StepTiming timing = pricer_->evaluate(begins);
  const Ticks took = timing.end - begins;
  const double start_ns = static_cast<double>(base_.ns) + static_cast<double>(begins) / kTicksPerNs;
  if (watcher_ != nullptr) {
    watcher_->priced({engine_, StepId{raw(launch->first) + launch->priced}, base_, begins, timing,
                      launch->command.step().entries, launch->answered + launch->priced,
                      launch->compressions.size(), pricer_});
  }
  delegated_step_ = DelegatedStep{begins, host, timing};
  if (runner_ != nullptr && runner_->take({engine_, start_ns, timing, took, pricer_, base_})) return;
  pricer_->commit(-early_by(host, took));
  complete(took, timing.exposed);
}

void StepClock::finish(Ticks took, Ticks exposed) {
  ++totals_.expanded;
  complete(took, exposed);
}

void StepClock::complete(Ticks took, Ticks exposed) {
  KVT_CHECK(delegated_step_.has_value());
  const DelegatedStep step = *delegated_step_;
  delegated_step_.reset();
  StepTiming timing = step.alone;
  const Ticks moving = timing.exposed + timing.hidden;  // duration of its transfers on free links
  timing.exposed = exposed;
  timing.hidden = std::max<Ticks>(0, moving - exposed);
  // Time that the model's own operations do not explain is retrieval's.
  std::array<Ticks, kEvidenceKinds> by_evidence = pricer_->by_evidence();
  Ticks known = 0;
  for (const Ticks ticks : by_evidence) known += ticks;
  by_evidence[static_cast<size_t>(Evidence::kRoofline)] += std::max<Ticks>(0, took - known);
  add_priced(step.start + took + early_by(step.host, took), step.host, timing, by_evidence);
  priced_.back().offloaded = pricer_->offloaded();
  Launch* const launch = next_launch();
  remember(launch->shape, step.start, priced_.back().end,
           {exposed, pricer_->attention(), sum_of(pricer_->compression())});
  add_compression(pricer_->compression(), std::max<Ticks>(0, step.host + took), *launch);
  ++launch->priced;
}

void StepClock::add_priced(Ticks end, Ticks host, const StepTiming& timing,
                           const std::array<Ticks, kEvidenceKinds>& by_evidence) {
  const Priced& before = priced_.back();
  Priced step = before;
  step.end = end;
  step.host_exposed += std::max<Ticks>(0, host);
  for (size_t i = 0; i < by_evidence.size(); ++i) step.by_evidence[i] += by_evidence[i];
  step.exposed += timing.exposed;
  step.hidden += timing.hidden;
  step.bytes_in += timing.bytes_in * gpus_;
  step.bytes_out += timing.bytes_out * gpus_;
  priced_.push_back(step);
}

// For the step that was just added.
void StepClock::add_compression(const CompressionTicks& ticks, Ticks took, const Launch& launch) {
  Priced& step = priced_.back();
  Ticks sum = 0;
  for (size_t i = 0; i < ticks.size(); ++i) {
    step.compression[i] += ticks[i];
    sum += ticks[i];
  }
  if (launch.chunks.empty() && launch.passes.empty()) return;
  step.prompts += took;
  step.prompts_compression += sum;
}

// The first unanswered step of `launch` in which a request ended by EOS; UINT64_MAX: none is known.
uint64_t StepClock::step_with_eos(const Launch& launch) const {
  for (const PendingResult& pending : pending_) {
    if (!pending.eos.empty() && pending.step < raw(launch.first) + launch.steps) return pending.step;
  }
  return UINT64_MAX;
}

// The number of steps in the next answer.
uint32_t StepClock::answer_steps() const {
  const Launch& launch = launches_.front();
  if (launch.one_by_one) return 1;
  // With two steps in flight the last of a coalesced run is answered separately: the next step is planned
  // while it runs.
  const uint32_t steps = in_flight_max_ == 2 && launch.steps > 1 ? launch.steps - 1 : launch.steps;
  if (pending_.empty()) return steps;
  const uint64_t last = step_with_eos(launch);  // answered at once
  return last == UINT64_MAX ? steps
                            : static_cast<uint32_t>(std::min<uint64_t>(steps, last + 1 - raw(launch.first)));
}

StepDone StepClock::take() {
  KVT_CHECK(!launches_.empty() && next_event().known);
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
  // The running step completes, and with two in flight the one after it; later steps never run.
  cut(in_flight_max_);
  for (Launch& launch : launches_) launch.one_by_one = true;
  return false;
}

// Only `keep` more steps of those launched will run.
void StepClock::cut(uint32_t keep) {
  priced_.resize(std::min(priced_.size(), head_ + keep));
  for (Launch& launch : launches_) {
    launch.steps = std::min(launch.steps, keep);
    launch.priced = std::min(launch.priced, launch.steps);
    keep -= launch.steps;
  }
  while (!launches_.empty() && launches_.back().steps == 0) launches_.pop_back();
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
  // Differences of rounded sums, so that the parts of a coalesced run add up to the whole.
  const auto spent = [](Ticks to, Ticks from) { return Duration{to / kTicksPerNs - from / kTicksPerNs}; };
  done.outcome = {spent(last.host_exposed, before.host_exposed), spent(last.exposed, before.exposed),
                  spent(last.hidden, before.hidden), last.bytes_in - before.bytes_in,
                  last.bytes_out - before.bytes_out};
  totals_.steps += steps;
  totals_.host_exposed = last.host_exposed;
  totals_.by_evidence = last.by_evidence;
  totals_.exposed = last.exposed, totals_.hidden = last.hidden;
  totals_.bytes_in = last.bytes_in, totals_.bytes_out = last.bytes_out;
  totals_.entries_read = last.entries_read, totals_.entries_waited = last.entries_waited;
  totals_.compression = last.compression;
  totals_.prompts = last.prompts, totals_.prompts_compression = last.prompts_compression;
  offloaded_ = last.offloaded;
  for (size_t i = head_; i < head_ + steps; ++i) graphs_.add(priced_[i].graph_key);
  head_ += steps;
  Launch& launch = launches_.front();
  totals_.compressions += launch.compressions.size();  // a launch of one step
  launch.first = StepId{raw(launch.first) + steps};
  launch.steps -= steps;
  launch.priced -= steps;
  launch.answered += steps;
  if (launch.steps == 0) launches_.pop_front();
  tell(&done, raw(first) + steps - 1);
  return done;
}

// Adds the outcomes of the last answered step to *done.
void StepClock::tell(StepDone* done, uint64_t last) {
  if (pending_.empty() || pending_.front().step > last) return;
  KVT_CHECK(pending_.front().step == last);  // an answer stops there
  telling_ = std::move(pending_.front());
  pending_.pop_front();
  done->eos = telling_.eos;
  done->retained = telling_.retained;
  if (!telling_.eos.empty()) cut(in_flight_max_ - 1);
}

void StepClock::forget_answered() {
  if (head_ <= kHistory || head_ * 2 < priced_.size() || head_ < 64) return;
  priced_.erase(priced_.begin(), priced_.begin() + static_cast<ptrdiff_t>(head_ - kHistory));
  head_ = kHistory;
}

}  // namespace kvtwin::sim
