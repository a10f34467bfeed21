#include "models/cost/partwise_cost.h"

#include <algorithm>

namespace kvtwin {
namespace {

constexpr size_t kDensePartsMax = 32768, kHeadPartsMax = 4096;

std::array<Ticks, kEvidenceKinds> sum(const std::vector<StepPart>& ops) {
  std::array<Ticks, kEvidenceKinds> out{};
  for (const StepPart& op : ops) out[static_cast<size_t>(op.evidence)] += op.times * op.each;
  return out;
}

}  // namespace

PartwiseCost::PartwiseCost(const HostTime& host)
    : host_(host), dense_parts_(kDensePartsMax), head_parts_(kHeadPartsMax) {}

const PartwiseCost::Part& PartwiseCost::dense(uint32_t tokens) {
  if (tokens >= kDensePartsMax) return spare_dense_ = {true, sum(dense_ops(tokens))};
  Part& part = dense_parts_[tokens];
  if (!part.ready) part = {true, sum(dense_ops(tokens))};
  return part;
}

const PartwiseCost::Part& PartwiseCost::head(uint32_t rows) {
  if (rows >= kHeadPartsMax) return spare_head_ = {true, sum(head_ops(rows))};
  Part& part = head_parts_[rows];
  if (!part.ready) part = {true, sum(head_ops(rows))};
  return part;
}

// Prices operation by operation, so that ops() has the same sum.
StepCost PartwiseCost::paced(const StepShape& shape) {
  StepCost cost;
  for (const StepPart& op : ops(shape)) {
    cost.by_evidence[static_cast<size_t>(op.evidence)] += op.times * op.each;
    if (op.kind == PartKind::kAttention) cost.attention += op.times * op.each;
  }
  for (const Ticks ticks : cost.by_evidence) cost.device += ticks;
  cost.host = host_.of(shape);
  return cost;
}

StepCost PartwiseCost::step(const StepShape& shape) {
  if (pace(shape) != 1) return paced(shape);
  StepCost cost;
  const Part &d = dense(std::max(shape.tokens, shape.tokens_padded)), &h = head(shape.logits_rows);
  for (size_t i = 0; i < cost.by_evidence.size(); ++i)
    cost.by_evidence[i] = d.by_evidence[i] + h.by_evidence[i];
  AttentionOps attention;
  const size_t count = attention_ops(shape, &attention);
  for (size_t i = 0; i < count; ++i) {
    const Ticks ticks = attention[i].times * attention[i].each;
    cost.by_evidence[static_cast<size_t>(attention[i].evidence)] += ticks;
    if (attention[i].kind == PartKind::kAttention) cost.attention += ticks;
  }
  for (const Ticks ticks : cost.by_evidence) cost.device += ticks;
  cost.host = host_.of(shape);
  return cost;
}

std::vector<StepPart> PartwiseCost::ops(const StepShape& shape) {
  std::vector<StepPart> all = dense_ops(std::max(shape.tokens, shape.tokens_padded));
  AttentionOps attention;
  const size_t count = attention_ops(shape, &attention);
  const auto rope =
      std::find_if(all.begin(), all.end(), [](const StepPart& op) { return op.kind == PartKind::kRope; });
  all.insert(rope == all.end() ? rope : rope + 1, attention.begin(),
             attention.begin() + static_cast<ptrdiff_t>(count));
  for (const StepPart& op : head_ops(shape.logits_rows)) all.push_back(op);
  if (const double factor = pace(shape); factor != 1) {
    for (StepPart& op : all) op.each = static_cast<Ticks>(static_cast<double>(op.each) * factor + 0.5);
  }
  return all;
}

}  // namespace kvtwin
