// RequestTokens provides the tokens that go into the model and stores the sampled ones, request by request.
// All backends that compute values use it.

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
  kForced,  // the next input is the token of the trace's output
  kGreedy,  // the next input is the sampled token, the one with the largest logit
};

class RequestTokens {
 public:
  // `tokens` must outlive this. Greedy: sampling one of `end_tokens` ends the request.
  RequestTokens(const TokenIds* tokens, Decoding decoding, std::vector<uint32_t> end_tokens)
      : tokens_(tokens), decoding_(decoding), end_tokens_(std::move(end_tokens)) {}

  // The token at `position`. REQUIRES: with greedy decoding, it belongs to the prompt or was sampled.
  uint32_t input(RequestId request, uint32_t position) const;
  // The last token of `entry` sampled `token`. Returns true if the request ends with it.
  bool sampled(const PlanEntry& entry, uint32_t token);
  // The request's state is dropped. A preempted request keeps its sampled tokens for its return.
  void dropped(const DropRequestState& command);

  // Fingerprint of the tokens that all ended requests sampled, independent of the order in which they ended.
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
