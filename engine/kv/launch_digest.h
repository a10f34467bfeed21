// LaunchDigest adds what a launch decides to the digest, single step by single step: steps that only repeat
// the step before add no record, so coalescing changes nothing.

#ifndef KVTWIN_ENGINE_KV_LAUNCH_DIGEST_H_
#define KVTWIN_ENGINE_KV_LAUNCH_DIGEST_H_

#include <cstdint>

#include "engine/kv/decision_digest.h"
#include "engine/kv/launch.h"

namespace kvtwin {

class LaunchDigest {
 public:
  explicit LaunchDigest(DecisionDigest* digest) : digest_(*digest) {}

  void add(const Launch& launch, uint32_t tokens, uint32_t tokens_padded);
  // The pages of steps from `offset` on are about to be rolled back.
  void subtract_from(const Launch& launch, uint64_t offset);

 private:
  void add_compression(const Launch& launch, const Compression& compression);

  DecisionDigest& digest_;
  uint64_t batch_last_ = 0;  // fingerprint of the entries of the step before
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_LAUNCH_DIGEST_H_
