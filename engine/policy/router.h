// Router places each call on one of several engines. One per run; deterministic like Core.

#ifndef KVTWIN_ENGINE_POLICY_ROUTER_H_
#define KVTWIN_ENGINE_POLICY_ROUTER_H_

#include <cstdint>
#include <vector>

#include "engine/base/units.h"
#include "engine/policy/events.h"

namespace kvtwin {

enum class RoutingKind : uint8_t {
  kRoundRobin,
  kLeastLoaded,    // fewest prompt + output tokens not yet finished; ties: lowest engine
  kSessionAffine,  // a session stays; a new one goes where the fewest sessions live; ties: lowest engine
};

class Router {
 public:
  // REQUIRES: engines > 0.
  Router(RoutingKind kind, uint32_t engines);

  EngineId place(const CallReady& call);
  bool is_live(CallId call) const { return raw(call) < calls_.size() && calls_[raw(call)].live; }
  // REQUIRES: is_live(call).
  EngineId engine_of(CallId call) const;
  // REQUIRES: knows(session).
  EngineId engine_of_session(SessionId session) const;
  bool knows(SessionId session) const { return raw(session) < homes_.size() && homes_[raw(session)].known; }
  // The call has finished or was rejected.
  void ended(CallId call);
  void session_ended(SessionId session);

  uint64_t digest() const { return digest_; }

 private:
  struct Placed {
    EngineId engine{};
    bool live = false;
    uint64_t tokens = 0;
  };
  struct SessionHome {
    EngineId engine{};
    bool known = false;
    bool live = false;
  };

  RoutingKind kind_;
  std::vector<uint64_t> tokens_;    // per engine
  std::vector<uint64_t> sessions_;  // per engine, live
  std::vector<Placed> calls_;       // by CallId
  std::vector<SessionHome> homes_;  // by SessionId
  uint32_t next_ = 0;
  uint64_t placed_ = 0;
  uint64_t digest_ = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_POLICY_ROUTER_H_
