#include "engine/policy/router.h"

#include <doctest/doctest.h>

#include <vector>

using namespace kvtwin;

namespace {

CallReady call(uint32_t id, uint32_t session, uint32_t prompt, uint32_t output) {
  CallReady ready;
  ready.call = CallId{id};
  ready.session = SessionId{session};
  ready.prompt_tokens = prompt;
  ready.output_tokens = output;
  return ready;
}

uint32_t placed(Router& router, uint32_t id, uint32_t session = 0, uint32_t prompt = 1, uint32_t output = 1) {
  const EngineId engine = router.place(call(id, session, prompt, output));
  CHECK(router.engine_of(CallId{id}) == engine);
  return raw(engine);
}

}  // namespace

TEST_CASE("router: round robin goes around, whatever the load") {
  Router router(RoutingKind::kRoundRobin, 3);
  CHECK(placed(router, 0, 0, 1'000'000) == 0);
  CHECK(placed(router, 1) == 1);
  router.ended(CallId{1});
  CHECK(placed(router, 2) == 2);
  CHECK(placed(router, 3) == 0);
}

TEST_CASE("router: least loaded counts the tokens of calls that have not ended, prompt and output") {
  Router router(RoutingKind::kLeastLoaded, 2);
  CHECK(placed(router, 0, 0, 100, 50) == 0);  // 150 0   equal loads: the lowest engine
  CHECK(placed(router, 1, 0, 100, 0) == 1);   // 150 100
  CHECK(placed(router, 2, 0, 40, 10) == 1);   // 150 150
  CHECK(placed(router, 3, 0, 1, 0) == 0);     // 151 150
  router.ended(CallId{1});                    // 151 50
  CHECK(placed(router, 4, 0, 50, 50) == 1);   // 151 150
  router.ended(CallId{0});                    // 1   150
  CHECK(placed(router, 5, 0, 1, 1) == 0);
}

TEST_CASE("router: a session stays where it is; a new one goes where the fewest live") {
  Router router(RoutingKind::kSessionAffine, 2);
  CHECK(placed(router, 0, 7, 1'000) == 0);
  CHECK(placed(router, 1, 8) == 1);
  CHECK(placed(router, 2, 9) == 0);  // one each: the lowest engine
  CHECK(placed(router, 3, 7) == 0);  // its own engine, although the other has fewer sessions
  CHECK(placed(router, 4, 10) == 1);
  router.session_ended(SessionId{7});
  router.session_ended(SessionId{9});  // none against two
  CHECK(placed(router, 5, 11) == 0);
  CHECK(placed(router, 6, 12) == 0);
  CHECK(router.engine_of_session(SessionId{8}) == EngineId{1});
}

TEST_CASE("router: a session that ended and comes back finds its engine again, and counts once") {
  Router router(RoutingKind::kSessionAffine, 2);
  CHECK(placed(router, 0, 1) == 0);
  router.session_ended(SessionId{1});
  router.session_ended(SessionId{1});   // again: nothing
  router.session_ended(SessionId{99});  // never seen: nothing
  CHECK(placed(router, 1, 2) == 0);     // nobody lives anywhere
  CHECK(placed(router, 2, 1) == 0);     // back home: 2 0
  CHECK(placed(router, 3, 3) == 1);
  CHECK(placed(router, 4, 4) == 1);
}

TEST_CASE("router: sessions are known from their first call on") {
  Router router(RoutingKind::kRoundRobin, 2);
  CHECK(!router.knows(SessionId{3}));
  placed(router, 0, 3);
  CHECK(router.knows(SessionId{3}));
  CHECK(!router.knows(SessionId{2}));
}

TEST_CASE("router: the digest tells two placements apart, and repeats") {
  const auto digest = [](RoutingKind kind) {
    Router router(kind, 2);
    for (uint32_t i = 0; i < 4; ++i) router.place(call(i, i / 2, 10 * i + 1, 1));
    return router.digest();
  };
  CHECK(digest(RoutingKind::kRoundRobin) == digest(RoutingKind::kRoundRobin));
  CHECK(digest(RoutingKind::kRoundRobin) != digest(RoutingKind::kSessionAffine));
}
