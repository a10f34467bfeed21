// DerivedSessions finds the session of requests whose client names none
// (docs/design/methods/intentkv.md#session-id): a session's memory and its retained prefixes are of no use to
// a request that does not know its session.
//
// A prompt continues the session whose newest prompt it extends. To find it, sessions are listed by a key:
//   session span  the prompt up to the end of its first user message, where messages have roles
//   first tokens  its first kSessionKeyTokens tokens, where they do not
//   private       a shorter prompt without roles has no key: it is a session of its own
// The key alone never joins requests: two sessions may begin with the same words. A prompt that extends none
// of its key's sessions starts one.
//
// Deterministic: it depends on the order of calls alone.

#ifndef KVTWIN_SCENARIOS_SERVE_DERIVED_SESSIONS_H_
#define KVTWIN_SCENARIOS_SERVE_DERIVED_SESSIONS_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace kvtwin {

constexpr uint32_t kSessionKeyTokens = 256;

class DerivedSessions {
 public:
  // Remembers at most `sessions_max` sessions; beyond, the one that was used longest ago is forgotten.
  explicit DerivedSessions(size_t sessions_max) : sessions_max_(sessions_max) {}

  // The number of the request's session; nullopt: it is private. `span_end`: the end of the first user
  // message; 0: the prompt has no roles.
  std::optional<uint64_t> session_of(std::span<const uint64_t> tokens, uint32_t span_end);
  size_t remembered() const { return ages_.size(); }

 private:
  struct Session {
    uint64_t number = 0;
    uint32_t tokens = 0;  // of its newest prompt
    uint64_t hash = 0;    // of these
    uint64_t used = 0;    // key in ages_
  };
  void forget_oldest();

  const size_t sessions_max_;
  std::map<uint64_t, std::vector<Session>> by_key_;  // in order of tokens
  std::map<uint64_t, uint64_t> ages_;                // time of use -> key
  uint64_t uses_ = 0, next_ = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_SERVE_DERIVED_SESSIONS_H_
