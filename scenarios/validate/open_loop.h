// OpenLoop prices every step and every copy of a recorded run next to its measured time: the error of the
// cost model alone, without its effect on later decisions.
//
// It observes a replay (engine/recorder/recorder_replay.h), which launches the recorded steps. The time of a
// step runs from the end of the previous one, or from its launch if that is later, to its own end. The time
// of a copy runs from the end of the previous copy in its direction, or from its command. Steps that recall
// pages themselves are priced through their graph with the recorded recalls, from the recorded end of the
// previous step.

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
#include "models/cost/host_time.h"
#include "models/cost/recent_load.h"
#include "models/cost_tables/operation_cost.h"
#include "sim/clock/graph_pricer.h"

namespace kvtwin {

// Times in us.
struct PricedStep {
  double measured = 0, predicted = 0;
  double low = 0, high = 0;  // range in which the model expects the time
  double host = 0;           // part of `measured`: policy, client and driver, as recorded
  bool chunks = false;       // the step computes prompt tokens, or passes of probe tokens
  uint64_t step = 0;
  uint32_t padded = 0, samples = 0;
  uint32_t longest = 0;                     // longest context among its decodes
  FamilyCounts counts{};                    // operations of the method
  double dense = 0;                         // part of `predicted`: the time without the method's work
  double attention = 0;                     // part of `dense`, where steps recall pages
  Evidence evidence = Evidence::kMeasured;  // the weakest of its prices
  GraphUse graph = GraphUse::kReplayed;
  double error() const { return predicted / measured - 1; }
};

struct PricedCopy {
  double measured = 0, predicted = 0;
  bool to_gpu = false;
  uint64_t pages = 0;
  Instant ended{};
  double error() const { return predicted / measured - 1; }
};

// The simulated node's price of a copy: the host's time until it is submitted, an overhead, and the bytes at
// the link's rate, or at half of the rate of both directions together while the other direction is busy.
struct CopyPrice {
  HostPlanning planning{};
  double in_overhead_us = 0, out_overhead_us = 0;
  double in_bytes_per_us = 1, out_bytes_per_us = 1, both_bytes_per_us = 2;
  double page_bytes = 0;
};

// The inputs of step prices. All pointers must outlive the OpenLoop.
struct StepPricing {
  CostModel* cost = nullptr;
  std::vector<sim::GraphPricer*> pricers{};    // by engine, where steps move pages; else empty
  const RecordedOutcomes* outcomes = nullptr;  // the run's data-dependent outcomes; null: not recorded
  MethodWork work{};                           // for family_counts()
  bool lists_entries = false;                  // StepShape::listed_decodes
};

class OpenLoop final : public Observer {
 public:
  // `log` must outlive this.
  OpenLoop(const Log* log, const StepPricing& pricing, const CopyPrice& copies);

  void saw_command(Instant now, const Command& command) override;

  // Valid after the replay. Steps and copies whose end the log lacks are left out.
  std::vector<PricedStep> steps() const;
  std::vector<PricedCopy> copies() const;

 private:
  // The last launch of a single step; coalesced steps may be cut short and launched again.
  struct Launched {
    Instant at{};
    StepShape shape;  // without its lists, which are:
    std::vector<ChunkShape> chunks;
    std::vector<PassShape> passes;
    std::vector<CompressionShape> compressions;
    std::shared_ptr<const std::vector<PlanEntry>>
        entries;  // of the launch, which began `offset` steps earlier
    uint32_t offset = 0;
  };
  // A copy of an engine, the instant from which it is measured, and that at which the host has submitted it.
  struct Copied {
    size_t engine = 0;
    Instant from{}, submitted{};
    PricedCopy priced;
  };
  void price(Instant now, const LaunchStep& launch);
  void price(Instant now, const StartTransfer& transfer);
  // The state from earlier steps on which prices depend.
  struct Memory {
    RecentLoad load;
    BusyPeriod busy_period;
    GraphShapes graphs;
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
  std::vector<PassShape> passes_;
  std::vector<std::map<uint64_t, Launched>> launched_;  // by engine and step: the last launch
  std::vector<uint32_t> decodes_launched_;              // by engine: of the newest launch
  std::vector<std::array<Instant, 2>> copies_until_;    // by engine and direction
  std::vector<Copied> copies_;
};

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_VALIDATE_OPEN_LOOP_H_
