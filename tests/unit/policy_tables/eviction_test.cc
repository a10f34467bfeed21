// Which cached prefix is evicted first when a new request needs pages.

#include <doctest/doctest.h>

#include "tests/support/policy_configs.h"
#include "tests/support/table.h"

using namespace kvtwin;
using kvtwin::testing::check_table;

namespace {

// Eight pages: the prefixes of three sessions, two pages each, fill all but two of them.
CoreConfig eight_pages(const char* eviction) {
  CoreConfig config = kvtwin::testing::table_config();
  config.prefix_cache = true;
  config.pages_gpu = 8;
  config.prefix_eviction = eviction;
  return config;
}

std::string three_sessions(const std::string& then) {
  return R"(
    arrive r1 prompt=32 output=1 session=1 is=a:32     launch s1 r1:32
    done s1                                            finish r1:1
    arrive r2 prompt=32 output=1 session=2 is=b:32     launch s2 r2:32
    done s2                                            finish r2:1
    arrive r3 prompt=32 output=1 session=3 is=c:32     launch s3 r3:32
    done s3                                            finish r3:1
)" + then;
}

}  // namespace

TEST_CASE("eviction: lru evicts the session that was idle longest, regardless of hints") {
  check_table(eight_pages("lru"), three_sessions(R"(
    expect 1 s=1                                       -
    end 2                                              forget 2
    arrive r4 prompt=64 output=1 session=4 is=d:64     launch s4 r4:64
    done s4                                            finish r4:1
    arrive r5 prompt=33 output=1 session=1 is=a:32     launch s5 r5:33
  )"));
}

TEST_CASE("eviction: session_aware evicts an ended session first") {
  check_table(eight_pages("session_aware"), three_sessions(R"(
    expect 1 s=1                                       -
    end 2                                              forget 2
    expect 3 s=1                                       -
    arrive r4 prompt=64 output=1 session=4 is=d:64     launch s4 r4:64
    done s4                                            finish r4:1
    arrive r5 prompt=33 output=1 session=1 is=a:32     launch s5 r5:1+32
    done s5                                            finish r5:1
    arrive r6 prompt=33 output=1 session=3 is=c:32     launch s6 r6:1+32
  )"));
}

TEST_CASE("eviction: session_aware then evicts expected sessions by age, regardless of the announced times") {
  check_table(eight_pages("session_aware"), three_sessions(R"(
    expect 1 s=5                                       -
    expect 2 s=50                                      -
    expect 3 s=20                                      -
    arrive r4 prompt=64 output=1 session=4 is=d:64     launch s4 r4:64
    done s4                                            finish r4:1
    arrive r5 prompt=33 output=1 session=2 is=b:32     launch s5 r5:1+32
    done s5                                            finish r5:1
    arrive r6 prompt=33 output=1 session=3 is=c:32     launch s6 r6:1+32
    done s6                                            finish r6:1
    arrive r7 prompt=33 output=1 session=1 is=a:32     launch s7 r7:33
  )"));
}

TEST_CASE("eviction: session_aware without hints is lru") {
  check_table(eight_pages("session_aware"), three_sessions(R"(
    arrive r4 prompt=64 output=1 session=4 is=d:64     launch s4 r4:64
    done s4                                            finish r4:1
    arrive r5 prompt=33 output=1 session=2 is=b:32     launch s5 r5:1+32
    done s5                                            finish r5:1
    arrive r6 prompt=33 output=1 session=1 is=a:32     launch s6 r6:33
  )"));
}

TEST_CASE("eviction: a prefix that a waiting request will use stays, although it is the oldest") {
  CoreConfig config = eight_pages("session_aware");
  config.requests_max = 1;
  check_table(config, three_sessions(R"(
    expect 1 s=20                                      -
    expect 2 s=20                                      -
    expect 3 s=20                                      -
    arrive r4 prompt=64 output=2 session=4 is=d:64     launch s4 r4:64     # takes session 1's two pages
    arrive r5 prompt=33 output=1 session=2 is=b:32     -                   # waits
    expect 2 s=50                                      -                   # no effect: session 2 has a request
    done s4                                            launch s5 r4:1      # a fifth page: of session 3
    done s5                                            finish r4:2 launch s6 r5:1+32
  )"));
}

TEST_CASE("eviction: a prefix that two sessions share stays while one of them is expected") {
  check_table(eight_pages("session_aware"), R"(
    arrive r1 prompt=32 output=1 session=1 is=a:32     launch s1 r1:32
    done s1                                            finish r1:1
    arrive r2 prompt=33 output=1 session=2 is=a:32     launch s2 r2:1+32
    done s2                                            finish r2:1
    expect 1 s=50                                      -
    end 2                                              forget 2
    arrive r3 prompt=32 output=1 session=3 is=c:32     launch s3 r3:32
    done s3                                            finish r3:1
    expect 3 s=20                                      -
    end 3                                              forget 3
    arrive r4 prompt=96 output=1 session=4 is=d:96     launch s4 r4:64
    done s4                                            launch s5 r4:32
    done s5                                            finish r4:1
    arrive r5 prompt=33 output=1 session=1 is=a:32     launch s6 r5:1+32
  )");
}

// The rank is 1,024 x uses above the floor, and rises with every page before the node.
TEST_CASE("eviction: cost_aware evicts single-use prefixes before reused ones, and ages them") {
  check_table(eight_pages("cost_aware"), three_sessions(R"(
    arrive r4 prompt=33 output=1 session=1 is=a:32     launch s4 r4:1+32   # used twice: 2,048
    done s4                                            finish r4:1
    arrive r5 prompt=64 output=1 session=4 is=d:64     launch s5 r5:64     # b is evicted at 1,024: the floor
    done s5                                            finish r5:1
    arrive r6 prompt=33 output=1 session=1 is=a:32     launch s6 r6:1+32   # one page more: c's tail
    done s6                                            finish r6:1
    arrive r7 prompt=64 output=1 session=5 is=e:64     launch s7 r7:64     # c, then d (floor + 1,024) for a (floor + 3,072)
    done s7                                            finish r7:1
    arrive r8 prompt=33 output=1 session=1 is=a:32     launch s8 r8:1+32
  )"));
}

TEST_CASE("eviction: cost_aware keeps pages after a long context, which take longer to recompute") {
  CoreConfig config = eight_pages("cost_aware");
  config.eviction_doubling_tokens = 16;
  check_table(config, R"(
    arrive r1 prompt=64 output=1 session=1 is=a:64     launch s1 r1:64     # a node of four pages: middle 2
    done s1                                            finish r1:1
    arrive r2 prompt=32 output=1 session=2 is=b:32     launch s2 r2:32     # of two: middle 1
    done s2                                            finish r2:1
    arrive r3 prompt=48 output=1 session=3 is=c:48     launch s3 r3:48     # b's tail, although a is older
    done s3                                            finish r3:1
    arrive r4 prompt=65 output=1 session=1 is=a:64     launch s4 r4:1+64
  )");
}

TEST_CASE("eviction: cost_aware evicts an old favourite once others were evicted at a higher rank") {
  check_table(eight_pages("cost_aware"), R"(
    arrive r1 prompt=32 output=1 session=1 is=a:32     launch s1 r1:32
    done s1                                            finish r1:1
    arrive r2 prompt=33 output=1 session=1 is=a:32     launch s2 r2:1+32
    done s2                                            finish r2:1
    arrive r3 prompt=33 output=1 session=1 is=a:32     launch s3 r3:1+32
    done s3                                            finish r3:1         # a: 3,072
    arrive r4 prompt=64 output=1 session=2 is=b:64     launch s4 r4:64
    done s4                                            finish r4:1
    arrive r5 prompt=65 output=1 session=2 is=b:64     launch s5 r5:1+64
    done s5                                            finish r5:1         # b: 2,048
    arrive r6 prompt=64 output=1 session=3 is=c:64     launch s6 r6:64     # for two of b's pages: the floor
    done s6                                            finish r6:1
    arrive r7 prompt=65 output=1 session=3 is=c:64     launch s7 r7:1+64
    done s7                                            finish r7:1         # c: 2,048 + 2,048
    arrive r8 prompt=64 output=1 session=4 is=d:64     launch s8 r8:64     # for what is left of b, and for a
    done s8                                            finish r8:1
    arrive r9 prompt=65 output=1 session=3 is=c:64     launch s9 r9:1+64
  )");
}
