// The acceptance tests of docs/design/trace-formats.md#importers on six real sessions, fast enough for every
// build; weka_whole_test.cc has all sessions.
#include "tests/unit/traces/weka_acceptance.h"

using namespace kvtwin;
using namespace kvtwin::testing;

TEST_CASE("WEKA sample: six real sessions are exported field by field, pass all checks, and replay in time") {
  KVT_NEED_DATA(path, "weka-claude-code/sample");
  const WekaAcceptance got = accept_weka(path);
  CHECK(got.sessions == 6);
  CHECK(got.requests == 1219);
  CHECK(got.requests_equal == got.requests);
  CHECK(percentile(got.step_ns, 0.01) >= -1'000'000'000);
  CHECK(percentile(got.step_ns, 0.99) <= 1'000'000'000);
}
