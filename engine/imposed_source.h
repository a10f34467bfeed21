// ImposedSource has an engine perform what somebody else says that the data decided (DESIGN 3, "imposed"): a
// record of another run, or a behaviour model. So an engine on random weights does the work of a trained
// model's, and a run that was recorded in one world is repeated in another, decision by decision.
//
//   kept     heads keep as many cells as they are told, by their own scores; where cells keep their places,
//            the very cells
//   recalls  as many KV heads as are told are corrected, and the slots change as many pages as are told, the
//            best that are not there for the worst that are
//
// Everything is still computed as ever: scores, choices, what counting takes. Tokens are never imposed, nor
// is what a source does not say. What cannot be met (more pages than there are) is met as far as it can be;
// the engine answers what it did, and it is counted.

#ifndef KVTWIN_ENGINE_IMPOSED_SOURCE_H_
#define KVTWIN_ENGINE_IMPOSED_SOURCE_H_

#include <cstdint>

#include "engine/outcome_source.h"

namespace kvtwin {

// An engine that can be told what its values decide.
class ImposableSource : public OutcomeSource {
 public:
  // Of the next single step, instead of what it would find: recalls (none: as it finds) and, by call, what
  // is kept (none: likewise). Null: nothing. `given` stays valid until that step() has returned.
  virtual void impose(const StepValues* given) = 0;
};

// What `given` says is kept of `call`; null: nothing.
const CellsKept* imposed_kept(const StepValues* given, CallId call);
// How many of `candidates` cells stay besides `fixed` ones that do anyway, so that `left` are left.
uint32_t imposed_keep(uint32_t left, uint32_t fixed, uint32_t candidates);

class ImposedSource final : public OutcomeSource {
 public:
  // Both must outlive this.
  ImposedSource(OutcomeSource* says, ImposableSource* engine) : says_(*says), engine_(*engine) {}

  // Asks what is to be imposed of the step that is performed next: for worlds that measure step(). Else
  // step() asks itself.
  void prepare(const LaunchStep& launch, uint32_t offset);
  void step(const LaunchStep& launch, uint32_t offset, StepValues* values) override;
  void told(const Command& command) override;

  struct Counts {
    uint64_t imposed = 0;
    uint64_t met = 0;  // of these: the engine's answer is what it was told
  };
  const Counts& kept() const { return kept_; }        // compressions
  const Counts& recalls() const { return recalls_; }  // steps

 private:
  void count(const StepValues& answer);

  OutcomeSource& says_;
  ImposableSource& engine_;
  StepValues given_;
  bool prepared_ = false;
  Counts kept_, recalls_;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_IMPOSED_SOURCE_H_
