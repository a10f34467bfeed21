#include "engine/kv/session_store.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <list>
#include <map>

#include "engine/base/prng.h"

using namespace kvtwin;

TEST_CASE("session store: the least recently used session is evicted first, as in a plain list") {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    const auto capacity = static_cast<uint32_t>(prng.range(1, 5));
    SessionStore store(capacity);
    std::map<uint32_t, uint32_t> requests;  // of stored sessions and of sessions with unfinished requests
    std::list<uint32_t> retained;           // in order of use
    for (int operation = 0; operation < 300; ++operation) {
      const auto id = static_cast<uint32_t>(prng.range(0, 9));
      const SessionId session{id};
      if (prng.chance(1, 10)) {
        CHECK(store.forget(session) == (std::count(retained.begin(), retained.end(), id) > 0));
        retained.remove(id);
      } else if (requests[id] > 0 && prng.chance(1, 2)) {
        store.end(session);
        --requests[id];
        if (std::count(retained.begin(), retained.end(), id) > 0) {
          retained.remove(id);
          retained.push_back(id);
        }
      } else {
        store.begin(session);
        ++requests[id];
        retained.remove(id);
        retained.push_back(id);
      }
      SessionId dropped;
      while (store.take_surplus(&dropped)) {
        const auto oldest =
            std::find_if(retained.begin(), retained.end(), [&](uint32_t k) { return requests[k] == 0; });
        REQUIRE(oldest != retained.end());
        CHECK(raw(dropped) == *oldest);
        retained.erase(oldest);
      }
      store.check_invariants();
      CHECK(store.retained() == retained.size());
      const bool idle =
          std::any_of(retained.begin(), retained.end(), [&](uint32_t k) { return requests[k] == 0; });
      CHECK((store.retained() <= capacity || !idle));
    }
  }
}
