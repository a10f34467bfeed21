// OutcomeLog writes down what the data decided in a run, step by step, whoever said it: values or a model of
// them. A simulated run can answer from it instead of a model (sim/behaviour_recorded.h; DESIGN 3,
// "recorded").
//
// Beside the log of events (recorder.h) and not part of it: recalls never cross the seam, and outcomes are
// worth having where the decisions of the run that asks are others than those of the run that told.

#ifndef KVTWIN_ENGINE_RECORDER_OUTCOMES_H_
#define KVTWIN_ENGINE_RECORDER_OUTCOMES_H_

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/outcome_source.h"

namespace kvtwin {

// Recorded outcomes in memory. Recalls are sums over a step's calls, so they hold for the very same step;
// what is kept is one call's own. Calls are told apart by their numbers, which follow the order of arrival.
struct RecordedOutcomes {
  struct Step {
    uint32_t plan = 0;  // plan_fingerprint()
    std::vector<LayerRecall> recalls;
    std::vector<CallId> eos;
  };
  struct KeptAt {
    CallId call{};
    uint32_t attempt = 0;  // admissions, from 1
    uint32_t tokens = 0;   // Compression::end
    auto operator<=>(const KeptAt&) const = default;
  };
  struct Kept {
    std::vector<uint32_t> counts;
    std::vector<uint64_t> live;
  };
  struct Engine {
    std::map<uint64_t, Step> steps;
    std::map<KeptAt, Kept> kept;
    uint32_t layers = 0;  // of the recalls; 0: there are none
    uint32_t groups = 0;  // that counts were given for; 0: there are none
  };
  std::vector<Engine> engines;
};

// The entries of single step `launch.step + offset`.
uint32_t plan_fingerprint(const LaunchStep& launch, uint32_t offset);

// How often each call was admitted, by what its entries say.
class Attempts {
 public:
  void saw(const LaunchStep& launch, uint32_t offset);
  void told(const Command& command);
  uint32_t of(CallId call) const;

 private:
  std::map<CallId, uint32_t> attempts_;
};

class OutcomeLog {
 public:
  explicit OutcomeLog(uint32_t engines);
  ~OutcomeLog();

  // The source to ask instead of `source`: hands everything on and writes down the answers. This owns it.
  // Each engine has one source that is watched.
  OutcomeSource* watch(OutcomeSource* source);
  // Whether any source was watched.
  bool used() const;
  std::string finish();

 private:
  class Watch;
  struct State;
  std::unique_ptr<State> state_;
};

// `name` is for messages. Fails on anything that is not a whole file of outcomes.
Result<RecordedOutcomes> read_outcomes(const std::string& name, std::string_view bytes);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_RECORDER_OUTCOMES_H_
