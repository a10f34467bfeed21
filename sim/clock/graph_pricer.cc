#include "sim/clock/graph_pricer.h"

#include <algorithm>
#include <numeric>

#include "engine/base/check.h"

namespace kvtwin::sim {
namespace {

void set(StepGraph* graph, OpId op, Ticks fixed) {
  if (op != kNoOp) graph->set_cost(op, {.fixed = fixed});
}
void set(StepGraph* graph, OpId op, const RetrievalPrice& price) {
  if (op != kNoOp)
    graph->set_cost(op, {.fixed = price.fixed, .unit = price.unit, .unit_bytes = price.unit_bytes});
}

// An operation of some layers: it goes to the first `part.times` layers that have none yet.
void give(const StepPart& part, uint32_t* next, std::vector<Ticks>* layers) {
  for (uint32_t i = 0; i < part.times; ++i) (*layers)[(*next)++ % layers->size()] += part.each;
}

}  // namespace

GraphPricer::GraphPricer(const GraphPricerSpec& spec, CostModel* cost, const RetrievalCost* prices)
    : spec_(spec), cost_(cost), prices_(prices), step_(make_retrieval_step(spec.graph)) {
  KVT_CHECK(prices != nullptr || spec.graph.kind == RetrievalKind::kReadsAll);
  outcomes_.resize(step_.outcome_count());
}

void GraphPricer::prepare(const StepShape& shape, std::span<const PlanEntry> entries, uint32_t offset,
                          std::span<const LayerRecall> recalls) {
  reads_ = reading_shape(shape, entries, offset);
  set_model_costs(reads_, shape);
  least_ = reads_.launched() ? cost_->step(reads_).least : 0;
  std::fill(outcomes_.begin(), outcomes_.end(), 0);
  outcomes_[step_.compressing()] = shape.compressions.empty() && shape.copied_pages == 0 ? 0 : 1;
  outcomes_[step_.passing()] = shape.passes.empty() ? 0 : 1;
  if (spec_.graph.kind == RetrievalKind::kReadsAll) return;
  set_retrieval_costs();
  set_outcomes(recalls);
}

// Pages that the step completes, over all requests.
uint64_t GraphPricer::pages_filled(const StepShape& shape, std::span<const PlanEntry> entries,
                                   uint32_t offset) const {
  const uint32_t page = spec_.page_tokens;
  uint64_t filled = 0;
  size_t cut = 0;
  for (const PlanEntry& entry : entries) {
    const bool decode = entry.kind == EntryKind::kDecode;
    uint32_t before = entry.context + offset, after = before + entry.stored();
    if (spec_.drops && decode) {
      before = entry.live() + offset;
      after = before + 1;
    } else if (spec_.drops) {
      // Compressions are in the order of their entries. Requests without one retain everything.
      before = 0;
      if (cut < shape.compressions.size() && shape.compressions[cut].tokens == after) {
        const CompressionShape& one = shape.compressions[cut++];
        after = one.retained + one.held - one.ranked;
      } else if (!entry.samples || entry.passes_left > 0) {
        continue;  // its prompt continues, or is compressed later
      }
    }
    filled += after / page - before / page;
  }
  return filled;
}

// The step as attention of the retrieving layers sees it.
StepShape GraphPricer::reading_shape(const StepShape& shape, std::span<const PlanEntry> entries,
                                     uint32_t offset) {
  load_ = {};
  if (spec_.graph.kind == RetrievalKind::kReadsAll) return shape;
  StepShape reads = shape;
  reads.decode_context_sum = reads.decode_context_max = 0;
  const uint32_t page = spec_.page_tokens;
  load_.filled = pages_filled(shape, entries, offset);
  for (const PlanEntry& entry : entries) {
    if (entry.kind != EntryKind::kDecode) continue;
    // Pages are chosen from the retained context: KV entries of a mean head.
    const uint32_t left = entry.live() + (entry.grows ? offset : 0);
    const uint32_t read = tokens_read(spec_.policy, page, left + 1) - 1;
    reads.decode_context_sum += read;
    reads.decode_context_max = std::max(reads.decode_context_max, read);
    if (!request_retrieves(spec_.policy, page, left + 1)) continue;
    ++load_.requests;
    load_.tokens += left + 1;
    load_.pages += div_ceil(left + 1, page);
    load_.tokens_chosen += uint64_t{selectable_pages(spec_.policy, page)} * page;
  }
  reads.choosing = load_.requests, reads.chosen_from = load_.pages;
  reads.pages_filled = load_.filled * page / 16;
  return reads;
}

void GraphPricer::spread(const std::vector<StepPart>& parts, std::vector<Ticks>* query,
                         std::vector<Ticks>* append, std::vector<Ticks>* attention, std::vector<Ticks>* rest,
                         std::vector<Ticks>* all_reduce) {
  const size_t layers = step_.layers.size();
  for (auto* all : {query, append, attention, rest, all_reduce}) all->assign(layers, 0);
  bool before_attention = true;
  uint32_t next_attention = 0, next_rest = 0;
  for (const StepPart& part : parts) {
    if (part.place != PartPlace::kLayer || is_compression(part.kind)) continue;
    if (part.kind == PartKind::kAttention) {
      give(part, &next_attention, attention);
      before_attention = false;
    } else if (part.kind == PartKind::kRope) {
      uint32_t next = 0;
      give(part, &next, append);
    } else if (part.kind == PartKind::kAllReduce && spec_.graph.all_reduces) {
      uint32_t next = 0;
      give(part, &next, all_reduce);
    } else if (before_attention) {
      uint32_t next = 0;
      give(part, &next, query);
    } else {
      give(part, &next_rest, rest);
    }
  }
}

void GraphPricer::set_model_costs(const StepShape& reads, const StepShape& all) {
  StepGraph& graph = step_.graph;
  const std::vector<StepPart> parts = cost_->ops(reads);
  by_evidence_ = {};
  Ticks before = 0, after = 0, all_reduce = 0, sample = 0;
  for (const StepPart& part : parts) {
    by_evidence_[static_cast<size_t>(part.evidence)] += part.times * part.each;
    if (is_compression(part.kind)) continue;
    if (part.place == PartPlace::kBefore) before += part.times * part.each;
    if (part.place == PartPlace::kAfter) {
      const bool exchange = part.kind == PartKind::kAllReduce && spec_.graph.all_reduces;
      (part.kind == PartKind::kSample ? sample : exchange ? all_reduce : after) += part.times * part.each;
    }
  }
  spread(parts, &query_, &append_, &attention_, &rest_, &all_reduce_);
  if (parts.empty()) {  // a model that does not know its parts: one operation
    const StepCost cost = cost_->step(reads);
    before = cost.device;
    by_evidence_ = cost.by_evidence;
  }
  const uint32_t dense = spec_.graph.kind == RetrievalKind::kReadsAll ? 0 : spec_.graph.layers_dense;
  if (dense > 0) {
    std::vector<Ticks> ignored[4];
    spread(cost_->ops(all), &ignored[0], &ignored[1], &attention_all_, &ignored[2], &ignored[3]);
    for (uint32_t l = 0; l < dense; ++l) {
      by_evidence_[static_cast<size_t>(Evidence::kRoofline)] += attention_all_[l] - attention_[l];
      attention_[l] = attention_all_[l];
    }
  }
  set_compression_costs(parts);
  set(&graph, step_.before, before);
  set(&graph, step_.after, after);
  set(&graph, step_.all_reduce, all_reduce);
  set(&graph, step_.sample, sample);
  for (size_t l = 0; l < step_.layers.size(); ++l) {
    const RetrievalLayerOps& ops = step_.layers[l];
    set(&graph, ops.query, query_[l]);
    set(&graph, ops.append, append_[l]);
    set(&graph, ops.attention, attention_[l]);
    set(&graph, ops.rest, rest_[l]);
    set(&graph, ops.all_reduce, all_reduce_[l]);
  }
}

// In each layer, or once for all layers, as the graph has it.
void GraphPricer::set_compression_costs(const std::vector<StepPart>& parts) {
  StepGraph& graph = step_.graph;
  compression_ = {};
  CompressionTicks each{};
  for (const StepPart& part : parts) {
    if (!is_compression(part.kind)) continue;
    const auto index = static_cast<size_t>(compression_part(part.kind));
    compression_[index] += part.times * part.each;
    each[index] += part.each;
  }
  const auto all = [&](CompressionPart part) { return compression_[static_cast<size_t>(part)]; };
  const auto layer = [&](CompressionPart part) { return each[static_cast<size_t>(part)]; };
  for (const RetrievalLayerOps& ops : step_.layers) {
    set(&graph, ops.capture, layer(CompressionPart::kCapture));
    set(&graph, ops.score, layer(CompressionPart::kScore));
    set(&graph, ops.select, layer(CompressionPart::kSelect));
    set(&graph, ops.compact, layer(CompressionPart::kMove));
  }
  set(&graph, step_.probe, all(CompressionPart::kProbe));
  set(&graph, step_.score, all(CompressionPart::kScore));
  set(&graph, step_.select, all(CompressionPart::kSelect));
  set(&graph, step_.compact, all(CompressionPart::kMove));
  set(&graph, step_.bookkeeping, all(CompressionPart::kBookkeeping));
}

void GraphPricer::set_retrieval_costs() {
  StepGraph& graph = step_.graph;
  const Ticks score = prices_->score(load_.tokens), top_k = prices_->top_k(load_.tokens);
  const Ticks cosine = load_.requests > 0 ? prices_->cosine(load_.requests) : 0, sync = prices_->sync();
  const Ticks reproject = prices_->reproject(load_.requests);
  const Ticks rebuilt = prices_->reconstruct(load_.tokens_chosen, load_.requests);
  const RetrievalPrice next = prices_->recall(false), summarise = prices_->summarise(),
                       offload = prices_->offload();
  // (request, head) pairs of this GPU, which share its staging buffers.
  const auto heads = static_cast<uint32_t>(prices_->kv_heads());
  const RetrievalPrice convert = prices_->convert(load_.requests * heads);
  for (const RetrievalLayerOps& ops : step_.layers) {
    set(&graph, ops.cosine, cosine);
    set(&graph, ops.score_now, score);
    set(&graph, ops.top_k_now, top_k);
    set(&graph, ops.score_next, score);
    set(&graph, ops.top_k_next, top_k);
    set(&graph, ops.sync, sync);
    set(&graph, ops.reproject, reproject);
    set(&graph, ops.reconstruct, rebuilt);
    set(&graph, ops.recall_next, next);
    for (const OpId op : {ops.convert_now, ops.convert_next}) set(&graph, op, convert);
    set(&graph, ops.summarise, summarise);
    set(&graph, ops.offload, offload);
  }
}

uint32_t GraphPricer::fraction_of_gpu(uint32_t pages) const {
  const auto heads = static_cast<uint64_t>(prices_->kv_heads());
  return static_cast<uint32_t>(div_ceil<uint64_t>(pages * heads, spec_.kv_heads));
}

void GraphPricer::set_outcomes(std::span<const LayerRecall> recalls) {
  const bool ahead = speculates(spec_.graph.kind, spec_.graph.speculation);
  for (uint32_t l = spec_.graph.layers_dense; l < step_.layers.size(); ++l) {
    const LayerRecall recall = l < recalls.size() ? recalls[l] : LayerRecall{};
    outcomes_[step_.blocking(l)] = fraction_of_gpu(recall.blocking);
    outcomes_[step_.background(l)] = fraction_of_gpu(recall.background);
    set(&step_.graph, step_.layers[l].recall_now, prices_->recall());
    const Ticks concurrent = prices_->concurrent(outcomes_[step_.background(l)], reads_.launched());
    if (concurrent > 0) set(&step_.graph, step_.layers[l].attention, attention_[l] + concurrent);
    const bool now = ahead ? recall.corrected > 0 : load_.requests > 0;
    outcomes_[step_.flagged(l)] = now ? 1 : 0;
    outcomes_[step_.unflagged(l)] = !now && load_.requests > 0 ? 1 : 0;
  }
  outcomes_[step_.filled()] = static_cast<uint32_t>(load_.filled);
}

StepTiming GraphPricer::evaluate(Ticks start) {
  after_.at = carry_.at;
  StepTiming timing = step_.graph.evaluate(start, outcomes_, &after_);
  timing.end = std::max(timing.end, start + least_);
  return timing;
}

void GraphPricer::commit(Ticks early) {
  carry_.at.resize(after_.at.size(), after_.at.empty() ? 0 : -(Ticks{1} << 61));
  for (size_t i = 0; i < carry_.at.size(); ++i) {
    if (carry_.at[i] != after_.at[i]) carry_.at[i] = after_.at[i] - early;
  }
}

Ticks GraphPricer::attention() const {
  return std::accumulate(attention_.begin(), attention_.end(), Ticks{0});
}

Ticks GraphPricer::offloaded() const {
  Ticks last = -(Ticks{1} << 61);
  for (const RetrievalLayerOps& ops : step_.layers) {
    if (ops.offload_done == kNoPort || carry_.at.empty()) continue;
    const size_t streams = step_.graph.streams().size();
    last = std::max(last, carry_.at[streams + static_cast<size_t>(ops.offload_done)]);
  }
  return last;
}

void GraphPricer::move_base(Ticks by) {
  for (Ticks& at : carry_.at) at = std::max(at - by, -(Ticks{1} << 61));
}

}  // namespace kvtwin::sim
