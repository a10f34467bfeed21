// DecisionDigest is the fingerprint of an engine's decisions (docs/design/backend-interface-and-digest.md).
// It is a sum over records, each keyed by its step: records of steps planned ahead can be subtracted, and
// coalesced runs add the same records as uncoalesced ones.

#ifndef KVTWIN_ENGINE_KV_DECISION_DIGEST_H_
#define KVTWIN_ENGINE_KV_DECISION_DIGEST_H_

#include <cstdint>
#include <iterator>

#include "engine/base/prng.h"

namespace kvtwin {

// Follows further values with a fingerprint of those before. Cheaper than draw(), and weaker.
template <typename... Values>
constexpr uint64_t chained(uint64_t hash, Values... values) {
  ((hash = (hash ^ (hash >> 32)) * 0x9e3779b97f4a7c15u + static_cast<uint64_t>(values) + 1), ...);
  return hash;
}

template <typename Values>
constexpr uint64_t chained_all(const Values& values) {
  uint64_t hash = std::size(values);
  for (const auto& value : values) hash = chained(hash, value);
  return hash;
}

class DecisionDigest {
 public:
  enum Record : uint64_t {
    kStep,
    kAllocation,
    kReused,
    kPreempted,
    kEnded,
    kRejected,
    kTransfer,
    kTransferEnded,
    kCompressed,
    kRetained,
    kShrunk,
    kSessionDropped,
    kHandedOver,
    kTaken,
    kPrefixCheckpoint,
    kAged,
    kSwapOutStarted,
    kFormats,
    kCheckpointPlanned,
    kPass
  };

  // A record is its kind and the values that were decided.
  template <typename... Values>
  void add(Record record, Values... values) {
    sum_ += mix64(chained(record, values...));
  }
  template <typename... Values>
  void subtract(Record record, Values... values) {
    sum_ -= mix64(chained(record, values...));
  }
  uint64_t sum() const { return sum_; }

 private:
  uint64_t sum_ = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_DECISION_DIGEST_H_
