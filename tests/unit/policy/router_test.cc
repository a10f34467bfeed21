#include "engine/router/router.h"

#include <doctest/doctest.h>

#include <vector>

using namespace kvtwin;

namespace {

RequestReady request(uint32_t id, uint32_t session, uint32_t prompt, uint32_t output) {
  RequestReady ready;
  ready.request = RequestId{id};
  ready.session = SessionId{session};
  ready.prompt_tokens = prompt;
  ready.output_tokens = output;
  return ready;
}

uint32_t placed(Router& router, uint32_t id, uint32_t session = 0, uint32_t prompt = 1, uint32_t output = 1) {
  const EngineId engine = router.place(request(id, session, prompt, output));
  CHECK(router.engine_of(RequestId{id}) == engine);
  return raw(engine);
}

std::vector<uint32_t> engines_of(const Router& router, uint32_t session) {
  std::vector<uint32_t> engines;
  for (const EngineId engine : router.engines_of_session(SessionId{session})) engines.push_back(raw(engine));
  return engines;
}

}  // namespace

TEST_CASE("router: round robin ignores the load") {
  Router router(RoutingKind::kRoundRobin, 3);
  CHECK(placed(router, 0, 0, 1'000'000) == 0);
  CHECK(placed(router, 1) == 1);
  router.ended(RequestId{1});
  CHECK(placed(router, 2) == 2);
  CHECK(placed(router, 3) == 0);
}

TEST_CASE("router: least loaded counts the tokens of requests that have not ended, prompt and output") {
  Router router(RoutingKind::kLeastLoaded, 2);
  CHECK(placed(router, 0, 0, 100, 50) == 0);  // 150 0    equal loads: the lowest engine
  CHECK(placed(router, 1, 0, 100, 0) == 1);   // 150 100
  CHECK(placed(router, 2, 0, 40, 10) == 1);   // 150 150
  CHECK(placed(router, 3, 0, 1, 0) == 0);     // 151 150
  router.ended(RequestId{1});                 // 151 50
  CHECK(placed(router, 4, 0, 50, 50) == 1);   // 151 150
  router.ended(RequestId{0});                 // 1   150
  CHECK(placed(router, 5, 0, 1, 1) == 0);
}

