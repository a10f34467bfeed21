// GraphPricer prices a step that moves pages, through its step graph
// (docs/design/step-graph-and-prices.md#step-graph). The cost model prices each operation of the model,
// RetrievalCost prices what retrieval adds, and an OutcomeSource says how often.
//
// The graph is that of one GPU of the engine. All its GPUs are alike, and counts are divided among them. The
// graph is evaluated as if its PCIe link were free.

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
  bool drops = false;     // prompts are compressed at their end, and then offloaded
  uint32_t kv_heads = 1;  // of the model; each GPU has prices->kv_heads() of them
};

class GraphPricer {
 public:
  // Both must outlive this. REQUIRES: cost->ops() knows its parts, unless everything is read.
  GraphPricer(const GraphPricerSpec& spec, CostModel* cost, const RetrievalCost* prices);

  // Sets the step to be priced. `shape` is that of this single step; the contexts of `entries` are those of
  // the launch's first step, `offset` steps earlier.
  void prepare(const StepShape& shape, std::span<const PlanEntry> entries, uint32_t offset,
               std::span<const LayerRecall> recalls);
  // The key of the step's CUDA graph.
  GraphShapes::Key graph_key(const StepShape& shape, std::span<const PlanEntry> entries, uint32_t offset) {
    return GraphShapes::key(reading_shape(shape, entries, offset));
  }
  // Timing of the prepared step if its links are free, given what earlier steps left in progress. Does not
  // change what is carried over.
  StepTiming evaluate(Ticks start);
  // The step ran as the last evaluate() said; what it left in progress ends `early` sooner (negative host
  // time).
  void commit(Ticks early);
  // The step ran otherwise, and nothing that it left is still in progress.
  void forget_carried() { carry_.at.clear(); }
  // The zero of the clock moved by `by` (StepClock).
  void move_base(Ticks by);

  // Device time of the model's own operations in the prepared step, by evidence.
  const std::array<Ticks, kEvidenceKinds>& by_evidence() const { return by_evidence_; }
  // Of this, the time that scorers add.
  const CompressionTicks& compression() const { return compression_; }
  std::span<const uint32_t> outcomes() const { return outcomes_; }
  std::span<const Ticks> carried() const { return carry_.at; }
  // Device time of attention in the prepared step, over all layers, without the effect of recalled pages.
  Ticks attention() const;
  // When everything that committed steps copy to the host has arrived there.
  Ticks offloaded() const;
  StepGraph* graph() { return &step_.graph; }
  // The prepared step as it was given to the cost model: decodes read the pages that they chose. Its spans
  // point into those given to prepare().
  const StepShape& reads() const { return reads_; }
  const RetrievalStep& step() const { return step_; }

 private:
  struct Load {                  // decodes of the step
    uint32_t requests = 0;       // requests that retrieve
    uint64_t tokens = 0;         // tokens of their contexts
    uint64_t pages = 0;          // pages of their contexts
    uint64_t tokens_chosen = 0;  // selectable tokens that they read
    uint64_t filled = 0;         // pages that the step completes, chunks included
  };
  uint64_t pages_filled(const StepShape& shape, std::span<const PlanEntry> entries, uint32_t offset) const;
  StepShape reading_shape(const StepShape& shape, std::span<const PlanEntry> entries, uint32_t offset);
  void set_model_costs(const StepShape& reads, const StepShape& all);
  void spread(const std::vector<StepPart>& parts, std::vector<Ticks>* query, std::vector<Ticks>* append,
              std::vector<Ticks>* attention, std::vector<Ticks>* rest, std::vector<Ticks>* all_reduce);
  void set_compression_costs(const std::vector<StepPart>& parts);
  void set_retrieval_costs();
  void set_outcomes(std::span<const LayerRecall> recalls);
  uint32_t fraction_of_gpu(uint32_t pages) const;  // `pages` is over all heads; rounded up

  const GraphPricerSpec spec_;
  CostModel* const cost_;
  const RetrievalCost* const prices_;
  RetrievalStep step_;
  StepCarry carry_, after_;
  Load load_;
  StepShape reads_;
  Ticks least_ = 0;  // StepCost::least
  std::vector<uint32_t> outcomes_;
  std::array<Ticks, kEvidenceKinds> by_evidence_{};
  CompressionTicks compression_{};
  std::vector<Ticks> query_, append_, attention_, rest_, all_reduce_, attention_all_;  // by layer
};

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_CLOCK_GRAPH_PRICER_H_
