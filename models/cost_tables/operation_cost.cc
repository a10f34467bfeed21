#include "models/cost_tables/operation_cost.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "engine/base/check.h"
#include "kernels/grids/attention_score_grid.h"
#include "models/cost/partwise_cost.h"

namespace kvtwin {
namespace {

enum class FamilyGroup : uint8_t { kLists, kLayers, kBehind, kRecalls };
struct FamilyRow {
  Family family;
  const char* name;
  FamilyGroup group;
};
constexpr FamilyRow kFamilyRows[] = {
    {Family::kListedStep, "lists of a step", FamilyGroup::kLists},
    {Family::kRowSlot, "slot of a row and head", FamilyGroup::kLists},
    {Family::kTableEntry, "entry of a page table", FamilyGroup::kLists},
    {Family::kTable, "page table of a head group", FamilyGroup::kLists},
    {Family::kChunkPlan, "plan of a layer's chunks", FamilyGroup::kLayers},
    {Family::kGate, "layer of gates", FamilyGroup::kLayers},
    {Family::kGateRow, "row of a layer's gates", FamilyGroup::kLayers},
    {Family::kScoredChunk, "layer of attention scores of a chunk", FamilyGroup::kLayers},
    {Family::kScoreRound, "layer's round of attention scores", FamilyGroup::kLayers},
    {Family::kScoredDecode, "layer of attention scores of decodes", FamilyGroup::kLayers},
    {Family::kScoredEntry, "entry of attention scores of decodes", FamilyGroup::kLayers},
    {Family::kCapture, "capture of a layer's queries", FamilyGroup::kLayers},
    {Family::kListedPair, "pair of attention by lists", FamilyGroup::kLayers},
    {Family::kListedChunk, "entry of a chunk by lists", FamilyGroup::kLayers},
    {Family::kListedEntry, "entry of decodes by lists", FamilyGroup::kLayers},
    {Family::kChoice, "choice in a layer", FamilyGroup::kLayers},
    {Family::kChoosing, "choice of a request in a layer", FamilyGroup::kLayers},
    {Family::kCandidate, "page of a head scored", FamilyGroup::kLayers},
    {Family::kRecall, "recall in a layer", FamilyGroup::kLayers},
    {Family::kRecallAhead, "recall ahead in a layer", FamilyGroup::kLayers},
    {Family::kEnteredPage, "page of a head entered", FamilyGroup::kLayers},
    {Family::kUnpackStep, "layer that unpacks", FamilyGroup::kLayers},
    {Family::kUnpack, "request unpacked in a layer", FamilyGroup::kLayers},
    {Family::kUnpacked, "entry unpacked", FamilyGroup::kLayers},
    {Family::kRequantised, "entry requantised", FamilyGroup::kLayers},
    {Family::kStagedLayer, "layer of staged compressions", FamilyGroup::kLayers},
    {Family::kCompression, "compression", FamilyGroup::kBehind},
    {Family::kAsked, "layer of scores by attention", FamilyGroup::kBehind},
    {Family::kAskedPair, "pair of scores by attention", FamilyGroup::kBehind},
    {Family::kRanked, "entry ranked", FamilyGroup::kBehind},
    {Family::kCounted, "entry ranked for counts", FamilyGroup::kBehind},
    {Family::kRetained, "entry retained", FamilyGroup::kBehind},
    {Family::kPageNow, "page recalled before attention", FamilyGroup::kRecalls},
    {Family::kPageNext, "page recalled behind attention", FamilyGroup::kRecalls},
    {Family::kPageConcurrent, "page recalled during a step", FamilyGroup::kRecalls},
    {Family::kPageLaunched, "page recalled during a launched step", FamilyGroup::kRecalls}};
static_assert(std::size(kFamilyRows) == kOperationFamilies);

constexpr bool families_in_order() {
  for (size_t i = 0; i < kOperationFamilies; ++i) {
    if (static_cast<size_t>(kFamilyRows[i].family) != i) return false;
  }
  return true;
}
static_assert(families_in_order());

class FamilyCounter {
 public:
  FamilyCounter(const StepShape& shape, const MethodWork& work)
      : shape_(shape), work_(work), heads_(double{1} * work.layers * work.kv_heads) {
    for (const ChunkShape& chunk : shape.chunks) rows_ += chunk.tokens;
  }

  FamilyCounts count() {
    if (work_.lists) lists();
    if (work_.lists) layers();
    if (work_.staged && !shape_.compressions.empty()) at(Family::kStagedLayer) = work_.layers;
    for (const CompressionShape& one : shape_.compressions) compress(one);
    if (work_.chooses) choose();
    formats();
    return out_;
  }

 private:
  double& at(Family family) { return out_[static_cast<size_t>(family)]; }
  bool decodes_alone() const {
    return shape_.decodes > 0 && shape_.chunks.empty() && shape_.passes.empty() &&
           shape_.compressions.empty();
  }
  double dim() const { return work_.head_dim / kPageUnit.dim; }
  double requests() const { return shape_.decodes + static_cast<double>(shape_.chunks.size()); }
  bool watches_decodes() const { return work_.sums_decodes || work_.captures_decodes; }

