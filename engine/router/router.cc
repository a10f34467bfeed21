#include "engine/router/router.h"

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

// The engine with the lowest count; among equals the lowest engine.
uint32_t lowest(const std::vector<uint64_t>& counts) {
  return static_cast<uint32_t>(std::min_element(counts.begin(), counts.end()) - counts.begin());
}

}  // namespace

Router::Router(RoutingKind kind, uint32_t engines, EngineId first)
    : kind_(kind), first_(first), tokens_(engines), sessions_(engines) {
  KVT_CHECK(engines > 0);
}

EngineId Router::place(const RequestReady& request, const TokensCached& cached) {
  SessionEngine& session_engine = at_grown(session_engines_, raw(request.session));
  const uint32_t engine = choose(request, &session_engine, cached);
  if (!session_engine.live) {
    session_engine.live = session_engine.known = true;
    session_engine.engine = engine;
    ++sessions_[engine];
  } else if (kind_ == RoutingKind::kHintAware && session_engine.engine != engine) {
    --sessions_[session_engine.engine];
    ++sessions_[engine];
    session_engine.engine = engine;
  }
  session_engine.context = uint64_t{request.prompt_tokens} + request.output_tokens;
  Placed& placed = at_grown(requests_, raw(request.request));
  KVT_CHECK(!placed.live);
  placed = {engine, true, session_engine.context};
  tokens_[engine] += placed.tokens;
  const EngineId id{static_cast<uint16_t>(raw(first_) + engine)};
  const auto place = std::lower_bound(session_engine.engines.begin(), session_engine.engines.end(), id);
  if (place == session_engine.engines.end() || *place != id) session_engine.engines.insert(place, id);
  digest_ += draw({placed_++, raw(request.request), raw(id)});
  return id;
}

uint32_t Router::choose(const RequestReady& request, SessionEngine* session_engine,
                        const TokensCached& cached) {
  switch (kind_) {
    case RoutingKind::kRoundRobin: {
      const uint32_t engine = next_;
      next_ = (next_ + 1) % static_cast<uint32_t>(tokens_.size());
      return engine;
    }
    case RoutingKind::kLeastLoaded:
      return lowest(tokens_);
    case RoutingKind::kSessionAffine:
      return session_engine->known ? session_engine->engine : lowest(sessions_);
    case RoutingKind::kPrefixAware:
      return least_missing(request, cached);
    case RoutingKind::kHintAware: {
      const bool stays = session_engine->returns;
      stop_waiting_for(session_engine);
      return stays ? session_engine->engine : lowest(tokens_);
    }
  }
  return 0;
}

uint32_t Router::least_missing(const RequestReady& request, const TokensCached& cached) const {
  uint32_t best = 0;
  uint64_t best_tokens = UINT64_MAX;
  for (uint32_t i = 0; i < tokens_.size(); ++i) {
    const uint32_t there = cached ? cached(EngineId{static_cast<uint16_t>(raw(first_) + i)}, request) : 0;
    const uint64_t tokens = tokens_[i] + request.prompt_tokens - std::min(there, request.prompt_tokens);
    if (tokens >= best_tokens) continue;
    best = i;
    best_tokens = tokens;
  }
  return best;
}

EngineId Router::engine_of(RequestId request) const {
  KVT_CHECK(is_live(request));
  return EngineId{static_cast<uint16_t>(raw(first_) + requests_[raw(request)].engine)};
}

std::span<const EngineId> Router::engines_of_session(SessionId session) const {
  if (!knows(session)) return {};
  return session_engines_[raw(session)].engines;
}

void Router::ended(RequestId request) {
  KVT_CHECK(raw(request) < requests_.size());
  Placed& placed = requests_[raw(request)];
  KVT_CHECK(placed.live);
  placed.live = false;
  tokens_[placed.engine] -= placed.tokens;
}

void Router::session_ended(SessionId session) {
  if (raw(session) >= session_engines_.size() || !session_engines_[raw(session)].live) return;
  SessionEngine& session_engine = session_engines_[raw(session)];
  stop_waiting_for(&session_engine);
  session_engine.live = false;
  session_engine.engines.clear();
  --sessions_[session_engine.engine];
}

void Router::session_returns(SessionId session, Duration gap) {
  if (kind_ != RoutingKind::kHintAware || !knows(session)) return;
  SessionEngine& session_engine = session_engines_[raw(session)];
  stop_waiting_for(&session_engine);
  if (!session_engine.live || gap > kHintHorizon) return;
  session_engine.returns = true;
  tokens_[session_engine.engine] += session_engine.context;
}

void Router::stop_waiting_for(SessionEngine* session_engine) {
  if (!session_engine->returns) return;
  session_engine->returns = false;
  tokens_[session_engine->engine] -= session_engine->context;
}

}  // namespace kvtwin
