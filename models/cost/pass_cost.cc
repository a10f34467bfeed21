#include "models/cost/pass_cost.h"

namespace kvtwin {
namespace {

// The step that a pass would be alone.
struct PassStep {
  explicit PassStep(const PassShape& pass) : chunk{.tokens = pass.tokens, .context = pass.context} {
    shape.chunks = {&chunk, 1};
    shape.tokens = shape.tokens_padded = pass.tokens;
  }
  PassStep(const PassStep&) = delete;
  PassStep& operator=(const PassStep&) = delete;

  const ChunkShape chunk;
  StepShape shape;
};

}  // namespace

// Ticks of the passes by evidence.
std::array<Ticks, kEvidenceKinds> PassCost::passes(const StepShape& shape) {
  std::array<Ticks, kEvidenceKinds> ticks{};
  if (priced_ == PricedPasses::kNone) return ticks;
  for (const PassShape& pass : shape.passes) {
    const StepCost cost = below().step(PassStep(pass).shape);
    for (size_t i = 0; i < ticks.size(); ++i) ticks[i] += cost.by_evidence[i];
  }
  return ticks;
}

StepCost PassCost::step(const StepShape& shape) {
  if (shape.passes.empty()) return below().step(shape);
  StepCost cost;
  if (shape.tokens > 0) {
    cost = below().step(shape);
  } else {
    cost.host = below().step(PassStep(shape.passes.front()).shape).host;
  }
  const std::array<Ticks, kEvidenceKinds> ticks = passes(shape);
  for (size_t i = 0; i < ticks.size(); ++i) {
    cost.device += ticks[i];
    cost.by_evidence[i] += ticks[i];
    cost.compression[static_cast<size_t>(CompressionPart::kProbe)] += ticks[i];
  }
  return cost;
}

std::vector<StepPart> PassCost::ops(const StepShape& shape) {
  if (shape.passes.empty()) return below().ops(shape);
  std::vector<StepPart> all;
  if (shape.tokens > 0) {
    all = below().ops(shape);
    if (all.empty()) return all;  // the model does not know its parts
  }
  const std::array<Ticks, kEvidenceKinds> ticks = passes(shape);
  for (size_t i = 0; i < ticks.size(); ++i) {
    if (ticks[i] > 0)
      all.push_back(
          {"probe_pass", PartKind::kProbe, PartPlace::kAfter, 1, ticks[i], static_cast<Evidence>(i)});
  }
  return all;
}

StepRange PassCost::range(const StepShape& shape) {
  StepRange range;
  if (shape.tokens > 0) range = below().range(shape);
  if (priced_ == PricedPasses::kNone) return range;
  for (const PassShape& pass : shape.passes) {
    const StepRange one = below().range(PassStep(pass).shape);
    range.low += one.low, range.high += one.high;
  }
  return range;
}

}  // namespace kvtwin
