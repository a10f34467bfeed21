// When do the steps of one engine end? StepClock prices launches with the cost model, step by step and
// no further than somebody looks, and answers them as backend.h says.
//
// Ends are sums in Ticks (1/1024 ns) that run on from launch to launch, and are rounded (down) to
// nanoseconds only when read. So a coalesced launch and the same steps launched one by one end at the same
// instants, whatever the pattern of folding and interruption.
//
// For step n of an engine with d = steps_in_flight_max:
//   submitted[n] = max(instant of its launch, end[n - d])        when the policy could plan it
//   start[n]     = max(end[n - 1], submitted[n])
//   end[n]       = start[n] + max(least[n], host[n] + device[n])
// host[n] is what calibration on a machine with the same d finds beside its kernel tables: time in which
// the device waits for the host, or less than nothing where the tables were measured launch by launch and
// the engine replays graphs. It is not hidden behind device time a second time.
//
// With an OutcomeSource (values decide something) or a GraphPricer (the step moves pages itself) the clock is
// *lazy*: a step is asked about and priced when it starts for certain, never ahead, so that nothing has to be
// taken back. device[n] is then what the step's graph takes, started when host[n] is over. A StepRunner may
// run that graph piece by piece instead; the step's end is known when the runner calls finish().

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

// Of one engine, over the steps that were answered.
struct StepTotals {
  uint64_t steps = 0;
  Ticks host_exposed = 0;                           // the device waited for the host
  std::array<Ticks, kEvidenceKinds> by_evidence{};  // device time; sums to all of it
  // Of steps that move pages themselves.
  Ticks exposed = 0, hidden = 0;
  uint64_t bytes_in = 0, bytes_out = 0;
  uint64_t expanded = 0;                   // steps that were run piece by piece
  uint64_t pages_now = 0, pages_next = 0;  // recalled before attention | for the next step; of one KV head
  uint64_t heads_corrected = 0;
  uint64_t heads_chose = 0, pages_chosen = 0;  // what rates are shares of (LayerRecall)
  // KV entries that decodes read, of a mean head; and as many as balanced attention would read in the same
  // time. Counted where a partition is priced.
  uint64_t entries_read = 0, entries_waited = 0;
  // What scorers and compressions took of device time, by CompressionPart; what steps that computed prompts
  // took, host time included, and of that the former.
  CompressionTicks compression{};
  Ticks prompts = 0, prompts_compression = 0;
  uint64_t compressions = 0;
};

// Runs steps piece by piece where they meet others on shared links (sim_backend.cc).
class StepRunner {
 public:
  virtual ~StepRunner() = default;
  // A prepared step that starts at `start_ns` of the run and takes `took` if it has its links for itself.
  struct Offer {
    EngineId engine{};
    double start_ns = 0;
    StepTiming alone;
    Ticks took = 0;
    GraphPricer* pricer = nullptr;
    Instant base{};  // what pricer->carried() counts from
  };
  // True: the runner runs it and will request finish(). Nothing may be called back before this returns.
  virtual bool take(const Offer& offer) = 0;
};

// Is shown each step that is priced through its graph, before the next one changes the graph.
class StepWatcher {
 public:
  virtual ~StepWatcher() = default;
  struct Seen {
    EngineId engine{};
    StepId step{};
    Instant base{};  // what Ticks count from
    Ticks begins = 0;
    StepTiming alone;  // as if it had its links for itself
    std::span<const PlanEntry> entries;
    uint32_t offset = 0;  // contexts of entries are so many tokens behind
    size_t compressions = 0;
    GraphPricer* pricer = nullptr;
  };
  virtual void priced(const Seen& step) = 0;
};

class StepClock {
 public:
  // REQUIRES: steps_in_flight_max is 1 or 2. `cost` must outlive this.
  // `first_step_host`: what the engine's very first step costs more (compilation, first use of kernels).
  StepClock(EngineId engine, CostModel* cost, uint32_t steps_in_flight_max, Duration first_step_host = {});
  // All may be null, and must outlive this. Bytes of a step are those of `gpus` GPUs like the pricer's.
  void extend(OutcomeSource* source, GraphPricer* pricer, uint32_t gpus, StepRunner* runner);
  // Null: nobody watches.
  void watch(StepWatcher* watcher) { watcher_ = watcher; }
  // How attention is cut, where heads differ in length; must outlive this. Not with a pricer.
  void set_partition(PartitionPrice* partition) { partition_ = partition; }
  // Whether decodes of requests with dropped slots read KV entry by KV entry (StepShape::listed_decodes).
  void set_lists_entries(bool lists_entries) { lists_entries_ = lists_entries; }
  // Whether steps must not be looked at before they start: see above.
  bool lazy() const { return source_ != nullptr || pricer_ != nullptr; }

