// RequestTokens says what goes into the model and keeps what comes out of it, request by request: the same in
// every backend that computes values.

#ifndef KVTWIN_ENGINE_COMMON_REQUEST_TOKENS_H_
#define KVTWIN_ENGINE_COMMON_REQUEST_TOKENS_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "engine/base/commands.h"
#include "engine/common/token_ids.h"

namespace kvtwin::cpu {

enum class Decoding : uint8_t {
  kForced,  // the next input is what the trace says the output was
  kGreedy,  // the next input is the sampled token, the one with the largest logit
};

class RequestTokens {
 public:
  // `tokens` must outlive this. Greedy: sampling one of `end_tokens` ends the request.
  RequestTokens(const TokenIds* tokens, Decoding decoding, std::vector<uint32_t> end_tokens)
      : tokens_(tokens), decoding_(decoding), end_tokens_(std::move(end_tokens)) {}

  // The token at `position`. REQUIRES: greedy: it is one of the prompt's, or was sampled.
  uint32_t input(RequestId request, uint32_t position) const;
  // The last row of `entry` sampled `token`. True: the request ends with it.
  bool sampled(const PlanEntry& entry, uint32_t token);
  // A preempted request comes back, and goes on with what it sampled.
  void dropped(const DropRequestState& command);

  // Fingerprint of what all ended requests sampled, whatever the order in which they ended.
  uint64_t digest() const { return digest_; }

 private:
  const TokenIds* const tokens_;
  const Decoding decoding_;
  const std::vector<uint32_t> end_tokens_;
  std::map<RequestId, std::vector<uint32_t>> sampled_;  // by output token
  uint64_t digest_ = 0;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_REQUEST_TOKENS_H_
