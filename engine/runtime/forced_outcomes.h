// ForcedOutcomes makes an engine follow externally supplied outcomes instead of its own
// (docs/design/backend-interface-and-digest.md#outcomes): those of a recorded run, or of a behaviour model.
// An engine with random weights then does the work of one with trained weights, and a run recorded in one
// backend can be repeated in another, decision by decision.
//
//   retained  each head retains the given number of KV entries, chosen by its own scores; where KV entries
//             keep their slots, exactly the given ones
//   recalls   the given number of KV heads is corrected, and the given number of pages is recalled: the best
//             absent pages replace the worst resident ones
//
// The engine still computes everything: scores, selections and the counts of dynamic budgets. Tokens are
// never forced, nor is an outcome that the source does not report. A forced outcome that cannot be met (more
// pages than there are) is met as far as possible; the engine reports what it did, and ForcedOutcomes counts
// it.

#ifndef KVTWIN_ENGINE_RUNTIME_FORCED_OUTCOMES_H_
#define KVTWIN_ENGINE_RUNTIME_FORCED_OUTCOMES_H_

#include <cstdint>

#include "engine/runtime/outcome_source.h"

namespace kvtwin {

// An OutcomeSource whose outcomes can be forced.
class ForcibleSource : public OutcomeSource {
 public:
  // Forces the outcomes of the next single step: recalls (empty: the engine's own) and retained KV entries by
  // request (absent: the engine's own). Null: nothing is forced. `given` stays valid until that step() has
  // returned.
  virtual void force_outcomes(const DataOutcomes* given) = 0;
};

// The retained KV entries that `given` forces for `request`; null: none.
const CompressionOutcome* forced_retained(const DataOutcomes* given, RequestId request);

class ForcedOutcomes final : public OutcomeSource {
 public:
  // Both must outlive this.
  ForcedOutcomes(OutcomeSource* source, ForcibleSource* engine) : source_(*source), engine_(*engine) {}

  // Queries the source for the step that is performed next. Backends that measure step() call this first;
  // otherwise step() does.
  void prepare(const LaunchStep& launch, uint32_t offset);
  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override;
  void notify(const Command& command) override;

  struct Counts {
    uint64_t forced_outcome = 0;
    uint64_t met = 0;  // the engine's answer equals what was forced
  };
  const Counts& retained() const { return retained_; }  // counts compressions
  const Counts& recalls() const { return recalls_; }    // counts steps

 private:
  void count(const DataOutcomes& answer);

  OutcomeSource& source_;
  ForcibleSource& engine_;
  DataOutcomes given_;
  bool prepared_ = false;
  Counts retained_, recalls_;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_RUNTIME_FORCED_OUTCOMES_H_
