#include "models/cost_tables/table_cost.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin {
namespace {

// The tables' layer must be the model's, cut into one of the profiled degrees: meta.yaml keeps the last.
Result<void> check_geometry(const CostTables& t, const LlmSpec& m) {
  const struct {
    const char* name;
    uint32_t profiled, model;
  } fields[] = {{"attention heads", t.query_heads, m.query_heads},
                {"KV heads", t.kv_heads, m.kv_heads},
                {"MLP columns", t.intermediate, m.intermediate},
                {"vocabulary entries", t.vocab, m.vocab}};
  for (const auto& f : fields) {
    if (f.profiled == 0 || f.profiled == f.model) continue;
    // Vocabularies are padded so that they can be cut.
    const uint64_t padding = &f == &fields[3] ? kVocabularyPadding : 0;
    bool cut = f.profiled > f.model && f.profiled <= f.model + padding;
    for (const uint32_t degree : t.tp_degrees) {
      const uint64_t whole = uint64_t{f.profiled} * degree;
      cut = cut || (whole >= f.model && whole <= f.model + padding);
    }
    if (!cut) {
      return make_error(
          t.where, fmt::format("was measured with {} {}, {} has {}", f.profiled, f.name, m.name, f.model),
          "take the profile of this model");
    }
  }
  return {};
}

StepPart read(const char* name, PartKind kind, PartPlace place, uint32_t times, const Curve& curve,
              const Axis& axis, uint32_t at) {
  const Bracket b = axis.bracket(at);
  const double us = std::max(0.0, b.blend([&](size_t i) { return curve.us[i]; }));
  return {name, kind, place, times, ticks_from_us(us), b.evidence};
}

}  // namespace

Result<std::unique_ptr<TableCost>> TableCost::make(const CostTables& tables, const LlmSpec& llm, uint32_t tp,
                                                   uint32_t sm_count, const HostTime& host,
                                                   const AllReduceRate& all_reduce,
                                                   std::unique_ptr<RooflineCost> roofline) {
  KVT_CHECK(llm.moe_layers() == 0);
  if (auto r = check_geometry(tables, llm); !r) return tl::unexpected<Error>(r.error());
  KVT_CHECK(roofline != nullptr || !tables.lm_head.at.empty());
  return std::unique_ptr<TableCost>(
      new TableCost(tables, llm, tp, sm_count, host, all_reduce, std::move(roofline)));
}

TableCost::TableCost(const CostTables& tables, const LlmSpec& llm, uint32_t tp, uint32_t sm_count,
                     const HostTime& host, const AllReduceRate& all_reduce,
                     std::unique_ptr<RooflineCost> roofline)
    : PartwiseCost(host),
      dense_(tables.dense),
      lm_head_(tables.lm_head),
      sampler_(tables.sampler),
      qk_norm_(tables.qk_norm),
      attention_(tables, llm.kv_heads_per_gpu(tp), sm_count),
      layers_(llm.layers),
      tp_(tp),
      hidden_(llm.hidden),
      has_qk_norm_(llm.qk_norm),
      all_reduce_(all_reduce),
      roofline_(std::move(roofline)) {
  if (!lm_head_.at.empty()) lm_head_axis_ = Axis(lm_head_.at), sampler_axis_ = Axis(sampler_.at);
  if (!qk_norm_.at.empty()) qk_norm_axis_ = Axis(qk_norm_.at);
  for (size_t i = 0; i < kDenseOps; ++i) dense_axes_[i] = Axis(dense_[i].at);
}

std::vector<StepPart> TableCost::dense_ops(uint32_t tokens) const {
  const auto op = [&](DenseOp which, PartKind kind, PartPlace place, uint32_t times) {
    const size_t i = static_cast<size_t>(which);
    return read(name_of(which), kind, place, times, dense_[i], dense_axes_[i], tokens);
  };
  const PartPlace layer = PartPlace::kLayer;
  std::vector<StepPart> ops = {op(DenseOp::kEmbedding, PartKind::kEmbedding, PartPlace::kBefore, 1),
                               op(DenseOp::kLayernorm, PartKind::kNorm, layer, 2 * layers_),
                               op(DenseOp::kQkv, PartKind::kGemm, layer, layers_),
                               op(DenseOp::kRotary, PartKind::kRope, layer, layers_),
                               op(DenseOp::kOutput, PartKind::kGemm, layer, layers_),
                               op(DenseOp::kGateUp, PartKind::kGemm, layer, layers_),
                               op(DenseOp::kActivation, PartKind::kActivation, layer, layers_),
                               op(DenseOp::kDown, PartKind::kGemm, layer, layers_),
                               op(DenseOp::kFinalNorm, PartKind::kNorm, PartPlace::kAfter, 1)};
  if (has_qk_norm_ && !qk_norm_.at.empty()) {
    ops.insert(ops.begin() + 3,
               read("qk_norm", PartKind::kNorm, layer, layers_, qk_norm_, qk_norm_axis_, tokens));
  } else if (has_qk_norm_ && roofline_ != nullptr) {
    ops.insert(ops.begin() + 3, roofline_->qk_norm(tokens));
  }
  if (tp_ > 1) {
    const double ns = all_reduce_.ns(2.0 * tokens * hidden_, tp_);
    ops.insert(ops.end() - 1, {"all_reduce", PartKind::kAllReduce, layer, 2 * layers_, ticks_from_ns(ns),
                               Evidence::kRoofline});
  }
  return ops;
}

std::vector<StepPart> TableCost::head_ops(uint32_t rows) const {
  const uint32_t at = std::max(rows, 1u);
  if (lm_head_.at.empty()) return roofline_->head(at);
  return {read("lm_head", PartKind::kLmHead, PartPlace::kAfter, 1, lm_head_, lm_head_axis_, at),
          read("sampler", PartKind::kSample, PartPlace::kAfter, 1, sampler_, sampler_axis_, at)};
}

size_t TableCost::attention_ops(const StepShape& shape, AttentionOps* out) {
  const AttentionTime time = attention_.step(shape);
  (*out)[0] = {"attention", PartKind::kAttention,   PartPlace::kLayer,
               layers_,     ticks_from_us(time.us), time.evidence};
  if (shape.requantised == 0) return 1;
  // Not measured: reading KV entries and writing fewer takes at most as long as reading them twice.
  StepShape kv_entries;
  kv_entries.decodes = 1;
  kv_entries.decode_context_sum = shape.requantised;
  kv_entries.decode_context_max = static_cast<uint32_t>(std::min<uint64_t>(shape.requantised, UINT32_MAX));
  (*out)[1] = {"requantise",
               PartKind::kRope,
               PartPlace::kLayer,
               layers_,
               2 * ticks_from_us(attention_.step(kv_entries).us),
               Evidence::kExtrapolated};
  return 2;
}

}  // namespace kvtwin
