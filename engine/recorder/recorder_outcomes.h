// OutcomeLog writes down what the data decided in a run, step by step, whoever said it: values or a model of
// them. A simulated run can answer from it instead of a model (sim/behaviour/behaviour_recorded.h;
// docs/design/backend-interface-and-digest.md#interface, "recorded").
//
// Beside the log of events (recorder.h) and not part of it: recalls never cross the backend interface, and
// outcomes are worth having where the decisions of the run that asks are others than those of the run that
// told.

#ifndef KVTWIN_ENGINE_RECORDER_RECORDER_OUTCOMES_H_
#define KVTWIN_ENGINE_RECORDER_RECORDER_OUTCOMES_H_

#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "engine/runtime/outcome_source.h"

namespace kvtwin {

struct Log;

// The numbers by which a file of outcomes names requests. Files of schema 1 use the RequestIds of the
// recorded run, which only that run's log can turn into keys; later files use the key itself.
class RequestNumbers {
 public:
  RequestNumbers() = default;
  explicit RequestNumbers(const Log& log);

  uint64_t of(const RequestKey& key) const;
  // The request that `log` names `request`; none if it names no such request.
  std::optional<RequestKey> key(RequestId request) const;

 private:
  bool from_log_ = false;
  std::map<RequestKey, RequestId> requests_;
  std::map<RequestId, RequestKey> keys_;
};

// Recorded outcomes in memory. Recalls are sums over the requests of a step, so they hold for the very same
// step; what a compression retains belongs to one request.
struct RecordedOutcomes {
  struct Step {
    uint32_t plan = 0;  // plan_fingerprint()
    std::vector<LayerRecall> recalls;
    std::vector<RequestKey> eos;
  };
  struct RetainedAt {
    RequestKey key{};
    uint32_t attempt = 0;  // admissions, from 1
    uint32_t tokens = 0;   // Compression::end
    auto operator<=>(const RetainedAt&) const = default;
  };
  struct Retained {
    std::vector<uint32_t> counts;
    std::vector<uint64_t> live;
  };
  struct Engine {
    std::map<uint64_t, Step> steps;
    std::map<RetainedAt, Retained> retained;
    uint32_t layers = 0;  // of the recalls; 0: there are none
    uint32_t groups = 0;  // that counts were given for; 0: there are none
  };
  std::vector<Engine> engines;
  RequestNumbers numbers;  // that the fingerprints were computed with
};

// The entries of single step `launch.step + offset`.
uint32_t plan_fingerprint(const LaunchStep& launch, uint32_t offset, const RequestNumbers& numbers);

// How often each request was admitted, by what its entries say.
class Attempts {
 public:
  void saw(const LaunchStep& launch, uint32_t offset);
  void notify(const Command& command);
  uint32_t of(RequestId request) const;

 private:
  std::map<RequestId, uint32_t> attempts_;
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

// Reads the numbers of the run that the outcomes are of from its log.
using ReadNumbers = std::function<Result<RequestNumbers>()>;

// `name` is for messages. `numbers` is called for files of schema 1 only. Fails on anything that is not a
// whole file of outcomes.
Result<RecordedOutcomes> read_outcomes(const std::string& name, std::string_view bytes,
                                       const ReadNumbers& numbers);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_RECORDER_RECORDER_OUTCOMES_H_
