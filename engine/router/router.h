// Router places each request on one of several engines. One per run and role; deterministic like Core.
//
//   round_robin     goes around, whatever the load
//   least_loaded    fewest prompt + output tokens not yet finished
//   session_affine  a session stays; a new one goes where the fewest sessions live
//   prefix_aware    fewest tokens still to come: of requests not yet finished there, and of this prompt what
//   is
//                   not cached there. NVIDIA Dynamo's KV router adds the same two (Router Design: potential
//                   active blocks, potential new prefill blocks; weight 1) from a copy of the engines'
//                   indexes; here they are asked, so there is no lag.
//   hint_aware      a session that said when its next call comes stays, if that is within hint_horizon; its
//                   context counts as load there meanwhile. Anybody else goes where load is least, so that
//                   sessions that are away for long do not hold on to a busy engine.
//
// Ties: the lowest engine.

#ifndef KVTWIN_ENGINE_ROUTER_ROUTER_H_
#define KVTWIN_ENGINE_ROUTER_ROUTER_H_

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "engine/base/events.h"
#include "engine/base/units.h"

namespace kvtwin {

enum class RoutingKind : uint8_t {
  kRoundRobin,
  kLeastLoaded,
  kSessionAffine,
  kPrefixAware,
  kHintAware,
};
constexpr RoutingKind kRoutingLast = RoutingKind::kHintAware;

class Router {
 public:
  // Tokens of a prompt that an engine holds already.
  using TokensCached = std::function<uint32_t(EngineId, const RequestReady&)>;

  // Over engines [first, first + engines). REQUIRES: engines > 0.
  Router(RoutingKind kind, uint32_t engines, EngineId first = {});

  // `cached` is asked by prefix_aware alone.
  EngineId place(const RequestReady& request, const TokensCached& cached = {});
  bool is_live(RequestId request) const {
    return raw(request) < requests_.size() && requests_[raw(request)].live;
  }
  // REQUIRES: is_live(request).
  EngineId engine_of(RequestId request) const;
  // Those that were given requests of the session since it ended last, and so may hold something of it;
  // ascending. Valid until the next place() or session_ended().
  std::span<const EngineId> engines_of_session(SessionId session) const;
  bool knows(SessionId session) const {
    return raw(session) < session_engines_.size() && session_engines_[raw(session)].known;
  }
  // The request has finished or was rejected, or goes on elsewhere.
  void ended(RequestId request);
  void session_ended(SessionId session);
  // The session's next call is expected after `gap`.
  void session_returns(SessionId session, Duration gap);

  uint64_t digest() const { return digest_; }

  // A session that is away for longer is not waited for: its KV is likely to be gone by then.
  static constexpr Duration kHintHorizon{120'000'000'000};

 private:
  struct Placed {
    uint32_t engine = 0;  // these two count from 0, not from `first_`
    bool live = false;
    uint64_t tokens = 0;
  };
  struct SessionEngine {
    uint32_t engine = 0;
    bool known = false;
    bool live = false;
    bool returns = false;  // soon, and its context counts in tokens_
    uint64_t context = 0;  // of its last request
    std::vector<EngineId> engines;
  };

  uint32_t choose(const RequestReady& request, SessionEngine* session_engine, const TokensCached& cached);
  uint32_t least_missing(const RequestReady& request, const TokensCached& cached) const;
  void stop_waiting_for(SessionEngine* session_engine);

  RoutingKind kind_;
  EngineId first_;
  std::vector<uint64_t> tokens_;                // per engine
  std::vector<uint64_t> sessions_;              // per engine, live
  std::vector<Placed> requests_;                // by RequestId
  std::vector<SessionEngine> session_engines_;  // by SessionId
  uint32_t next_ = 0;
  uint64_t placed_ = 0;
  uint64_t digest_ = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_ROUTER_ROUTER_H_
