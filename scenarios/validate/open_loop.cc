#include "scenarios/validate/open_loop.h"

#include <algorithm>

#include "sim/clock/step_shape.h"

namespace kvtwin {
namespace {

double us_of(Ticks ticks) { return static_cast<double>(ticks) / kTicksPerNs / 1e3; }
double us_of(Duration time) { return static_cast<double>(time.ns) / 1e3; }

}  // namespace

OpenLoop::OpenLoop(const Log* log, const StepPricing& pricing, const CopyPrice& copies)
    : log_(*log),
      pricing_(pricing),
      copy_price_(copies),
      launched_(log->engines.size()),
      decodes_launched_(log->engines.size()),
      copies_until_(log->engines.size()) {}

void OpenLoop::saw_command(Instant now, const Command& command) {
  if (const auto* launch = std::get_if<LaunchStep>(&command)) price(now, *launch);
  if (const auto* transfer = std::get_if<StartTransfer>(&command)) price(now, *transfer);
}

// A launch may be cut short; the next one then repeats the numbers of the steps that did not run.
void OpenLoop::price(Instant now, const LaunchStep& launch) {
  const std::vector<Instant>& ends = log_.engines.at(raw(launch.engine)).ends;
  StepShape shape = sim::shape_of(launch, pricing_.lists_entries, &chunks_, &passes_);
  decodes_launched_[raw(launch.engine)] = shape.decodes;
  std::vector<CompressionShape> compressions;
  for (const Compression& one : launch.compressions)
    compressions.push_back(sim::shape_of(one, launch.entries));
  const auto entries =
      std::make_shared<const std::vector<PlanEntry>>(launch.entries.begin(), launch.entries.end());
  uint32_t growing = 0;
  for (const PlanEntry& entry : launch.entries) growing += entry.grows ? 1 : 0;
  for (uint32_t i = 0; i < launch.repeat; ++i) {
    const uint64_t step = raw(launch.step) + i;
    if (step >= ends.size()) return;
    launched_[raw(launch.engine)][step] = {now, shape, chunks_, passes_, compressions, entries, i};
    shape.decode_context_sum += growing;
    shape.decode_context_max += growing > 0 ? 1 : 0;
  }
}

// Prices through the step's graph. Work carried over to later steps counts from the step's recorded end.
Ticks OpenLoop::graph_ticks(size_t engine, uint64_t step, const Launched& launched, Instant begun,
                            Instant ended, PricedStep* out) const {
  sim::GraphPricer& pricer = *pricing_.pricers[engine];
  std::span<const LayerRecall> recalls;
  if (pricing_.outcomes != nullptr) {
    const auto& known = pricing_.outcomes->engines.at(engine).steps;
    if (const auto found = known.find(step); found != known.end()) recalls = found->second.recalls;
  }
  pricer.prepare(launched.shape, *launched.entries, launched.offset, recalls);
  out->counts = family_counts(pricer.reads(), pricing_.work);
  out->attention = us_of(pricer.attention());
  const double size = kPageUnit.of(pricing_.work.page_tokens, pricing_.work.head_dim);
  const auto count = [&](Family family) -> double& { return out->counts[static_cast<size_t>(family)]; };
  for (const LayerRecall& recall : recalls) {
    count(Family::kPageNow) += size * recall.blocking;
    count(Family::kPageNext) += size * recall.background;
    count(Family::kPageConcurrent) += size * recall.background;
    if (launched.chunks.empty() && pricer.reads().launched())
      count(Family::kPageLaunched) += size * recall.background;
  }
  const Ticks begin = begun.ns * kTicksPerNs;
  const Ticks end = pricer.evaluate(begin).end;
  pricer.commit(end - ended.ns * kTicksPerNs);
  return end - begin;
}

PricedStep OpenLoop::priced(size_t engine, uint64_t step, Launched launched, Instant begun, Instant ended,
                            Memory* memory) const {
  StepShape& shape = launched.shape;
  shape.chunks = launched.chunks, shape.passes = launched.passes, shape.compressions = launched.compressions;
  const Ticks begin = begun.ns * kTicksPerNs;
  const GraphShapes::Key graph_key =
      pricing_.pricers.empty()
          ? GraphShapes::key(shape)
          : pricing_.pricers[engine]->graph_key(shape, *launched.entries, launched.offset);
  shape.chunk_load = memory->load.fraction(begin), shape.busy_ms = memory->busy_period.ms(begin);
  shape.calm_ms = memory->busy_period.calm_ms(begin), shape.busy_before_ms = memory->busy_period.length_ms();
  shape.graph = memory->graphs.use(graph_key, memory->graphs.seen(graph_key));
  memory->graphs.add(graph_key);
  PricedStep out;
  const bool graph = !pricing_.pricers.empty();
  out.counts = family_counts(shape, pricing_.work);
  const Ticks through = graph ? graph_ticks(engine, step, launched, begun, ended, &out) : 0;
  const StepShape& reads = graph ? pricing_.pricers[engine]->reads() : shape;
  const StepCost cost = pricing_.cost->step(reads);
  const StepRange range = pricing_.cost->range(reads);
  const Ticks end = ended.ns * kTicksPerNs;
  const bool waits = out.counts[static_cast<size_t>(Family::kPageNow)] > 0;
  const Ticks waited = waits ? std::max<Ticks>(0, end - begin - cost.device) : 0;
  // What a method adds is what the step took beyond the model's own operations: prices are made of it.
  const Ticks added = std::max<Ticks>(0, end - begin - waited - (cost.device - cost.added()));
  memory->load.add(shape, begin, end, {waited, shape.chunks.empty() ? 0 : cost.attention, added});
  memory->busy_period.add(shape, begin, end);
  const Ticks took = graph ? through : cost.device, concurrent = took - cost.device;
  out.measured = us_of(ended - begun);
  out.predicted = us_of(std::max(took + std::max<Ticks>(0, cost.host), cost.least));
  out.dense = us_of(cost.device);
  for (const Ticks part : cost.compression) out.dense -= us_of(part);
  out.low = us_of(range.low + concurrent), out.high = us_of(range.high + concurrent);
  out.chunks = !shape.chunks.empty() || !shape.passes.empty();
  out.graph = shape.graph;
  out.step = step, out.longest = shape.decode_context_max, out.samples = shape.logits_rows,
  out.padded = std::max(shape.tokens, shape.tokens_padded);
  for (int kind = kEvidenceKinds - 1; kind >= 0; --kind) {
    if (cost.by_evidence[static_cast<size_t>(kind)] > 0) out.evidence = static_cast<Evidence>(kind);
  }
  return out;
}

void OpenLoop::price(Instant now, const StartTransfer& transfer) {
  const std::vector<Log::Transfer>& known = log_.engines.at(raw(transfer.engine)).transfers;
  const auto less = [](const Log::Transfer& one, uint64_t number) { return one.number < number; };
  const auto found = std::lower_bound(known.begin(), known.end(), raw(transfer.transfer), less);
  if (found == known.end() || found->number != raw(transfer.transfer) || found->failed) return;
  if (transfer.source_tier == Tier::kDisk || transfer.target_tier == Tier::kDisk)
    return;  // other prices apply
  const bool to_gpu = transfer.target_tier == Tier::kGpu;
  Instant& until = copies_until_[raw(transfer.engine)][to_gpu];
  const Duration took = found->at - std::max(now, until);
  until = std::max(until, found->at);
  if (took.ns <= 0) return;  // requested earlier, and reported out of order
  copies_.push_back({raw(transfer.engine),
                     Instant{found->at.ns - took.ns},
                     now + copy_price_.planning.of(decodes_launched_[raw(transfer.engine)]),
                     {us_of(took), 0, to_gpu, transfer.source.size(), found->at}});
}

// Bytes flow at the link's rate, and at half of the rate of both directions while the other one is busy.
double OpenLoop::predicted(const Copied& copy) const {
  double at = us_of(std::max(copy.from, copy.submitted) - Instant{});
  at += copy.priced.to_gpu ? copy_price_.in_overhead_us : copy_price_.out_overhead_us;
  double left = static_cast<double>(copy.priced.pages) * copy_price_.page_bytes;
  const double rate = copy.priced.to_gpu ? copy_price_.in_bytes_per_us : copy_price_.out_bytes_per_us;
  const double shared = std::min(rate, copy_price_.both_bytes_per_us / 2);
  for (const Copied& other : copies_) {  // in order of time within a direction
    if (other.engine != copy.engine || other.priced.to_gpu == copy.priced.to_gpu) continue;
    const double from = std::max(at, us_of(other.from - Instant{})),
                 to = us_of(other.priced.ended - Instant{});
    if (to <= at) continue;
    const double alone = (from - at) * rate;
    if (alone >= left) break;
    left -= alone, at = from;
    const double together = (to - at) * shared;
    if (together >= left) {
      at += left / shared, left = 0;
      break;
    }
    left -= together, at = to;
  }
  return at + left / rate - us_of(copy.from - Instant{});
}

std::vector<PricedCopy> OpenLoop::copies() const {
  std::vector<PricedCopy> out;
  for (const Copied& copy : copies_) {
    out.push_back(copy.priced);
    out.back().predicted = predicted(copy);
  }
  return out;
}

std::vector<PricedStep> OpenLoop::steps() const {
  std::vector<PricedStep> out;
  for (size_t engine = 0; engine < launched_.size(); ++engine) {
    const std::vector<Instant>& ends = log_.engines[engine].ends;
    Memory memory{RecentLoad(pricing_.cost->load_window(), pricing_.cost->load_quarters()),
                  BusyPeriod(pricing_.cost->forgets_after()), GraphShapes(pricing_.cost->graphs_kept())};
    const std::vector<Log::CoalescedSteps>& runs = log_.engines[engine].coalesced_runs;
    auto run = runs.begin();
    for (const auto& [step, launched] : launched_[engine]) {
      while (run != runs.end() && run->step + run->steps <= step) ++run;  // that the step is one of
      const Instant before = step == 0 ? Instant{} : ends[step - 1];
      PricedStep one = priced(engine, step, launched, std::max(before, launched.at), ends[step], &memory);
      if (run != runs.end()) one.host = us_of(run->outcome.host) / static_cast<double>(run->steps);
      if (one.measured > 0) out.push_back(one);
    }
  }
  return out;
}

}  // namespace kvtwin
