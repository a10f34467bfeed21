#include "engine/common/request_tokens.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/prng.h"

namespace kvtwin::cpu {

uint32_t RequestTokens::input(RequestId request, uint32_t position) const {
  const uint32_t prompt = tokens_->prompt_tokens(request);
  if (decoding_ == Decoding::kForced || position < prompt) return tokens_->token(request, position);
  const auto known = sampled_.find(request);
  KVT_CHECK(known != sampled_.end() && position - prompt < known->second.size());
  return known->second[position - prompt];
}

bool RequestTokens::sampled(const PlanEntry& entry, uint32_t token) {
  const uint32_t position = entry.context + entry.tokens;
  std::vector<uint32_t>& sampled = sampled_[entry.request];
  KVT_CHECK(position >= tokens_->prompt_tokens(entry.request));
  const uint32_t output = position - tokens_->prompt_tokens(entry.request);
  // A request that was preempted samples again the tokens that steps in flight still sampled for it.
  KVT_CHECK(output <= sampled.size());
  sampled.resize(output);
  sampled.push_back(token);
  return decoding_ == Decoding::kGreedy &&
         std::find(end_tokens_.begin(), end_tokens_.end(), token) != end_tokens_.end();
}

void RequestTokens::dropped(const DropRequestState& command) {
  if (command.reason == DropRequestState::Reason::kPreempted) return;
  const auto request = sampled_.find(command.request);
  if (request == sampled_.end()) return;           // it never sampled
  uint64_t hash = draw({request->second.size()});  // without the id, which may depend on times
  for (const uint32_t token : request->second) hash = draw({hash, token});
  digest_ += hash;
  sampled_.erase(request);
}

}  // namespace kvtwin::cpu
