// OutcomeLog records the outcomes of a run, step by step, whether values or a model produced them. A
// simulated run can use the file instead of a model (sim/behaviour/behaviour_recorded.h;
// docs/design/backend-interface-and-digest.md#interface, "recorded").
//
// The file is separate from the log of events (recorder.h), for two reasons: recalls never cross the backend
// interface, and recorded outcomes are also useful to a run whose decisions differ from the recorded one's.

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

// RequestNumbers are the numbers that identify requests in a file of outcomes. Files of schema 1 use the
// RequestIds of the recorded run, which only the log of that run can turn into keys; later files use the key
// itself.
class RequestNumbers {
 public:
  RequestNumbers() = default;
  explicit RequestNumbers(const Log& log);

  uint64_t of(const RequestKey& key) const;
  // The key of the request that `log` calls `request`; nullopt: there is none.
  std::optional<RequestKey> key(RequestId request) const;

 private:
  bool from_log_ = false;
  std::map<RequestKey, RequestId> requests_;
  std::map<RequestId, RequestKey> keys_;
};

// Recorded outcomes in memory. Recalls are sums over the requests of a step, so they apply only to an equal
// step; what a compression retains belongs to one request.
struct RecordedOutcomes {
  struct Step {
    uint32_t plan = 0;  // plan_fingerprint()
    std::vector<LayerRecall> recalls;
    std::vector<RequestKey> eos;
  };
  struct RetainedAt {
    RequestKey key{};
    uint32_t attempt = 0;  // number of admissions, from 1
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
    uint32_t layers = 0;  // layers of the recalls; 0: no recalls
    uint32_t groups = 0;  // groups of the counts; 0: no counts
  };
  std::vector<Engine> engines;
  RequestNumbers numbers;  // used by the fingerprints
};

// Fingerprint of the entries of single step `launch.step + offset`.
uint32_t plan_fingerprint(const LaunchStep& launch, uint32_t offset, const RequestNumbers& numbers);

// Attempts counts the admissions of each request, from its entries.
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

  // Returns the source to use instead of `source`: it forwards everything and records the answers. OutcomeLog
  // owns it. At most one source per engine is watched.
  OutcomeSource* watch(OutcomeSource* source);
  // Whether any source was watched.
  bool used() const;
  std::string finish();

 private:
  class Watch;
  struct State;
  std::unique_ptr<State> state_;
};

// Reads the numbers from the log of the run that the outcomes belong to.
using ReadNumbers = std::function<Result<RequestNumbers>()>;

// `name` is for messages. `numbers` is called for files of schema 1 only. Fails unless `bytes` is a complete
// file of outcomes.
Result<RecordedOutcomes> read_outcomes(const std::string& name, std::string_view bytes,
                                       const ReadNumbers& numbers);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_RECORDER_RECORDER_OUTCOMES_H_
