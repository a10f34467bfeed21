// Router places each request on one of several engines. A run has one Router per role (all engines; or
// prefill and decode engines apart). Placement is deterministic.
//
//   round_robin     engines in turn, whatever the load
//   least_loaded    the fewest prompt and output tokens of unfinished requests
//   session_affine  a session stays on its engine; a new session goes where the fewest sessions live
//   prefix_aware    the fewest tokens still to process: those of unfinished requests there, plus the part of
//                   this prompt that is not cached there. NVIDIA Dynamo's KV router adds the same two terms
//                   (Router Design: potential active blocks, potential new prefill blocks; weight 1), but
//                   reads a copy of the engines' indexes. Here the engines are queried, so there is no lag.
//   hint_aware      a session whose hint announced the next request within kHintHorizon stays, and its
//   context
//                   counts as load there until then. Other requests go to the least loaded engine, so that
//                   sessions with long pauses are not tied to a busy engine.
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
  // Number of prompt tokens that an engine has cached.
  using TokensCached = std::function<uint32_t(EngineId, const RequestReady&)>;

  // Over engines [first, first + engines). REQUIRES: engines > 0.
  Router(RoutingKind kind, uint32_t engines, EngineId first = {});

  // Only prefix_aware calls `cached`.
  EngineId place(const RequestReady& request, const TokensCached& cached = {});
  bool is_live(RequestId request) const {
    return raw(request) < requests_.size() && requests_[raw(request)].live;
  }
  // REQUIRES: is_live(request).
  EngineId engine_of(RequestId request) const;
  // Engines that were given requests of the session since it last ended, and so may hold state of it;
  // ascending. Valid until the next place() or session_ended().
  std::span<const EngineId> engines_of_session(SessionId session) const;
  bool knows(SessionId session) const {
    return raw(session) < session_engines_.size() && session_engines_[raw(session)].known;
  }
  // The request has finished, was rejected, or continues on another engine.
  void ended(RequestId request);
  void session_ended(SessionId session);
  // The session's next request is expected after `gap`.
  void session_returns(SessionId session, Duration gap);

  uint64_t digest() const { return digest_; }

  // The longest pause for which a session keeps its engine: after a longer one its KV is likely evicted.
  static constexpr Duration kHintHorizon{120'000'000'000};

 private:
  struct Placed {
    uint32_t engine = 0;  // counted from `first_`
    bool live = false;
    uint64_t tokens = 0;
  };
  struct SessionEngine {
    uint32_t engine = 0;  // counted from `first_`
    bool known = false;
    bool live = false;
    bool returns = false;  // a request is expected within kHintHorizon; `context` is included in tokens_
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