  // Steps of decodes alone are filled up with rows of padding.
  double rows() const {
    if (!decodes_alone() || watches_decodes()) return rows_ + shape_.decodes;
    return std::max(shape_.decodes, shape_.tokens_padded);
  }

  void lists() {
    at(Family::kListedStep) = 1;
    at(Family::kRowSlot) = rows() * heads_;
    double entries = static_cast<double>(shape_.decode_context_sum) + shape_.decodes, listed = 0;
    if (shape_.listed_decodes > 0) listed += entries;
    for (const ChunkShape& chunk : shape_.chunks) {
      const double held = double{1} * chunk.context + chunk.tokens;
      entries += held;
      if (chunk.listed || wraps(chunk)) listed += held;
    }
    const double page = work_.page_tokens;  // the last page of a request is half full
    at(Family::kTableEntry) = work_.groups * (entries / page + requests() * (page - 1) / (2 * page)) + listed;
    if (work_.groups > 1) at(Family::kTable) = work_.groups * requests();
  }

  bool wraps(const ChunkShape& chunk) const {
    return work_.ring_slots > 0 && chunk.context + chunk.tokens > work_.ring_slots;
  }

  void layers() {
    if (!shape_.chunks.empty()) at(Family::kChunkPlan) = work_.layers;
    if (work_.gates) at(Family::kGate) = work_.layers, at(Family::kGateRow) = work_.layers * rows();
    double captured = work_.captures ? static_cast<double>(shape_.compressions.size()) : 0;
    if (work_.captures_decodes) captured = requests();
    at(Family::kCapture) = work_.layers * captured;
    if (work_.sums_decodes && shape_.decodes > 0) {
      at(Family::kScoredDecode) = work_.layers;
      at(Family::kScoredEntry) = heads_ * static_cast<double>(shape_.decode_context_sum);
    }
    if (shape_.listed_decodes > 0)
      at(Family::kListedEntry) = heads_ * static_cast<double>(shape_.decode_context_sum);
    for (const ChunkShape& chunk : shape_.chunks) attend(chunk);
  }

  void attend(const ChunkShape& chunk) {
    const double rows = chunk.tokens;
    if (work_.sums) {
      at(Family::kScoredChunk) += work_.layers;
      at(Family::kScoreRound) +=
          work_.layers * AttentionScoreGrid::of(chunk.context + chunk.tokens, chunk.tokens, work_.kv_heads)
                             .rounds(work_.kv_heads);
    }
    if (!chunk.listed && !wraps(chunk)) return;
    const double read = wraps(chunk) ? work_.ring_slots : chunk.context + rows / 2;
    at(Family::kListedPair) += rows * read * work_.layers * work_.query_heads * dim();
    at(Family::kListedChunk) += heads_ * read;
  }

  void compress(const CompressionShape& one) {
    const double ranked = heads_ * one.ranked;
    if (!work_.staged) at(Family::kCompression) += 1;
    if (work_.asked_rows == 0) {
      at(Family::kRanked) += ranked;
    } else {
      if (!work_.staged) at(Family::kAsked) += work_.layers;
      at(Family::kAskedPair) +=
          double{1} * work_.layers * work_.query_heads * one.ranked * work_.asked_rows * dim();
    }
    if (work_.counts_by_scores) at(Family::kCounted) += ranked;
    if (!work_.moves) return;
    const double stays = one.retained != CompressionShape::kUnknown
                             ? one.retained
                             : std::min<double>(work_.retained_fraction * one.ranked, work_.retained_entries);
    at(Family::kRetained) += heads_ * std::min<double>(stays, one.held);
  }

  void choose() {
    // Requests whose prompts end leave the GPU, but for the pages that they would read.
    if (work_.recalls && shape_.logits_rows > shape_.decodes)
      at(Family::kEnteredPage) = page_of_head() * (shape_.logits_rows - shape_.decodes);
    if (shape_.choosing == 0) return;
    at(Family::kChoice) = work_.layers;
    at(Family::kChoosing) = double{1} * work_.layers * shape_.choosing;
    at(Family::kCandidate) = heads_ * static_cast<double>(shape_.chosen_from) * dim();
    if (work_.recalls) at(Family::kRecall) = work_.layers;
    if (work_.ahead) at(Family::kRecallAhead) = work_.layers;
  }

  double page_of_head() const {
    return heads_ * work_.selectable * kPageUnit.of(work_.page_tokens, work_.head_dim);
  }

