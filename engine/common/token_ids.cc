#include "engine/common/token_ids.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/prng.h"
#include "engine/chat/chat_renderer.h"

namespace kvtwin::cpu {

class IdentityTokens::Watch final : public Client {
 public:
  Watch(IdentityTokens* tokens, Client* client) : tokens_(*tokens), client_(*client) {}

  Instant wake_at() const override { return client_.wake_at(); }
  void wake(Instant now, ClientEvents* events) override {
    const size_t before = events->size();
    client_.wake(now, events);
    note(before, events);
  }
  void tokens_emitted(Instant now, RequestId request, uint32_t tokens, ClientEvents* events) override {
    const size_t before = events->size();
    client_.tokens_emitted(now, request, tokens, events);
    note(before, events);
  }
  void request_finished(Instant now, RequestId request, uint32_t tokens, bool cancelled,
                        ClientEvents* events) override {
    const size_t before = events->size();
    tokens_.ended(request);
    client_.request_finished(now, request, tokens, cancelled, events);
    note(before, events);
  }
  void request_rejected(Instant now, RequestId request, ClientEvents* events) override {
    const size_t before = events->size();
    tokens_.ended(request);
    client_.request_rejected(now, request, events);
    note(before, events);
  }

 private:
  void note(size_t before, ClientEvents* events) {
    for (size_t i = before; i < events->size(); ++i) {
      if (auto* ready = std::get_if<RequestReady>(&(*events)[i])) tokens_.sent(ready);
    }
  }

  IdentityTokens& tokens_;
  Client& client_;
};

// Special tokens are at the ends of vocabularies: below 1,000 (Mistral), or in the last hundredth (Llama 3,
// Qwen). They are excluded, because they would have an effect inside a prompt.
OrdinaryIds ordinary_ids(uint32_t vocab) {
  const uint32_t first = std::min(1000u, vocab / 8);
  return {first, vocab - vocab / 64 - first};
}

IdentityTokens::IdentityTokens(const TokenIdOptions& options)
    : options_(options), ids_(ordinary_ids(options.vocab)) {
  KVT_CHECK(options.vocab > 0);
  KVT_CHECK(options.unit_tokens > 0);
}
IdentityTokens::~IdentityTokens() = default;

Client* IdentityTokens::watch(Client* client) {
  watch_ = std::make_unique<Watch>(this, client);
  return watch_.get();
}

void IdentityTokens::sent(RequestReady* request) {
  Request& known = requests_[request->request];
  known.prompt_tokens = request->prompt_tokens;
  known.output_tokens = request->output_tokens;
  known.key = request->key();
  if (options_.given) known.given = options_.given(request->request);
  if (options_.outputs_unknown)
    known.given.resize(std::min<size_t>(known.given.size(), request->prompt_tokens));
  uint64_t left = options_.outputs_unknown ? request->prompt_tokens / options_.unit_tokens : UINT64_MAX;
  uint64_t end = 0;
  for (UnitRun run : request->identity) {
    run.count = static_cast<uint32_t>(std::min<uint64_t>(run.count, left));
    if (run.count == 0) break;
    left -= run.count;
    end += run.count;
    known.runs.push_back(run);
    known.ends.push_back(end);
  }
  if (options_.outputs_unknown) request->identity = known.runs;
}

uint32_t IdentityTokens::token(RequestId id, uint32_t position) const {
  const Request& request = known(id);
  if (position < request.given.size() && request.given[position] != kContentToken)
    return request.given[position];
  const uint64_t unit = position / options_.unit_tokens;
  const auto run = static_cast<size_t>(std::upper_bound(request.ends.begin(), request.ends.end(), unit) -
                                       request.ends.begin());
  constexpr uint64_t kNoSpace = UINT64_MAX;  // a space that no run has
  uint64_t bits = draw({options_.seed, kNoSpace, raw(request.key.session), request.key.index, position});
  if (run < request.ends.size() && (request.runs[run].space & kPrivateSpace) == 0) {
    const UnitRun& found = request.runs[run];
    const uint64_t number = found.first + (unit - (request.ends[run] - found.count));
    bits = draw({options_.seed, found.space, number, position % options_.unit_tokens});
  }
  return ids_.first + static_cast<uint32_t>(bits % ids_.count);
}

const IdentityTokens::Request& IdentityTokens::known(RequestId request) const {
  const auto known = requests_.find(request);
  KVT_CHECK(known != requests_.end());
  return known->second;
}

}  // namespace kvtwin::cpu
