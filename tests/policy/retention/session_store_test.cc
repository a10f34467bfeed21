#include "engine/policy/session_store.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <list>
#include <map>

#include "engine/base/prng.h"

using namespace kvtwin;

TEST_CASE("session store: the session used longest ago goes first, against a plain list") {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    const auto capacity = static_cast<uint32_t>(prng.range(1, 5));
    SessionStore store(capacity);
    std::map<uint32_t, uint32_t> calls;  // of kept sessions and of those with calls under way
    std::list<uint32_t> kept;            // in order of use
    for (int operation = 0; operation < 300; ++operation) {
      const auto id = static_cast<uint32_t>(prng.range(0, 9));
      const SessionId session{id};
      if (prng.chance(1, 10)) {
        CHECK(store.forget(session) == (std::count(kept.begin(), kept.end(), id) > 0));
        kept.remove(id);
      } else if (calls[id] > 0 && prng.chance(1, 2)) {
        store.end(session);
        --calls[id];
        if (std::count(kept.begin(), kept.end(), id) > 0) {
          kept.remove(id);
          kept.push_back(id);
        }
      } else {
        store.begin(session);
        ++calls[id];
        kept.remove(id);
        kept.push_back(id);
      }
      SessionId gone;
      while (store.take_surplus(&gone)) {
        const auto oldest = std::find_if(kept.begin(), kept.end(), [&](uint32_t k) { return calls[k] == 0; });
        REQUIRE(oldest != kept.end());
        CHECK(raw(gone) == *oldest);
        kept.erase(oldest);
      }
      store.check_invariants();
      CHECK(store.kept() == kept.size());
      const bool idle = std::any_of(kept.begin(), kept.end(), [&](uint32_t k) { return calls[k] == 0; });
      CHECK((store.kept() <= capacity || !idle));
    }
  }
}
