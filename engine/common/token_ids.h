// What the tokens of requests are. The policy knows identities only (engine/base/identity.h), and so does
// the trace: token ids are made from them, so that equal identities are equal tokens
// (docs/design/trace-formats.md#identity). Where the trace gives ids of the model's own vocabulary, they are
// taken instead (traces/format/trace_tokens.h).
//
//   token(request, p) = ordinary id number draw(seed, space, unit, p mod unit_tokens) of the vocabulary
// where (space, unit) is the identity of p's unit. Positions without identity are numbered by session, index
// in the session (RequestKey) and position. Since outputs have identities too (what the next prompt says they
// were), forced decoding makes later prompts match the KV that was generated, bit for bit.

#ifndef KVTWIN_ENGINE_COMMON_TOKEN_IDS_H_
#define KVTWIN_ENGINE_COMMON_TOKEN_IDS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <vector>

#include "engine/runtime/client.h"

namespace kvtwin::cpu {

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
  // Outputs are what the model samples, not what the trace says: then nobody can know them beforehand, and
  // requests lose the identity of what follows their prompt.
  bool outputs_unknown = false;
  // Ids that the trace gives: the request's prompt, then its output; empty if it gives none. Asked when the
  // request is sent. Null: no request has any.
  std::function<std::vector<uint32_t>(RequestId)> given{};
};

// Listens to a Client. Its memory goes with the requests that are open.
class IdentityTokens final : public TokenIds {
 public:
  explicit IdentityTokens(const TokenIdOptions& options);
  ~IdentityTokens() override;

  // The Client to run with instead of `client`: hands everything on. `client` must outlive the run.
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
    std::vector<uint64_t> ends;  // of each run, in units from the start
    std::vector<uint32_t> given;
  };

  const Request& known(RequestId request) const;
  void sent(RequestReady* request);
  void ended(RequestId request) { requests_.erase(request); }

  const TokenIdOptions options_;
  uint32_t first_id_ = 0, ids_ = 0;
  std::map<RequestId, Request> requests_;
  std::unique_ptr<Watch> watch_;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_TOKEN_IDS_H_