TEST_CASE("router: a session keeps its engine; a new one goes to the engine with the fewest live sessions") {
  Router router(RoutingKind::kSessionAffine, 2);
  CHECK(placed(router, 0, 7, 1'000) == 0);
  CHECK(placed(router, 1, 8) == 1);
  CHECK(placed(router, 2, 9) == 0);  // one each: the lowest engine
  CHECK(placed(router, 3, 7) == 0);  // its own engine, although the other has fewer sessions
  CHECK(placed(router, 4, 10) == 1);
  router.session_ended(SessionId{7});
  router.session_ended(SessionId{9});  // engine 0 has none, engine 1 has two
  CHECK(placed(router, 5, 11) == 0);
  CHECK(placed(router, 6, 12) == 0);
  CHECK(engines_of(router, 8) == std::vector<uint32_t>{1});
}

TEST_CASE("router: a session that ended and returns gets its engine again, and counts once") {
  Router router(RoutingKind::kSessionAffine, 2);
  CHECK(placed(router, 0, 1) == 0);
  router.session_ended(SessionId{1});
  router.session_ended(SessionId{1});   // ending twice has no effect
  router.session_ended(SessionId{99});  // never seen: no effect
  CHECK(placed(router, 1, 2) == 0);     // no engine has a session
  CHECK(placed(router, 2, 1) == 0);     // back on its engine: 2 0
  CHECK(placed(router, 3, 3) == 1);
  CHECK(placed(router, 4, 4) == 1);
}

TEST_CASE("router: a session counts from its first request") {
  Router router(RoutingKind::kRoundRobin, 2);
  CHECK(!router.knows(SessionId{3}));
  placed(router, 0, 3);
  CHECK(router.knows(SessionId{3}));
  CHECK(!router.knows(SessionId{2}));
}

TEST_CASE("router: the digest distinguishes two placements, and repeats") {
  const auto digest = [](RoutingKind kind) {
    Router router(kind, 2);
    for (uint32_t i = 0; i < 4; ++i) router.place(request(i, i / 2, 10 * i + 1, 1));
    return router.digest();
  };
  CHECK(digest(RoutingKind::kRoundRobin) == digest(RoutingKind::kRoundRobin));
  CHECK(digest(RoutingKind::kRoundRobin) != digest(RoutingKind::kSessionAffine));
}

TEST_CASE("router: prefix aware weighs cached tokens against pending ones") {
  Router router(RoutingKind::kPrefixAware, 3);
  const auto cached = [](EngineId engine, const RequestReady& ready) {
    return ready.session == SessionId{7} && raw(engine) == 2 ? 800u : 0u;
  };
  CHECK(raw(router.place(request(0, 7, 1000, 100), cached)) == 2);  // 1000, 1000, 200 tokens to come
  CHECK(raw(router.place(request(1, 7, 1000, 100), cached)) == 0);  // 1000, 1000, 1100 + 200
  CHECK(raw(router.place(request(2, 7, 1000, 100), cached)) == 1);  // 2100, 1000, 1300
  CHECK(raw(router.place(request(3, 7, 1000, 100), cached)) == 2);  // 2100, 2100, 1300
  router.ended(RequestId{1});
  CHECK(raw(router.place(request(4, 8, 500, 0), cached)) == 0);  // nothing cached: the idle engine
  CHECK(raw(router.place(request(5, 9, 500, 0))) == 0);          // no cache information: the load decides
}

TEST_CASE(
    "router: hint aware keeps a session that returns soon on its engine, and counts its context meanwhile") {
  Router router(RoutingKind::kHintAware, 2);
  CHECK(placed(router, 0, 1, 1000, 100) == 0);
  router.ended(RequestId{0});
  router.session_returns(SessionId{1}, {5'000'000'000});
  CHECK(placed(router, 1, 2, 300, 0) == 1);   // 1100 tokens are expected on the other
  CHECK(placed(router, 2, 1, 1200, 0) == 0);  // back, although engine 1 has less load
  router.ended(RequestId{2});
  router.session_returns(SessionId{1}, Router::kHintHorizon + Duration{1});
  CHECK(placed(router, 3, 3, 200, 0) == 0);  // it returns beyond the horizon, so its context is not counted
  CHECK(placed(router, 4, 1, 50, 0) == 0);   // 200, 300: the engine with the least load
  router.session_returns(SessionId{1}, {1});
  router.session_ended(SessionId{1});
  CHECK(placed(router, 5, 1, 1, 0) == 0);  // 250, 300: an ended session's expected tokens are not counted
}

TEST_CASE("router: engine numbers may start above zero") {
  Router router(RoutingKind::kRoundRobin, 2, EngineId{3});
  CHECK(placed(router, 0) == 3);
  CHECK(placed(router, 1) == 4);
  CHECK(placed(router, 2) == 3);
  CHECK(engines_of(router, 0) == std::vector<uint32_t>{3, 4});
}

TEST_CASE("router: the engines that got requests of a session are known in ascending order until it ends") {
  Router router(RoutingKind::kRoundRobin, 3, EngineId{2});
  for (uint32_t id = 0; id < 8; ++id) placed(router, id, id == 2 || id == 4 || id == 7 ? 5 : 6);
  CHECK(engines_of(router, 5) == std::vector<uint32_t>{3, 4});
  CHECK(engines_of(router, 6) == std::vector<uint32_t>{2, 3, 4});
  CHECK(engines_of(router, 7).empty());
  router.session_ended(SessionId{6});
  CHECK(engines_of(router, 6).empty());
  CHECK(engines_of(router, 5) == std::vector<uint32_t>{3, 4});
}
