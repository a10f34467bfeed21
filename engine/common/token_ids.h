// TokenIds provides the token ids of requests. The policy and most traces contain identities only
// (engine/base/identity.h). Token ids are derived from these, so that equal identities are equal tokens
// (docs/design/trace-formats.md#identity). If the trace has ids of the model's own vocabulary, they are used
// instead (traces/format/trace_tokens.h), and in a chat template, its delimiters too.
//
//   token(request, p) = ordinary id number draw(seed, space, unit, p mod unit_tokens) of the vocabulary
// where (space, unit) is the identity of p's unit. Positions without identity are numbered by session, index
// in the session (RequestKey) and position. Outputs have identities too (the next prompt implies them), so
// forced decoding makes later prompts match the generated KV bit for bit.

#ifndef KVTWIN_ENGINE_COMMON_TOKEN_IDS_H_
#define KVTWIN_ENGINE_COMMON_TOKEN_IDS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "engine/runtime/client.h"

namespace kvtwin::cpu {

// The ordinary ids of a vocabulary, [first, first + count).
struct OrdinaryIds {
  uint32_t first = 0, count = 0;
  bool contains(uint32_t id) const { return id >= first && id - first < count; }
};
OrdinaryIds ordinary_ids(uint32_t vocab);

class TokenIds {
 public:
  virtual ~TokenIds() = default;
  // REQUIRES: the request was sent and has not ended.
  virtual uint32_t token(RequestId request, uint32_t position) const = 0;
  virtual uint32_t prompt_tokens(RequestId request) const = 0;
  virtual uint32_t output_tokens(RequestId request) const = 0;
  virtual SessionId session(RequestId request) const = 0;
};

struct TokenIdOptions {
  uint64_t seed = 0;
  uint32_t unit_tokens = 16;
  uint32_t vocab = 0;
  // Outputs are what the model samples, not what the trace contains. They are then unknown in advance, and
  // requests lose the identity of positions after their prompt.
  bool outputs_unknown = false;
  // Ids from the trace: the request's prompt, then its output; empty if it has none. kContentToken
  // (engine/chat/chat_renderer.h) stands for an id that is derived. Called when the request is sent. Null:
  // no request has any.
  std::function<std::vector<uint32_t>(RequestId)> given{};
};

// Derives token ids by watching a Client. Stores only open requests.
class IdentityTokens final : public TokenIds {
 public:
  explicit IdentityTokens(const TokenIdOptions& options);
  ~IdentityTokens() override;

  // Returns the Client to run with instead of `client`, to which it forwards. `client` must outlive the run.
  Client* watch(Client* client);

  uint32_t token(RequestId request, uint32_t position) const override;
  uint32_t prompt_tokens(RequestId request) const override { return known(request).prompt_tokens; }
  uint32_t output_tokens(RequestId request) const override { return known(request).output_tokens; }
  SessionId session(RequestId request) const override { return known(request).key.session; }

 private:
  class Watch;
  struct Request {
    uint32_t prompt_tokens = 0;
    uint32_t output_tokens = 0;
    RequestKey key{};
    std::vector<UnitRun> runs;
    std::vector<uint64_t> ends;  // end of each run, in units from the start
    std::vector<uint32_t> given;
  };

  const Request& known(RequestId request) const;
  void sent(RequestReady* request);
  void ended(RequestId request) { requests_.erase(request); }

  const TokenIdOptions options_;
  const OrdinaryIds ids_;
  std::map<RequestId, Request> requests_;
  std::unique_ptr<Watch> watch_;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_TOKEN_IDS_H_
