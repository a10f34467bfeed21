// tool_ttl: how long the prefixes of a waiting session stay follows from the tool's pauses so far.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include "tests/support/policy_configs.h"
#include "tests/support/table.h"

using namespace kvtwin;
using kvtwin::testing::check_table;

namespace {

// Computing all eight pages again takes 20 s. The prefixes of three sessions, two pages each, fill six.
CoreConfig eight_pages() {
  CoreConfig config = kvtwin::testing::table_config();
  config.prefix_cache = true;
  config.pages_gpu = 8;
  config.prefix_eviction = "tool_ttl";
  config.eviction_refill = Duration{20'000'000'000};
  return config;
}

const std::string kThreeSessions = R"(
    arrive r1 prompt=32 output=1 session=1 is=a:32     launch s1 r1:32
    done s1                                            finish r1:1
    arrive r2 prompt=32 output=1 session=2 is=b:32     launch s2 r2:32
    done s2                                            finish r2:1
    arrive r3 prompt=32 output=1 session=3 is=c:32     launch s3 r3:32
    done s3                                            finish r3:1
)";

// A session pauses for `seconds`, `times` times, and runs `tool` in each. Its requests are numbered from
// `first` on.
std::string pauses(uint32_t first, uint32_t times, uint32_t tool, uint32_t seconds) {
  std::string lines;
  for (uint32_t n = first; n < first + times; ++n) {
    lines += fmt::format(
        "expect 9 s=1 tool={} -\n"
        "arrive r{} prompt=16 output=1 session=9 after={} launch s{} r{}:16\n"
        "done s{} finish r{}:1\n",
        tool, n, seconds, n, n, n, n);
  }
  return lines;
}

}  // namespace

TEST_CASE("tool_ttl: a tool without a history may take as long as computing the whole cache") {
  check_table(eight_pages(), kThreeSessions + R"(
    expect 2 s=1 tool=1                                        -
    expect 3 s=1 tool=2                                        -
    expect 1 s=1 tool=1 after=15                               -
    arrive r4 prompt=64 output=1 session=4 is=d:64 after=10    launch s4 r4:64     # 2 and 3 are overdue
    done s4                                                    finish r4:1
    arrive r5 prompt=33 output=1 session=1 is=a:32             launch s5 r5:1+32   # the oldest, still awaited
    done s5                                                    finish r5:1
    arrive r6 prompt=33 output=1 session=2 is=b:32             launch s6 r6:33
  )");
}

TEST_CASE("tool_ttl: a session that runs a slow tool is not awaited, one that runs a quick tool is") {
  const std::string history = pauses(4, 8, 1, 1) + pauses(12, 8, 2, 300);
  check_table(eight_pages(), kThreeSessions + history + R"(
    expect 1 s=1 tool=1                                        -
    expect 3 s=1 tool=1                                        -
    expect 2 s=1 tool=2                                        -
    arrive r20 prompt=64 output=1 session=4 is=d:64            launch s20 r20:64
    done s20                                                   finish r20:1
    arrive r21 prompt=33 output=1 session=1 is=a:32            launch s21 r21:1+32
    done s21                                                   finish r21:1
    arrive r22 prompt=33 output=1 session=2 is=b:32            launch s22 r22:33
  )");
}

// Six pauses of 1 s and two of 100 s. Until 1 s: 6/8 x 20 s - 1 s = 14 s gained; until 100 s: 20 s - 100 s.
TEST_CASE("tool_ttl: of a quick tool that is sometimes slow, the quick runs are awaited") {
  const std::string history = pauses(4, 6, 1, 1) + pauses(10, 2, 1, 100);
  const std::string announced = R"(
    expect 2 s=1 tool=1                                        -
    expect 3 s=1 tool=1                                        -
    expect 1 s=1 tool=1)";
  const std::string then = R"( is=d:64   launch s12 r12:64
    done s12                                                   finish r12:1
  )";
  SUBCASE("for 1 s after the announcement all three are awaited, and the oldest goes") {
    check_table(eight_pages(), kThreeSessions + history + announced + R"( -
      arrive r12 prompt=64 output=1 session=4)" +
                                   then + R"(
      arrive r13 prompt=33 output=1 session=2 is=b:32          launch s13 r13:1+32
      done s13                                                 finish r13:1
      arrive r14 prompt=33 output=1 session=1 is=a:32          launch s14 r14:33
    )");
  }
  SUBCASE("2 s after the announcement of two of them, the older of the two goes") {
    check_table(eight_pages(), kThreeSessions + history + announced + R"( after=2 -
      arrive r12 prompt=64 output=1 session=4)" +
                                   then + R"(
      arrive r13 prompt=33 output=1 session=1 is=a:32          launch s13 r13:1+32
      done s13                                                 finish r13:1
      arrive r14 prompt=33 output=1 session=2 is=b:32          launch s14 r14:33
    )");
  }
}

TEST_CASE("tool_ttl: a tool with few runs is judged by those of all tools") {
  const std::string history = pauses(4, 7, 1, 300) + pauses(11, 1, 2, 300);
  check_table(eight_pages(), kThreeSessions + history + R"(
    expect 2 s=1 tool=3                                        -
    expect 1 s=1 tool=3                                        -
    arrive r12 prompt=64 output=1 session=4 is=d:64            launch s12 r12:64   # neither is awaited
    done s12                                                   finish r12:1
    arrive r13 prompt=33 output=1 session=2 is=b:32            launch s13 r13:1+32
    done s13                                                   finish r13:1
    arrive r14 prompt=33 output=1 session=1 is=a:32            launch s14 r14:33
  )");
}

TEST_CASE("tool_ttl: with no refill time no session is awaited, which is lru") {
  CoreConfig config = eight_pages();
  config.eviction_refill = {};
  check_table(config, kThreeSessions + R"(
    expect 1 s=1 tool=1                                        -
    arrive r4 prompt=64 output=1 session=4 is=d:64             launch s4 r4:64
    done s4                                                    finish r4:1
    arrive r5 prompt=33 output=1 session=2 is=b:32             launch s5 r5:1+32
    done s5                                                    finish r5:1
    arrive r6 prompt=33 output=1 session=1 is=a:32             launch s6 r6:33
  )");
}