  void formats() {
    at(Family::kRequantised) = heads_ * static_cast<double>(shape_.requantised);
    double unpacked = shape_.decodes_unpacked, entries = static_cast<double>(shape_.unpacked_context_sum);
    for (const ChunkShape& chunk : shape_.chunks) {
      if (work_.two_formats && chunk.context > 0) unpacked += 1, entries += chunk.context;
    }
    if (unpacked == 0) return;
    at(Family::kUnpackStep) = work_.layers;
    at(Family::kUnpack) = work_.layers * unpacked;
    at(Family::kUnpacked) = heads_ * entries;
  }

  const StepShape& shape_;
  const MethodWork& work_;
  const double heads_;
  double rows_ = 0;  // of chunks
  FamilyCounts out_{};
};

}  // namespace

const char* name_of(Family family) { return kFamilyRows[static_cast<size_t>(family)].name; }

bool is_family(std::string_view name) {
  return std::any_of(std::begin(kFamilyRows), std::end(kFamilyRows),
                     [&](const FamilyRow& row) { return row.name == name; });
}

FamilyCounts prices_of(const MeasuredOperations& operations) {
  FamilyCounts out{};
  for (const MeasuredOperations::Price& one : operations.prices) {
    for (size_t i = 0; i < kOperationFamilies; ++i) {
      if (one.of == kFamilyRows[i].name) out[i] = one.ns;
    }
  }
  return out;
}

FamilyCounts family_counts(const StepShape& shape, const MethodWork& work) {
  return FamilyCounter(shape, work).count();
}

double family_us(const FamilyCounts& counts, const FamilyCounts& ns) {
  double out = 0;
  for (size_t i = 0; i < kOperationFamilies; ++i) out += counts[i] * ns[i] / 1e3;
  return out;
}

OperationCost::OperationCost(const MeasuredOperations& operations, const MethodWork& work,
                             std::unique_ptr<CostModel> model)
    : CostOnTop(std::move(model)), ns_(prices_of(operations)), error_(operations.error_p90), work_(work) {
  KVT_CHECK(work.layers > 0);
}

OperationCost::Added OperationCost::added(const StepShape& shape) const {
  const FamilyCounts counts = family_counts(shape, work_);
  const Ticks layers = work_.layers;
  Added out{};
  for (size_t i = 0; i < kOperationFamilies; ++i) {
    const double us = counts[i] * ns_[i] / 1e3;
    if (kFamilyRows[i].group == FamilyGroup::kLayers) {
      out[i] = ticks_from_us(us / work_.layers) * layers;
    } else if (kFamilyRows[i].group != FamilyGroup::kRecalls) {
      out[i] = ticks_from_us(us);
    }
  }
  return out;
}

StepCost OperationCost::step(const StepShape& shape) {
  StepCost cost = below().step(shape);
  const Added more = added(shape);
  for (size_t i = 0; i < kOperationFamilies; ++i) {
    const CompressionPart part =
        kFamilyRows[i].group == FamilyGroup::kBehind ? CompressionPart::kScore : CompressionPart::kCapture;
    cost.device += more[i];
    cost.by_evidence[static_cast<size_t>(Evidence::kMeasured)] += more[i];
    cost.compression[static_cast<size_t>(part)] += more[i];
  }
  return cost;
}

StepRange OperationCost::range(const StepShape& shape) {
  StepRange range = below().range(shape);
  const Added each = added(shape);
  const Ticks more = std::accumulate(each.begin(), each.end(), Ticks{0});
  const auto all = static_cast<double>(below().step(shape).device + more);
  range.low = std::min(range.low + more, static_cast<Ticks>(all * std::max(0.0, 1 - error_)));
  range.high = std::max(range.high + more, static_cast<Ticks>(all * (1 + error_)));
  return range;
}

std::vector<StepPart> OperationCost::ops(const StepShape& shape) {
  std::vector<StepPart> all = below().ops(shape);
  if (all.empty()) return all;  // the model does not know its parts
  const Added more = added(shape);
  std::vector<StepPart> lists, layers;
  for (size_t i = 0; i < kOperationFamilies; ++i) {
    const FamilyRow& row = kFamilyRows[i];
    if (more[i] == 0) continue;
    if (row.group == FamilyGroup::kLists)
      lists.push_back({row.name, PartKind::kHost, PartPlace::kBefore, 1, more[i], Evidence::kMeasured});
    if (row.group == FamilyGroup::kLayers)
      layers.push_back({row.name, PartKind::kRope, PartPlace::kLayer, work_.layers, more[i] / work_.layers,
                        Evidence::kMeasured});
    if (row.group == FamilyGroup::kBehind)
      all.push_back({row.name, PartKind::kHost, PartPlace::kAfter, 1, more[i], Evidence::kMeasured});
  }
  // Before recalls, like appending: copies for the next layer run concurrently.
  const auto first = std::find_if(all.begin(), all.end(),
                                  [](const StepPart& part) { return part.kind == PartKind::kAttention; });
  all.insert(first, layers.begin(), layers.end());
  all.insert(all.begin(), lists.begin(), lists.end());
  return all;
}

}  // namespace kvtwin
