// GraphPricer prices a step that does more than the cost model knows, through its step graph
// (docs/design/step-graph-and-prices.md#step-graph): the cost model says what each operation of the model
// takes, RetrievalCost what retrieval adds, and an OutcomeSource how often.
//
// The graph is that of one GPU of the engine; all its GPUs are alike, and counts are shared out among them.
// Evaluated, the graph has its PCIe link for itself; what the step would ask of shared links is in demand().

#ifndef KVTWIN_SIM_CLOCK_GRAPH_PRICER_H_
#define KVTWIN_SIM_CLOCK_GRAPH_PRICER_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/commands.h"
#include "engine/runtime/outcome_source.h"
#include "engine/steps/step_graph_retrieval.h"
#include "models/cost/cost_model.h"
#include "models/cost/graph_shapes.h"
#include "models/cost/retrieval_cost.h"

namespace kvtwin::sim {

struct GraphPricerSpec {
  RetrievalStepSpec graph;
  RetrievalSpec policy;
  uint32_t page_tokens = 32;
  bool drops = false;     // a prompt is cut when it is complete, and what is left is offloaded then
  uint32_t kv_heads = 1;  // of the model; each GPU has prices->kv_heads() of them
};

class GraphPricer {
 public:
  // Both must outlive this. REQUIRES: cost->ops() knows its parts, unless the method is kAll.
  GraphPricer(const GraphPricerSpec& spec, CostModel* cost, const RetrievalCost* prices);

  // The step to be priced: `shape` is its launch's, of this single step; entries' contexts are `offset`
  // behind.
  void prepare(const StepShape& shape, std::span<const PlanEntry> entries, uint32_t offset,
               std::span<const LayerRecall> recalls);
  // What its graph would be of, as the engine tells graphs apart.
  GraphShapes::Key graph_key(const StepShape& shape, std::span<const PlanEntry> entries, uint32_t offset) {
    return GraphShapes::key(reading_shape(shape, entries, offset));
  }
  // When it ends if nobody else uses its links, from what earlier steps left. Changes nothing that is
  // carried.
  StepTiming evaluate(Ticks start);
  // It ran as the last evaluate() said, and what it left ended `early` sooner (host time below zero).
  void commit(Ticks early);
  // It ran somehow else, and everything it left has ended.
  void forget_carried() { carry_.at.clear(); }
  // The clock's zero moved by so much (StepClock).
  void move_base(Ticks by);

  // Of the prepared step: device time of the model's own operations, by evidence.
  const std::array<Ticks, kEvidenceKinds>& by_evidence() const { return by_evidence_; }
  // Of that, what scorers add.
  const CompressionTicks& compression() const { return compression_; }
  std::span<const uint32_t> outcomes() const { return outcomes_; }
  std::span<const Ticks> carried() const { return carry_.at; }
  // Of the prepared step, without what pages add to it: device time of attention, over all layers.
  Ticks attention() const;
  // When all that committed steps copy to the host has arrived there.
  Ticks offloaded() const;
  StepGraph* graph() { return &step_.graph; }
  // The prepared step as the cost model was asked for it: decodes read what they chose. Its lists are those
  // that prepare() was given.
  const StepShape& reads() const { return reads_; }
  const RetrievalStep& step() const { return step_; }

 private:
  struct Load {                  // of decodes
    uint32_t requests = 0;       // that retrieve
    uint64_t tokens = 0;         // of their context
    uint64_t pages = 0;          // likewise
    uint64_t tokens_chosen = 0;  // selectable tokens that they read
    uint64_t filled = 0;         // pages that the step completes, chunks included
  };
  uint64_t pages_filled(const StepShape& shape, std::span<const PlanEntry> entries, uint32_t offset) const;
  StepShape reading_shape(const StepShape& shape, std::span<const PlanEntry> entries, uint32_t offset);
  void set_model_costs(const StepShape& reads, const StepShape& all);
  void spread(const std::vector<StepPart>& parts, std::vector<Ticks>* query, std::vector<Ticks>* append,
              std::vector<Ticks>* attention, std::vector<Ticks>* rest);
  void set_compression_costs(const std::vector<StepPart>& parts);
  void set_retrieval_costs();
  void set_outcomes(std::span<const LayerRecall> recalls);
  uint32_t fraction_of_gpu(uint32_t pages) const;  // of all heads' pages, rounded up

  const GraphPricerSpec spec_;
  CostModel* const cost_;
  const RetrievalCost* const prices_;
  RetrievalStep step_;
  StepCarry carry_, after_;
  Load load_;
  StepShape reads_;
  Ticks least_ = 0;  // StepCost
  std::vector<uint32_t> outcomes_;
  std::array<Ticks, kEvidenceKinds> by_evidence_{};
  CompressionTicks compression_{};
  std::vector<Ticks> query_, append_, attention_, rest_, attention_all_;  // by layer
};

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_CLOCK_GRAPH_PRICER_H_
