#include "scenarios/serve/derived_sessions.h"

#include <algorithm>

#include "engine/base/prng.h"

namespace kvtwin {

std::optional<uint64_t> DerivedSessions::session_of(std::span<const uint64_t> tokens, uint32_t span_end) {
  const size_t key_tokens = span_end > 0 ? span_end : kSessionKeyTokens;
  if (tokens.size() < key_tokens) return std::nullopt;
  uint64_t hash = 0, key = 0;
  size_t at = 0;
  const auto hash_until = [&](size_t end) {
    for (; at < end; ++at) hash = draw({hash, tokens[at]});
    return hash;
  };
  key = hash_until(key_tokens);
  std::vector<Session>& known = by_key_[key];
  // Prompts of sessions with this key are not shorter than the key. The longest that is extended counts.
  size_t found = known.size();
  for (size_t i = 0; i < known.size() && known[i].tokens < tokens.size(); ++i) {
    if (hash_until(known[i].tokens) == known[i].hash) found = i;
  }
  Session session;
  if (found < known.size()) {
    session = known[found];
    ages_.erase(session.used);
    known.erase(known.begin() + static_cast<std::ptrdiff_t>(found));
  } else {
    session.number = next_++;
  }
  session.tokens = static_cast<uint32_t>(tokens.size());
  session.hash = hash_until(tokens.size());
  session.used = uses_++;
  ages_[session.used] = key;
  const auto place =
      std::upper_bound(known.begin(), known.end(), session.tokens,
                       [](uint32_t length, const Session& other) { return length < other.tokens; });
  known.insert(place, session);
  if (ages_.size() > sessions_max_) forget_oldest();
  return session.number;
}

void DerivedSessions::forget_oldest() {
  const auto [used, key] = *ages_.begin();
  ages_.erase(ages_.begin());
  std::vector<Session>& known = by_key_[key];
  std::erase_if(known, [used = used](const Session& session) { return session.used == used; });
  if (known.empty()) by_key_.erase(key);
}

}  // namespace kvtwin
