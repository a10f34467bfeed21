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
uint32_t lowest(const std::vector<uint64_t>& counts) {
  return static_cast<uint32_t>(std::min_element(counts.begin(), counts.end()) - counts.begin());
}

}  // namespace

Router::Router(RoutingKind kind, uint32_t engines, EngineId first)
    : kind_(kind), first_(first), tokens_(engines), sessions_(engines) {
  KVT_CHECK(engines > 0);
}

EngineId Router::place(const CallReady& call, const TokensCached& cached) {
  SessionHome& home = at_grown(homes_, raw(call.session));
  const uint32_t engine = choose(call, &home, cached);
  if (!home.live) {
    home.live = home.known = true;
    home.engine = engine;
    ++sessions_[engine];
  } else if (kind_ == RoutingKind::kHintAware && home.engine != engine) {
    --sessions_[home.engine];
    ++sessions_[engine];
    home.engine = engine;
  }
  home.context = uint64_t{call.prompt_tokens} + call.output_tokens;
  Placed& placed = at_grown(calls_, raw(call.call));
  KVT_CHECK(!placed.live);
  placed = {engine, true, home.context};
  tokens_[engine] += placed.tokens;
  const EngineId id{static_cast<uint16_t>(raw(first_) + engine)};
  const auto place = std::lower_bound(home.engines.begin(), home.engines.end(), id);
  if (place == home.engines.end() || *place != id) home.engines.insert(place, id);
  digest_ += draw({placed_++, raw(call.call), raw(id)});
  return id;
}

uint32_t Router::choose(const CallReady& call, SessionHome* home, const TokensCached& cached) {
  switch (kind_) {
    case RoutingKind::kRoundRobin: {
      const uint32_t engine = next_;
      next_ = (next_ + 1) % static_cast<uint32_t>(tokens_.size());
      return engine;
    }
    case RoutingKind::kLeastLoaded:
      return lowest(tokens_);
    case RoutingKind::kSessionAffine:
      return home->known ? home->engine : lowest(sessions_);
    case RoutingKind::kPrefixAware:
      return least_missing(call, cached);
    case RoutingKind::kHintAware: {
      const bool stays = home->returns;
      stop_waiting_for(home);
      return stays ? home->engine : lowest(tokens_);
    }
  }
  return 0;
}

uint32_t Router::least_missing(const CallReady& call, const TokensCached& cached) const {
  uint32_t best = 0;
  uint64_t best_tokens = UINT64_MAX;
  for (uint32_t i = 0; i < tokens_.size(); ++i) {
    const uint32_t there = cached ? cached(EngineId{static_cast<uint16_t>(raw(first_) + i)}, call) : 0;
    const uint64_t tokens = tokens_[i] + call.prompt_tokens - std::min(there, call.prompt_tokens);
    if (tokens >= best_tokens) continue;
    best = i;
    best_tokens = tokens;
  }
  return best;
}

EngineId Router::engine_of(CallId call) const {
  KVT_CHECK(is_live(call));
  return EngineId{static_cast<uint16_t>(raw(first_) + calls_[raw(call)].engine)};
}

std::span<const EngineId> Router::engines_of_session(SessionId session) const {
  if (!knows(session)) return {};
  return homes_[raw(session)].engines;
}

void Router::ended(CallId call) {
  KVT_CHECK(raw(call) < calls_.size());
  Placed& placed = calls_[raw(call)];
  KVT_CHECK(placed.live);
  placed.live = false;
  tokens_[placed.engine] -= placed.tokens;
}

void Router::session_ended(SessionId session) {
  if (raw(session) >= homes_.size() || !homes_[raw(session)].live) return;
  SessionHome& home = homes_[raw(session)];
  stop_waiting_for(&home);
  home.live = false;
  home.engines.clear();
  --sessions_[home.engine];
}

void Router::session_returns(SessionId session, Duration gap) {
  if (kind_ != RoutingKind::kHintAware || !knows(session)) return;
  SessionHome& home = homes_[raw(session)];
  stop_waiting_for(&home);
  if (!home.live || gap > kHintHorizon) return;
  home.returns = true;
  tokens_[home.engine] += home.context;
}

void Router::stop_waiting_for(SessionHome* home) {
  if (!home->returns) return;
  home->returns = false;
  tokens_[home->engine] -= home->context;
}

}  // namespace kvtwin
