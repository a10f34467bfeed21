// RecordedSource answers with the outcomes of an earlier run (engine/recorder/recorder_outcomes.h), whether
// values decided them or a model drew them.
//
// Recalls are taken from the recording where the step is the same (number and entries); retained counts,
// where the same request (RequestKey) reaches the same position on the same attempt. So as long as decisions
// are equal they stay equal, and both runs have the same digest. Another source answers what the recording
// does not contain, and the numbers are counted, so that a run reports how much of it was recorded.

#ifndef KVTWIN_SIM_BEHAVIOUR_BEHAVIOUR_RECORDED_H_
#define KVTWIN_SIM_BEHAVIOUR_BEHAVIOUR_RECORDED_H_

#include <cstdint>
#include <vector>

#include "engine/recorder/recorder_outcomes.h"

namespace kvtwin::sim {

// Which outcomes are taken from the recording.
struct RecordedParts {
  bool retained = false;
  bool recalls = false;
};

class RecordedSource final : public OutcomeSource {
 public:
  // For engine number `engine`. `record` and `others` must outlive this; `others` may be null where nothing
  // else can answer.
  RecordedSource(const RecordedOutcomes* record, size_t engine, RecordedParts parts, OutcomeSource* others)
      : record_(record->engines[engine]), numbers_(record->numbers), parts_(parts), others_(others) {}

  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override;
  void notify(const Command& command) override;

  struct Counts {
    uint64_t asked = 0;
    uint64_t found = 0;
  };
  const Counts& retained() const { return retained_; }  // of compressions
  const Counts& recalls() const { return recalls_; }    // of steps that recall

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
