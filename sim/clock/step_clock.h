// StepClock computes when the steps of one engine end. It prices launches with the cost model, step by step
// and no further than needed, and answers them as backend.h specifies.
//
// Ends are running sums in Ticks (1/1024 ns), rounded down to nanoseconds only when read. A coalesced launch
// and the same steps launched one by one therefore end at the same instants, however steps are coalesced and
// interrupted.
//
// For step n of an engine with d = steps_in_flight_max:
//   submitted[n] = max(instant of its launch, end[n - d])        when the policy could plan it
//   start[n]     = max(end[n - 1], submitted[n])
//   end[n]       = start[n] + max(least[n], host[n] + device[n])
// host[n] comes from a calibration on a machine with the same d, in addition to its kernel tables: time in
// which the device waits for the host. It is negative where the tables were measured launch by launch and the
// engine replays graphs. It is not hidden by device time a second time.
//
// With an OutcomeSource (steps have outcomes) or a GraphPricer (steps move pages) the clock is *lazy*: a step
// is asked about and priced when it is certain to start, never ahead, so that nothing must be undone.
// device[n] is then the duration of the step's graph, which starts when host[n] is over. A StepRunner may
// execute that graph operation by operation instead; the step's end is known when the runner calls finish().

#ifndef KVTWIN_SIM_CLOCK_STEP_CLOCK_H_
#define KVTWIN_SIM_CLOCK_STEP_CLOCK_H_

#include <array>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "engine/base/commands.h"
#include "engine/base/events.h"
#include "engine/runtime/outcome_source.h"
#include "models/cost/cost_model.h"
#include "models/cost/graph_shapes.h"
#include "models/cost/recent_load.h"
#include "sim/clock/graph_pricer.h"
#include "sim/clock/owned_launch.h"
#include "sim/clock/partition_price.h"

namespace kvtwin::sim {

// Totals of one engine over the steps that were answered.
struct StepTotals {
  uint64_t steps = 0;
  Ticks host_exposed = 0;                           // the device waited for the host
  std::array<Ticks, kEvidenceKinds> by_evidence{};  // device time; sums to all of it
  // Totals of steps that move pages.
  Ticks exposed = 0, hidden = 0;
  uint64_t bytes_in = 0, bytes_out = 0;
  uint64_t expanded = 0;  // steps that were executed operation by operation
  uint64_t pages_now = 0,
           pages_next = 0;  // pages of one KV head, recalled before attention | for the next step
  uint64_t heads_corrected = 0;
  uint64_t heads_chose = 0, pages_chosen = 0;  // denominators of the rates (LayerRecall)
  // KV entries that decodes read, of a mean head, and as many as equally divided attention would read in the
  // same time. Counted where a partition is priced.
  uint64_t entries_read = 0, entries_waited = 0;
  // `compression`: device time of scorers and compressions, by CompressionPart. `prompts`: time of steps that
  // computed prompts, host time included. `prompts_compression`: time of `compression` in those steps.
  CompressionTicks compression{};
  Ticks prompts = 0, prompts_compression = 0;
  uint64_t compressions = 0;
};

// Executes steps operation by operation where they compete for shared links (sim_backend.cc).
class StepRunner {
 public:
  virtual ~StepRunner() = default;
  // A prepared step that starts at `start_ns` of the run and takes `took` if its links are free.
  struct Offer {
    EngineId engine{};
    double start_ns = 0;
    StepTiming alone;
    Ticks took = 0;
    GraphPricer* pricer = nullptr;
    Instant base{};  // zero of pricer->carried()
  };
  // True: the runner executes the step and will call finish(). It may not call back before this returns.
  virtual bool take(const Offer& offer) = 0;
};

// Sees each step that is priced through its graph, before the next one changes the graph.
class StepWatcher {
 public:
  virtual ~StepWatcher() = default;
  struct Seen {
    EngineId engine{};
    StepId step{};
    Instant base{};  // zero of the Ticks
    Ticks begins = 0;
    StepTiming alone;  // as if its links were free
    std::span<const PlanEntry> entries;
    uint32_t offset = 0;  // the contexts of `entries` are those of `offset` steps earlier
    size_t compressions = 0;
    GraphPricer* pricer = nullptr;
  };
  virtual void priced(const Seen& step) = 0;
};

class StepClock {
 public:
  // REQUIRES: steps_in_flight_max is 1 or 2. `cost` must outlive this.
  // `first_step_host`: additional time of the engine's first step (compilation, first use of kernels).
  StepClock(EngineId engine, CostModel* cost, uint32_t steps_in_flight_max, Duration first_step_host = {});
  // All may be null, and must outlive this. The pricer counts bytes of one GPU; a step has `gpus` times as
  // many.
  void extend(OutcomeSource* source, GraphPricer* pricer, uint32_t gpus, StepRunner* runner);
  // Null: none.
  void watch(StepWatcher* watcher) { watcher_ = watcher; }
  // Splits of attention work, where heads differ in length; must outlive this. Not with a pricer.
  void set_partition(PartitionPrice* partition) { partition_ = partition; }
  // Whether decodes of requests with dropped slots read KV entry by KV entry (StepShape::listed_decodes).
  void set_lists_entries(bool lists_entries) { lists_entries_ = lists_entries; }
  // Whether steps are priced only when they start: see above.
  bool lazy() const { return source_ != nullptr || pricer_ != nullptr; }

  void launch(Instant now, const LaunchStep& command);

  // The next answer is due at `at` if `known`, else not before `at`. Idle: kNever, known.
  struct NextEvent {
    Instant at = kNever;
    bool known = true;
  };
  NextEvent next_event() const;
  // Prices further steps until the next answer is known or lies beyond `limit`; at most kPriceBlock steps.
  void look_ahead(Instant limit);

