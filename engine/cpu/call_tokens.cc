#include "engine/cpu/call_tokens.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/prng.h"

namespace kvtwin::cpu {

uint32_t CallTokens::input(CallId call, uint32_t position) const {
  const uint32_t prompt = tokens_->prompt_tokens(call);
  if (decoding_ == Decoding::kForced || position < prompt) return tokens_->token(call, position);
  const auto known = sampled_.find(call);
  KVT_CHECK(known != sampled_.end() && position - prompt < known->second.size());
  return known->second[position - prompt];
}

bool CallTokens::sampled(const PlanEntry& entry, uint32_t token) {
  const uint32_t position = entry.context + entry.tokens;
  std::vector<uint32_t>& sampled = sampled_[entry.call];
  KVT_CHECK(position >= tokens_->prompt_tokens(entry.call));
  const uint32_t output = position - tokens_->prompt_tokens(entry.call);
  // A preempted call samples again what a step in flight sampled behind its back.
  KVT_CHECK(output <= sampled.size());
  sampled.resize(output);
  sampled.push_back(token);
  return decoding_ == Decoding::kGreedy &&
         std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end();
}

void CallTokens::dropped(const DropCallState& command) {
  if (command.reason == DropCallState::Reason::kPreempted) return;
  const auto call = sampled_.find(command.call);
  if (call == sampled_.end()) return;           // it never sampled
  uint64_t hash = draw({call->second.size()});  // not the id: it may depend on times
  for (const uint32_t token : call->second) hash = draw({hash, token});
  digest_ += hash;
  sampled_.erase(call);
}

}  // namespace kvtwin::cpu
