#include "engine/policy/router.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/prng.h"

namespace kvtwin {
namespace {

template <typename T>
T& at_grown(std::vector<T>& items, size_t index) {
  if (index >= items.size()) items.resize(index + 1);
  return items[index];
}

// Lowest count wins; among equals the lowest engine.
EngineId lowest(const std::vector<uint64_t>& counts) {
  return EngineId{static_cast<uint16_t>(std::min_element(counts.begin(), counts.end()) - counts.begin())};
}

}  // namespace

Router::Router(RoutingKind kind, uint32_t engines) : kind_(kind), tokens_(engines), sessions_(engines) {
  KVT_CHECK(engines > 0);
}

EngineId Router::place(const CallReady& call) {
  EngineId engine{};
  SessionHome& home = at_grown(homes_, raw(call.session));
  switch (kind_) {
    case RoutingKind::kRoundRobin:
      engine = EngineId{static_cast<uint16_t>(next_)};
      next_ = (next_ + 1) % static_cast<uint32_t>(tokens_.size());
      break;
    case RoutingKind::kLeastLoaded:
      engine = lowest(tokens_);
      break;
    case RoutingKind::kSessionAffine:
      engine = home.known ? home.engine : lowest(sessions_);
      break;
  }
  if (!home.live) {
    home = {engine, true, true};
    ++sessions_[raw(engine)];
  }
  Placed& placed = at_grown(calls_, raw(call.call));
  KVT_CHECK(!placed.live);
  placed = {engine, true, uint64_t{call.prompt_tokens} + call.output_tokens};
  tokens_[raw(engine)] += placed.tokens;
  digest_ += draw({placed_++, raw(call.call), raw(engine)});
  return engine;
}

EngineId Router::engine_of(CallId call) const {
  KVT_CHECK(is_live(call));
  return calls_[raw(call)].engine;
}

EngineId Router::engine_of_session(SessionId session) const {
  KVT_CHECK(knows(session));
  return homes_[raw(session)].engine;
}

void Router::ended(CallId call) {
  KVT_CHECK(raw(call) < calls_.size());
  Placed& placed = calls_[raw(call)];
  KVT_CHECK(placed.live);
  placed.live = false;
  tokens_[raw(placed.engine)] -= placed.tokens;
}

void Router::session_ended(SessionId session) {
  if (raw(session) >= homes_.size() || !homes_[raw(session)].live) return;
  homes_[raw(session)].live = false;
  --sessions_[raw(homes_[raw(session)].engine)];
}

}  // namespace kvtwin