  // The next answer. REQUIRES: next_event().known and not idle. Its spans are valid until the next call.
  StepDone take();
  // Backend::interrupt at `now`: true with the next part of what has ended; false when there is none, and
  // then the remaining steps are cancelled.
  bool interrupt(Instant now, StepDone* ended);
  // The step that a StepRunner took has ended: it took `took`, of which compute waited `exposed` for
  // transfers.
  void finish(Ticks took, Ticks exposed);
  bool running_delegated() const { return delegated_step_.has_value(); }
  // When everything that the answered steps offload has arrived on the host: a copy of it starts no earlier.
  Instant offloaded_at() const { return {instant_of(offloaded_ + kTicksPerNs - 1)}; }
  bool idle() const { return launches_.empty(); }
  uint32_t decodes_launched() const { return decodes_launched_; }  // requests that the newest launch decodes

  const StepTotals& totals() const { return totals_; }

 private:
  static constexpr uint32_t kPriceBlock = 64;
  static constexpr size_t kHistory = 2;  // answered steps that later ones refer to

  struct Launch {
    StepId first{};       // first step not yet answered
    uint32_t steps = 0;   // steps not yet answered
    uint32_t priced = 0;  // of these, priced steps
    uint32_t answered = 0;
    Ticks submitted = 0;
    bool one_by_one = false;  // after an interruption
    StepShape shape;          // of the next step to be priced; its lists are
    std::vector<ChunkShape> chunks;
    std::vector<PassShape> passes;
    std::vector<CompressionShape> compressions;
    OwnedLaunch command;       // if the clock is lazy
    uint32_t growing = 0;      // entries that read one more KV entry in each coalesced step
    uint32_t growing_max = 0;  // the longest of them, in the next step to be priced
    // Where a partition is priced: the requests that decode, and its last answer.
    std::vector<DecodeLength> decodes;
    PartitionPrice::Answer slowdown{.slowdown_q16 = 0, .steps = 0};
  };
  // Times since base_. All fields after the first three are sums over all steps so far, so that a run of
  // steps is a difference.
  struct Priced {
    GraphShapes::Key graph_key;
    Ticks end = 0;
    Ticks offloaded = -(Ticks{1} << 61);
    Ticks host_exposed = 0;
    std::array<Ticks, kEvidenceKinds> by_evidence{};
    Ticks exposed = 0, hidden = 0;
    uint64_t bytes_in = 0, bytes_out = 0;
    uint64_t entries_read = 0, entries_waited = 0;
    CompressionTicks compression{};
    Ticks prompts = 0, prompts_compression = 0;
  };
  // A step that a StepRunner executes.
  struct DelegatedStep {
    Ticks start = 0;  // when host time is over
    Ticks host = 0;
    StepTiming alone;
  };
  // Outcomes of a step, to be reported in its answer.
  struct PendingResult {
    uint64_t step = 0;
    std::vector<CompressionOutcome> retained;  // their spans point into the next two
    std::vector<uint32_t> retained_counts;
    std::vector<uint64_t> retained_live;
    std::vector<RequestId> eos;
  };

  bool price_next();  // false if every launched step is priced, or none may be
  Launch* next_launch();
  void recall(Launch* launch, Ticks start);
  void remember(const StepShape& shape, Ticks begin, Ticks end, const RecentLoad::Parts& parts);
  void ask(const Launch& launch);
  void add_priced(Ticks end, Ticks host, const StepTiming& timing,
                  const std::array<Ticks, kEvidenceKinds>& by_evidence);
  void add_compression(const CompressionTicks& ticks, Ticks took, const Launch& launch);
  StepShape slowed(Launch* launch);
  void price_graph(Launch* launch, Ticks start, Ticks host);
  void complete(Ticks took, Ticks exposed);
  uint64_t step_with_eos(const Launch& launch) const;
  void tell(StepDone* done, uint64_t last);
  void cut(uint32_t keep);
  uint32_t answer_steps() const;
  StepDone answer(uint32_t steps);
  void forget_answered();
  void move_base(Instant now);
  Instant instant_of(Ticks ticks) const;
  size_t unanswered_priced() const { return priced_.size() - head_; }

  const EngineId engine_;
  CostModel* const cost_;
  const uint32_t in_flight_max_;
  const Ticks first_step_host_;
  OutcomeSource* source_ = nullptr;
  PartitionPrice* partition_ = nullptr;
  bool lists_entries_ = false;
  GraphPricer* pricer_ = nullptr;
  StepRunner* runner_ = nullptr;
  StepWatcher* watcher_ = nullptr;
  uint32_t gpus_ = 1;
  DataOutcomes outcomes_;              // of the step being priced
  std::deque<PendingResult> pending_;  // not answered yet
  PendingResult telling_;              // what the spans of the last answer point into
  std::optional<DelegatedStep> delegated_step_;
  bool started_ = false;
  Instant base_{};
  std::deque<Launch> launches_;
  RecentLoad load_;
  BusyPeriod busy_period_;
  uint32_t decodes_launched_ = 0;
  GraphShapes graphs_;          // of answered steps
  GraphShapes::Key graph_key_;  // of the step being priced
  std::vector<Priced> priced_;  // [0, head_) answered, at least kHistory of them; then the unanswered
  size_t head_ = kHistory;
  Ticks offloaded_ = -(Ticks{1} << 61);
  std::vector<Instant> ends_;  // of the last answer
  StepTotals totals_;
};

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_CLOCK_STEP_CLOCK_H_
