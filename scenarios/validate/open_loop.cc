#include "scenarios/validate/open_loop.h"

#include <algorithm>

#include "sim/step_shape.h"

namespace kvtwin {
namespace {

double us_of(Ticks ticks) { return static_cast<double>(ticks) / kTicksPerNs / 1e3; }
double us_of(Duration time) { return static_cast<double>(time.ns) / 1e3; }

}  // namespace

OpenLoop::OpenLoop(const Log* log, CostModel* cost, const CopyPrice& copies)
    : log_(*log),
      cost_(*cost),
      copy_price_(copies),
      launched_(log->engines.size()),
      copies_until_(log->engines.size()) {}

void OpenLoop::saw_command(Instant now, const Command& command) {
  if (const auto* launch = std::get_if<LaunchStep>(&command)) price(now, *launch);
  if (const auto* transfer = std::get_if<StartTransfer>(&command)) price(now, *transfer);
}

// A launch may be cut short: then the next one has the numbers of what never ran.
void OpenLoop::price(Instant now, const LaunchStep& launch) {
  const std::vector<Instant>& ends = log_.engines.at(raw(launch.engine)).ends;
  StepShape shape = sim::shape_of(launch, &chunks_);
  std::vector<CompressionShape> compressions;
  for (const Compression& one : launch.compressions)
    compressions.push_back(sim::shape_of(one, launch.entries));
  shape.compressions = compressions;
  uint32_t growing = 0;
  for (const PlanEntry& entry : launch.entries) growing += entry.grows ? 1 : 0;
  for (uint32_t i = 0; i < launch.repeat; ++i) {
    const uint64_t step = raw(launch.step) + i;
    if (step >= ends.size()) return;
    const StepCost cost = cost_.step(shape);
    const StepRange range = cost_.range(shape);
    PricedStep priced;
    priced.predicted = us_of(cost.device + std::max<Ticks>(0, cost.host));
    priced.low = us_of(range.low), priced.high = us_of(range.high);
    priced.chunks = !shape.chunks.empty();
    priced.step = step, priced.decodes = shape.decodes, priced.samples = shape.logits_rows;
    priced.padded = std::max(shape.tokens, shape.tokens_padded),
    priced.decode_cells = shape.decode_context_sum;
    for (const ChunkShape& chunk : shape.chunks)
      priced.chunk_tokens += chunk.tokens, priced.chunk_context += chunk.context;
    for (int kind = kEvidenceKinds - 1; kind >= 0; --kind) {
      if (cost.by_evidence[static_cast<size_t>(kind)] > 0) priced.evidence = static_cast<Evidence>(kind);
    }
    launched_[raw(launch.engine)][step] = {now, priced};
    shape.decode_context_sum += growing;
    shape.decode_context_max += growing > 0 ? 1 : 0;
  }
}

void OpenLoop::price(Instant now, const StartTransfer& transfer) {
  const std::vector<Log::Transfer>& known = log_.engines.at(raw(transfer.engine)).transfers;
  const auto less = [](const Log::Transfer& one, uint64_t number) { return one.number < number; };
  const auto found = std::lower_bound(known.begin(), known.end(), raw(transfer.transfer), less);
  if (found == known.end() || found->number != raw(transfer.transfer) || found->failed) return;
  if (transfer.source_tier == Tier::kDisk || transfer.target_tier == Tier::kDisk) return;  // another price
  const bool to_gpu = transfer.target_tier == Tier::kGpu;
  Instant& until = copies_until_[raw(transfer.engine)][to_gpu];
  const Duration took = found->at - std::max(now, until);
  until = std::max(until, found->at);
  if (took.ns <= 0) return;  // asked for before, and told out of order
  const auto pages = static_cast<double>(transfer.source.size());
  const double overhead = to_gpu ? copy_price_.in_overhead_us : copy_price_.out_overhead_us;
  copies_.push_back({us_of(took), overhead + pages * copy_price_.page_bytes / copy_price_.bytes_per_us,
                     to_gpu, transfer.source.size(), found->at});
}

std::vector<PricedStep> OpenLoop::steps() const {
  std::vector<PricedStep> out;
  for (size_t engine = 0; engine < launched_.size(); ++engine) {
    const std::vector<Instant>& ends = log_.engines[engine].ends;
    for (const auto& [step, launched] : launched_[engine]) {
      const Instant before = step == 0 ? Instant{} : ends[step - 1];
      PricedStep priced = launched.priced;
      priced.measured = us_of(ends[step] - std::max(before, launched.at));
      if (priced.measured > 0) out.push_back(priced);
    }
  }
  return out;
}

}  // namespace kvtwin
