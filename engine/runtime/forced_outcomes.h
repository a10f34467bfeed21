// ForcedOutcomes has an engine perform what somebody else says that the data decided
// (docs/design/backend-interface-and-digest.md#outcomes): a record of another run, or a behaviour model. So
// an engine on random weights does the work of a trained model's, and a run that was recorded in one backend
// is repeated in another, decision by decision.
//
//   kept     heads keep as many KV entries as they are told, by their own scores; where KV entries keep their
//   places,
//            the very KV entries
//   recalls  as many KV heads as are told are corrected, and the slots change as many pages as are told, the
//            best that are not there for the worst that are
//
// Everything is still computed as ever: scores, choices, what counting takes. Tokens are never forced, nor
// is what a source does not say. What cannot be met (more pages than there are) is met as far as it can be;
// the engine answers what it did, and it is counted.

#ifndef KVTWIN_ENGINE_RUNTIME_FORCED_OUTCOMES_H_
#define KVTWIN_ENGINE_RUNTIME_FORCED_OUTCOMES_H_

#include <cstdint>

#include "engine/runtime/outcome_source.h"

namespace kvtwin {

// An engine that can be told what its values decide.
class ForcibleSource : public OutcomeSource {
 public:
  // Of the next single step, instead of what it would find: recalls (none: as it finds) and, by request, what
  // is kept (none: likewise). Null: nothing. `given` stays valid until that step() has returned.
  virtual void force_outcomes(const DataOutcomes* given) = 0;
};

// What `given` says is kept of `request`; null: nothing.
const CompressionOutcome* forced_retained(const DataOutcomes* given, RequestId request);
// How many of `candidates` KV entries stay besides `fixed` ones that do anyway, so that `left` are left.
uint32_t forced_keep_count(uint32_t left, uint32_t fixed, uint32_t candidates);

class ForcedOutcomes final : public OutcomeSource {
 public:
  // Both must outlive this.
  ForcedOutcomes(OutcomeSource* source, ForcibleSource* engine) : source_(*source), engine_(*engine) {}

  // Asks what is to be forced of the step that is performed next: for backends that measure step(). Else
  // step() asks itself.
  void prepare(const LaunchStep& launch, uint32_t offset);
  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override;
  void notify(const Command& command) override;

  struct Counts {
    uint64_t forced_outcome = 0;
    uint64_t met = 0;  // of these: the engine's answer is what it was told
  };
  const Counts& retained() const { return retained_; }  // compressions
  const Counts& recalls() const { return recalls_; }    // steps

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
