// RecordedSource answers as another run's outcomes were (engine/recorder/recorder_outcomes.h): what its
// values decided, or what a model of them drew.
//
// Recalls are taken where the step is the very same one (number and entries); what a compression keeps, where
// the same request (RequestKey) comes to the same place on the same attempt. So decisions that are equal so
// far stay equal, and the digests of the two runs are one. What the record does not know, another source
// answers, and it is counted: such a run says how much of it was recorded.

#ifndef KVTWIN_SIM_BEHAVIOUR_BEHAVIOUR_RECORDED_H_
#define KVTWIN_SIM_BEHAVIOUR_BEHAVIOUR_RECORDED_H_

#include <cstdint>
#include <vector>

#include "engine/recorder/recorder_outcomes.h"

namespace kvtwin::sim {

// Which of the outcomes are taken from the record.
struct RecordedParts {
  bool retained = false;
  bool recalls = false;
};

class RecordedSource final : public OutcomeSource {
 public:
  // Of engine number `engine`. `record` and `others` must outlive this; `others` may be null where nothing
  // else can answer.
  RecordedSource(const RecordedOutcomes* record, size_t engine, RecordedParts parts, OutcomeSource* others)
      : record_(record->engines[engine]), numbers_(record->numbers), parts_(parts), others_(others) {}

  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override;
  void notify(const Command& command) override;

  struct Counts {
    uint64_t asked = 0;
    uint64_t found = 0;
  };
  const Counts& retained() const { return retained_; }  // compressions
  const Counts& recalls() const { return recalls_; }    // steps that recall

 private:
  void replace_retained(const LaunchStep& launch, DataOutcomes* values);
  static void replace_eos(const LaunchStep& launch, const std::vector<RequestKey>& ended,
                          DataOutcomes* values);

  const RecordedOutcomes::Engine& record_;
  const RequestNumbers& numbers_;
  const RecordedParts parts_;
  OutcomeSource* const others_;
  Attempts attempts_;
  DataOutcomes given_;
  Counts retained_, recalls_;
};

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_BEHAVIOUR_BEHAVIOUR_RECORDED_H_
