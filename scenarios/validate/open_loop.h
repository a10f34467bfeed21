// OpenLoop prices every step and every copy of a recorded run and puts what it took beside it: the error of
// the cost model alone, without what it would do to later decisions.
//
// It watches a replay (engine/recorder/recorder_replay.h), which launches what was launched then. A step took
// from the end of the one before, or from its launch if that came later, to its own end; a copy likewise,
// from the end of the one before in its direction. Steps that recall pages themselves are priced through
// their graph, with the recalls that were recorded, from where the step before really ended.

#ifndef KVTWIN_SCENARIOS_VALIDATE_OPEN_LOOP_H_
#define KVTWIN_SCENARIOS_VALIDATE_OPEN_LOOP_H_

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "engine/recorder/recorder_log.h"
#include "engine/recorder/recorder_outcomes.h"
#include "models/cost/cost_model.h"
#include "models/cost/graph_shapes.h"
#include "models/cost/recent_load.h"
#include "models/cost_tables/method_cost.h"
#include "sim/clock/graph_pricer.h"

namespace kvtwin {

// In us.
struct PricedStep {
  double measured = 0, predicted = 0;
  double low = 0, high = 0;  // where the model expects it
  bool chunks = false;       // prompts are computed in it
  uint64_t step = 0;
  uint32_t padded = 0, samples = 0;
  uint32_t longest = 0;                     // context among its decodes
  MethodCounts counts{};                    // what it does
  double dense = 0;                         // of `predicted`: what it would take if no method added anything
  double attention = 0;                     // of `dense`, where steps recall pages
  Evidence evidence = Evidence::kMeasured;  // the worst
  // Of StepShape.
  GraphUse graph = GraphUse::kReplayed;
  bool behind_many = false;
  uint32_t calm_ms = kCalm;
  double error() const { return predicted / measured - 1; }
};

struct PricedCopy {
  double measured = 0, predicted = 0;
  bool to_gpu = false;
  uint64_t pages = 0;
  Instant ended{};
  double error() const { return predicted / measured - 1; }
};

// What the simulated node takes for a copy: a time of its own and its bytes at the link's rate, or at half of
// what both directions reach together while the other one is busy.
struct CopyPrice {
  double in_overhead_us = 0, out_overhead_us = 0;
  double in_bytes_per_us = 1, out_bytes_per_us = 1, both_bytes_per_us = 2;
  double page_bytes = 0;
};

// What prices steps beside the cost model. All must outlive the OpenLoop.
struct StepPricing {
  CostModel* cost = nullptr;
  std::vector<sim::GraphPricer*> pricers{};    // by engine, where steps move pages; else empty
  const RecordedOutcomes* outcomes = nullptr;  // what values decided in the run; null: not recorded
  MethodFacts facts{};                         // method_counts()
  uint32_t page_tokens = 16;
  bool lists_entries = false;  // StepShape::listed_decodes
};

class OpenLoop final : public Observer {
 public:
  // `log` must outlive this.
  OpenLoop(const Log* log, const StepPricing& pricing, const CopyPrice& copies);

  void saw_command(Instant now, const Command& command) override;

  // Once the replay has ended: what the log has no end of is left out.
  std::vector<PricedStep> steps() const;
  std::vector<PricedCopy> copies() const;

 private:
  // What a single step was launched as, the last time that it was: a stretch may be cut short.
  struct Launched {
    Instant at{};
    StepShape shape;  // without its lists, which are:
    std::vector<ChunkShape> chunks;
    std::vector<CompressionShape> compressions;
    std::shared_ptr<const std::vector<PlanEntry>> entries;  // of the launch, which was `offset` steps before
    uint32_t offset = 0;
  };
  // A copy by engine; the instants it ran between.
  struct Copied {
    size_t engine = 0;
    Instant from{};
    PricedCopy priced;
  };
  void price(Instant now, const LaunchStep& launch);
  void price(Instant now, const StartTransfer& transfer);
  // What prices depend on during a step's plan.
  struct Memory {
    RecentLoad load;
    BusyPeriod busy_period;
    GraphShapes graphs;
    uint32_t most_held = 0;  // by a compression
  };
  double predicted(const Copied& copy) const;
  PricedStep priced(size_t engine, uint64_t step, Launched launched, Instant begun, Instant ended,
                    Memory* memory) const;
  Ticks graph_ticks(size_t engine, uint64_t step, const Launched& launched, Instant begun, Instant ended,
                    PricedStep* out) const;

  const Log& log_;
  const StepPricing pricing_;
  const CopyPrice copy_price_;
  std::vector<ChunkShape> chunks_;
  std::vector<std::map<uint64_t, Launched>> launched_;  // by engine, by step: what was launched last
  std::vector<std::array<Instant, 2>> copies_until_;    // by engine and direction
  std::vector<Copied> copies_;
};

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_VALIDATE_OPEN_LOOP_H_