  void launch(Instant now, const LaunchStep& command);

  // The next answer is due at `at` when `known`, and not before `at` otherwise. Idle: kNever, known.
  struct NextEvent {
    Instant at = kNever;
    bool known = true;
  };
  NextEvent next_event() const;
  // Looks further ahead, until the next answer is known or lies beyond `limit`; at most kPriceBlock steps.
  void look_ahead(Instant limit);

  // The next answer. REQUIRES: outlook().known and not idle. Its spans are valid until the next call.
  StepDone take();
  // Backend::interrupt at `now`: true with the next piece of what has ended, false when there is none
  // and the rest was cut short.
  bool interrupt(Instant now, StepDone* ended);
  // The step that a StepRunner took has run: it took so long, and stood still for transfers so long.
  void finish(Ticks took, Ticks exposed);
  bool running_delegated() const { return delegated_step_.has_value(); }
  // When what the answered steps copy to the host has arrived there: a copy of it begins no earlier.
  Instant offloaded_at() const { return {instant_of(offloaded_ + kTicksPerNs - 1)}; }
  bool idle() const { return launches_.empty(); }

  const StepTotals& totals() const { return totals_; }

 private:
  static constexpr uint32_t kPriceBlock = 64;
  static constexpr size_t kHistory = 2;  // answered steps that later ones still refer to

  struct Launch {
    StepId first{};       // of the steps not yet answered
    uint32_t steps = 0;   // not yet answered
    uint32_t priced = 0;  // of these
    uint32_t answered = 0;
    Ticks submitted = 0;
    bool one_by_one = false;  // interrupted
    StepShape shape;          // of the next step to be priced; its chunks are `chunks`
    std::vector<ChunkShape> chunks;
    std::vector<CompressionShape> compressions;
    OwnedLaunch command;       // when lazy
    uint32_t growing = 0;      // entries that read one more KV entry in each step of a stretch
    uint32_t growing_max = 0;  // the longest of them, in the next step to be priced
    // Where a partition is priced: requests that decode, and its last answer.
    std::vector<DecodeLength> decodes;
    PartitionPrice::Answer slowdown{.slowdown_q16 = 0, .steps = 0};
  };
  // Times since base_. All but the first two are sums over all steps so far, so that stretches can be
  // subtracted.
  struct Priced {
    GraphShapes::Key graph_key;
    uint32_t held = 0;          // by the largest compression so far
    uint32_t last_started = 0;  // as of this step: rows
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
  // A step that a StepRunner runs.
  struct DelegatedStep {
    Ticks start = 0;  // when host time is over
    Ticks host = 0;
    StepTiming alone;
  };
  // What values decided in a step and the answer must tell.
  struct PendingResult {
    uint64_t step = 0;
    std::vector<CompressionOutcome> retained;  // their spans point into the next two
    std::vector<uint32_t> retained_counts;
    std::vector<uint64_t> retained_live;
    std::vector<RequestId> eos;
  };

  bool price_next();  // false when every launched step is priced, or nothing may be
  Launch* next_launch();
  void recall(Launch* launch, Ticks start);
  void remember(const StepShape& shape, Ticks begin, Ticks end);
  uint32_t last_started() const;
  void ask(const Launch& launch);
  void add_priced(Ticks end, Ticks host, const StepTiming& timing,
                  const std::array<Ticks, kEvidenceKinds>& by_evidence);
  void add_compression(const CompressionTicks& ticks, Ticks took, bool prompts);
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
  DataOutcomes outcomes_;              // of the step that is priced
  std::deque<PendingResult> pending_;  // not answered yet
  PendingResult telling_;              // what the last answer points to
  std::optional<DelegatedStep> delegated_step_;
  bool started_ = false;
  Instant base_{};
  std::deque<Launch> launches_;
  RecentLoad load_;
  BusyPeriod busy_period_;
  GraphShapes graphs_;          // of answered steps
  GraphShapes::Key graph_key_;  // of the step that is priced
  std::vector<Priced> priced_;  // [0, head_) answered, at least kHistory of them; then the unanswered
  size_t head_ = kHistory;
  Ticks offloaded_ = -(Ticks{1} << 61);
  std::vector<Instant> ends_;  // of the last answer
  StepTotals totals_;
};

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_CLOCK_STEP_CLOCK_H_
