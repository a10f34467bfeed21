#include "models/cost_tables/method_cost.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "kernels/grids/attention_score_grid.h"
#include "models/cost/partwise_cost.h"

namespace kvtwin {
namespace {

constexpr const char* kNames[kMethodTerms] = {"step",
                                              "decode",
                                              "thousand entries of decodes",
                                              "chunk step",
                                              "chunk",
                                              "thousand tokens of chunks",
                                              "thousand tokens of chunks after idle time",
                                              "million pairs with history",
                                              "million pairs of chunks",
                                              "million pairs over a ring's end",
                                              "million pairs of such rows with history",
                                              "round of tiles of attention scores",
                                              "compression",
                                              "thousand entries held",
                                              "thousand entries held beyond any before",
                                              "prompt complete",
                                              "choosing step",
                                              "choosing request",
                                              "thousand pages chosen from",
                                              "hundred pages that a request chooses",
                                              "16 tokens filled",
                                              "layer that recalls before attention",
                                              "head that recalls before attention",
                                              "layer that recalls behind attention",
                                              "16 tokens of a head before attention",
                                              "16 tokens of a head before attention beside chunks",
                                              "16 tokens of a head behind attention",
                                              "page of a head during a step",
                                              "page of a head during a launched step",
                                              "launched step",
                                              "recorded step at least",
                                              "thousand tokens packed again",
                                              "step that unpacks for decodes",
                                              "decode that unpacks",
                                              "thousand entries unpacked for decodes",
                                              "step of decodes by lists of entries",
                                              "decode by a list of entries",
                                              "thousand entries of decodes by lists",
                                              "thousand tokens of chunks by lists of entries",
                                              "million pairs of chunks by lists",
                                              "first step"};

constexpr double kHundred = 1e2, kThousand = 1e3, kMillion = 1e6;

// Host work, in addition to the step's own operations.
bool makes_graph(const StepShape& shape) {
  return shape.decodes > 0 && shape.chunks.empty() &&
         (shape.graph == GraphUse::kCaptured || shape.graph == GraphUse::kInstantiated);
}

bool compresses(MethodTerm term) {
  return term == MethodTerm::kCompression || term == MethodTerm::kHeld || term == MethodTerm::kHeldMore;
}

}  // namespace

bool is_method_term(std::string_view name) {
  return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

double price_of(const MeasuredMethod& method, MethodTerm term) {
  for (const MeasuredMethod::Term& one : method.terms) {
    if (one.of == name_of(term)) return one.us;
  }
  return 0;
}

MethodCounts prices_of(const MeasuredMethod& method) {
  MethodCounts out{};
  for (size_t i = 0; i < kMethodTerms; ++i) out[i] = price_of(method, static_cast<MethodTerm>(i));
  return out;
}

const char* name_of(MethodTerm term) { return kNames[static_cast<size_t>(term)]; }

double method_sum(const MethodCounts& counts, const MethodCounts& us) {
  double out = 0;
  for (size_t i = 0; i < kMethodTerms; ++i)
    out += i == static_cast<size_t>(MethodTerm::kRecorded) ? 0 : counts[i] * us[i];
  return out;
}

MethodCounts method_counts(const StepShape& shape, const MethodFacts& facts) {
  MethodCounts out{};
  const auto at = [&](MethodTerm term) -> double& { return out[static_cast<size_t>(term)]; };
  at(MethodTerm::kStep) = 1;
  at(MethodTerm::kDecode) = shape.decodes;
  at(MethodTerm::kDecodeKvEntries) = static_cast<double>(shape.decode_context_sum) / kThousand;
  at(MethodTerm::kChunkStep) = shape.chunks.empty() ? 0 : 1;
  at(MethodTerm::kChunk) = static_cast<double>(shape.chunks.size());
  for (const ChunkShape& chunk : shape.chunks) {
    const double rows = chunk.tokens, history = rows * chunk.context / kMillion,
                 own = rows * rows / 2 / kMillion;
    at(MethodTerm::kChunkTokens) += rows / kThousand;
    at(MethodTerm::kIdleTokens) += shape.busy_ms == 0 ? rows / kThousand : 0;
    at(MethodTerm::kHistory) += history;
    at(MethodTerm::kOwn) += own;
    if (facts.ring_slots > 0 && chunk.context + chunk.tokens > facts.ring_slots) {
      at(MethodTerm::kWrapped) += rows * facts.ring_slots / kMillion;
      at(MethodTerm::kWrappedHistory) += history;
    }
    at(MethodTerm::kListedTokens) += chunk.listed ? rows / kThousand : 0;
    at(MethodTerm::kListedPairs) += chunk.listed ? history + own : 0;
    if (facts.attention_score_heads > 0)
      at(MethodTerm::kAttentionScore) +=
          AttentionScoreGrid::of(chunk.context + chunk.tokens, chunk.tokens, facts.attention_score_heads)
              .rounds(facts.attention_score_heads);
  }
  at(MethodTerm::kCompression) = static_cast<double>(shape.compressions.size());
  for (const CompressionShape& one : shape.compressions) at(MethodTerm::kHeld) += one.held / kThousand;
  at(MethodTerm::kHeldMore) = shape.held_more / kThousand;
  if (shape.compressions.empty() && shape.logits_rows > shape.decodes)
    at(MethodTerm::kPrompt) = shape.logits_rows - shape.decodes;
  at(MethodTerm::kChoosingStep) = shape.choosing > 0 ? 1 : 0;
  at(MethodTerm::kChoosing) = shape.choosing;
  at(MethodTerm::kChosenFrom) = static_cast<double>(shape.chosen_from) / kThousand;
  at(MethodTerm::kChosenEach) = shape.chosen_each / kHundred;
  at(MethodTerm::kFilled) = static_cast<double>(shape.pages_filled);
  at(MethodTerm::kUnpackedStep) = shape.decodes_unpacked > 0 ? 1 : 0;
  at(MethodTerm::kUnpacked) = shape.decodes_unpacked;
  at(MethodTerm::kUnpackedKvEntries) = static_cast<double>(shape.unpacked_context_sum) / kThousand;
  if (shape.listed_decodes > 0) {
    at(MethodTerm::kListedStep) = 1;
    at(MethodTerm::kListed) = shape.decodes;
    at(MethodTerm::kListedKvEntries) = static_cast<double>(shape.decode_context_sum) / kThousand;
  }
  at(MethodTerm::kRequantised) = static_cast<double>(shape.requantised) / kThousand;
  if (shape.decodes > 0 && shape.chunks.empty()) {
    at(MethodTerm::kNewGraph) = shape.launched() ? 1 : 0;
    at(MethodTerm::kRecorded) = makes_graph(shape) ? 1 : 0;
  }
  return out;
}

MethodCost::MethodCost(const MeasuredMethod& method, uint32_t layers, const MethodFacts& facts,
                       bool retrieves, std::unique_ptr<CostModel> model)
    : CostOnTop(std::move(model)),
      us_(prices_of(method)),
      error_(method.error_p90),
      layers_(std::max(1u, layers)),
      facts_(facts),
      retrieves_(retrieves) {}

// Where the additional time belongs to attention, each layer has an equal part.
MethodCost::Added MethodCost::added(const StepShape& shape) const {
  const MethodCounts counts = method_counts(shape, facts_);
  double compressing = 0;
  for (size_t i = 0; i < kMethodTerms; ++i)
    compressing += compresses(static_cast<MethodTerm>(i)) ? counts[i] * us_[i] : 0;
  const double usual = method_sum(counts, us_) - compressing;
  if (retrieves_) return {ticks_from_us(usual / layers_) * layers_, ticks_from_us(compressing)};
  return {ticks_from_us(usual), ticks_from_us(compressing)};
}

StepCost MethodCost::step(const StepShape& shape) {
  StepCost cost = below().step(shape);
  const Added more = added(shape);
  cost.device += more.usual + more.compressing;
  if (makes_graph(shape))
    cost.least = std::max(cost.least, ticks_from_us(us_[static_cast<size_t>(MethodTerm::kRecorded)]));
  cost.by_evidence[static_cast<size_t>(Evidence::kInterpolated)] += more.usual + more.compressing;
  cost.compression[static_cast<size_t>(CompressionPart::kCapture)] += more.usual;
  cost.compression[static_cast<size_t>(CompressionPart::kScore)] += more.compressing;
  return cost;
}

StepRange MethodCost::range(const StepShape& shape) {
  StepRange range = below().range(shape);
  const Added more = added(shape);
  const auto all = static_cast<double>(below().step(shape).device + more.usual + more.compressing);
  range.low = std::min(range.low + more.usual + more.compressing,
                       static_cast<Ticks>(all * std::max(0.0, 1 - error_)));
  range.high = std::max(range.high + more.usual + more.compressing, static_cast<Ticks>(all * (1 + error_)));
  return range;
}

std::vector<StepPart> MethodCost::ops(const StepShape& shape) {
  std::vector<StepPart> all = below().ops(shape);
  if (all.empty()) return all;  // the model does not know its parts
  const Added more = added(shape);
  if (!retrieves_) {
    all.push_back({"method", PartKind::kHost, PartPlace::kAfter, 1, more.usual, Evidence::kInterpolated});
  } else {
    const auto last = std::find_if(all.begin(), all.end(),
                                   [](const StepPart& part) { return part.kind == PartKind::kAttention; });
    // Before recalls, like appending: copies for the next layer run concurrently.
    all.insert(last, {"choose", PartKind::kRope, PartPlace::kLayer, layers_, more.usual / layers_,
                      Evidence::kInterpolated});
  }
  if (more.compressing > 0)
    all.push_back(
        {"compress", PartKind::kHost, PartPlace::kAfter, 1, more.compressing, Evidence::kInterpolated});
  return all;
}

}  // namespace kvtwin
