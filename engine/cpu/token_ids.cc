#include "engine/cpu/token_ids.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/prng.h"

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
  void tokens_emitted(Instant now, CallId call, uint32_t tokens, ClientEvents* events) override {
    const size_t before = events->size();
    client_.tokens_emitted(now, call, tokens, events);
    note(before, events);
  }
  void call_finished(Instant now, CallId call, uint32_t tokens, bool cancelled,
                     ClientEvents* events) override {
    const size_t before = events->size();
    tokens_.ended(call);
    client_.call_finished(now, call, tokens, cancelled, events);
    note(before, events);
  }
  void call_rejected(Instant now, CallId call, ClientEvents* events) override {
    const size_t before = events->size();
    tokens_.ended(call);
    client_.call_rejected(now, call, events);
    note(before, events);
  }

 private:
  void note(size_t before, ClientEvents* events) {
    for (size_t i = before; i < events->size(); ++i) {
      if (auto* ready = std::get_if<CallReady>(&(*events)[i])) tokens_.sent(ready);
    }
  }

  IdentityTokens& tokens_;
  Client& client_;
};

// Special tokens lie at the ends of vocabularies: below 1,000 (Mistral), or in the last hundredth (Llama 3,
// Qwen). A token of that kind inside a prompt would mean something.
IdentityTokens::IdentityTokens(const TokenIdOptions& options) : options_(options) {
  KVT_CHECK(options.vocab > 0);
  KVT_CHECK(options.unit_tokens > 0);
  first_id_ = std::min(1000u, options.vocab / 8);
  ids_ = options.vocab - options.vocab / 64 - first_id_;
}
IdentityTokens::~IdentityTokens() = default;

Client* IdentityTokens::watch(Client* client) {
  watch_ = std::make_unique<Watch>(this, client);
  return watch_.get();
}

void IdentityTokens::sent(CallReady* call) {
  Call& known = calls_[call->call];
  known.prompt_tokens = call->prompt_tokens;
  known.output_tokens = call->output_tokens;
  known.key = call->key();
  if (options_.given) known.given = options_.given(call->call);
  if (options_.outputs_unknown) known.given.resize(std::min<size_t>(known.given.size(), call->prompt_tokens));
  uint64_t left = options_.outputs_unknown ? call->prompt_tokens / options_.unit_tokens : UINT64_MAX;
  uint64_t end = 0;
  for (UnitRun run : call->identity) {
    run.count = static_cast<uint32_t>(std::min<uint64_t>(run.count, left));
    if (run.count == 0) break;
    left -= run.count;
    end += run.count;
    known.runs.push_back(run);
    known.ends.push_back(end);
  }
  if (options_.outputs_unknown) call->identity = known.runs;
}

uint32_t IdentityTokens::token(CallId id, uint32_t position) const {
  const Call& call = known(id);
  if (position < call.given.size()) return call.given[position];
  const uint64_t unit = position / options_.unit_tokens;
  const auto run =
      static_cast<size_t>(std::upper_bound(call.ends.begin(), call.ends.end(), unit) - call.ends.begin());
  constexpr uint64_t kNoSpace = UINT64_MAX;  // no run has it
  uint64_t bits = draw({options_.seed, kNoSpace, raw(call.key.session), call.key.index, position});
  if (run < call.ends.size() && (call.runs[run].space & kPrivateSpace) == 0) {
    const UnitRun& found = call.runs[run];
    const uint64_t number = found.first + (unit - (call.ends[run] - found.count));
    bits = draw({options_.seed, found.space, number, position % options_.unit_tokens});
  }
  return first_id_ + static_cast<uint32_t>(bits % ids_);
}

const IdentityTokens::Call& IdentityTokens::known(CallId call) const {
  const auto known = calls_.find(call);
  KVT_CHECK(known != calls_.end());
  return known->second;
}

}  // namespace kvtwin::cpu
