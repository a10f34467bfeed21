// Which prefixes are reused, by which requests, and what is recomputed.

#include <doctest/doctest.h>

#include "tests/support/policy_configs.h"
#include "tests/support/table.h"

using namespace kvtwin;
using kvtwin::testing::check_table;

namespace {

CoreConfig cached_config() {
  CoreConfig config = kvtwin::testing::table_config();
  config.prefix_cache = true;
  return config;
}

}  // namespace

TEST_CASE("prefix: whole pages are reused, and at least one token is computed") {
  check_table(cached_config(), R"(
    arrive r1 prompt=48 output=1 is=a:48     launch s1 r1:48
    done s1                                  finish r1:1
    arrive r2 prompt=50 output=1 is=a:48     launch s2 r2:2+48
    done s2                                  finish r2:1
    arrive r3 prompt=48 output=1 is=a:48     launch s3 r3:16+32   # all is cached: the last page again
    done s3                                  finish r3:1
    arrive r4 prompt=47 output=1 is=a:32     launch s4 r4:15+32
    done s4                                  finish r4:1
  )");
}

TEST_CASE("prefix: units smaller than a page are reused by whole pages only") {
  CoreConfig config = cached_config();
  config.unit_tokens = 4;
  check_table(config, R"(
    arrive r1 prompt=40 output=1 is=a:40          launch s1 r1:40
    done s1                                       finish r1:1
    arrive r2 prompt=40 output=1 is=a:28,b:12     launch s2 r2:24+16   # they diverge inside the second page
    done s2                                       finish r2:1
  )");
}

TEST_CASE("prefix: output is reused by the next turn as far as its identity is known") {
  check_table(cached_config(), R"(
    arrive r1 prompt=16 output=17 is=a:32     launch s1 r1:16
    done s1     launch s2 r1:1
    done s2     launch s3 r1:1
    done s3     launch s4 r1:1
    done s4     launch s5 r1:1
    done s5     launch s6 r1:1
    done s6     launch s7 r1:1
    done s7     launch s8 r1:1
    done s8     launch s9 r1:1
    done s9     launch s10 r1:1
    done s10    launch s11 r1:1
    done s11    launch s12 r1:1
    done s12    launch s13 r1:1
    done s13    launch s14 r1:1
    done s14    launch s15 r1:1
    done s15    launch s16 r1:1
    done s16    launch s17 r1:1
    done s17    finish r1:17
    arrive r2 prompt=40 output=1 is=a:32     launch s18 r2:8+32
    done s18    finish r2:1
  )");
}

TEST_CASE("prefix: private units are not found by other requests") {
  check_table(cached_config(), R"(
    arrive r1 prompt=32 output=1 is=A:32     launch s1 r1:32
    done s1                                  finish r1:1
    arrive r2 prompt=33 output=1 is=A:32     launch s2 r2:33
    done s2                                  finish r2:1
  )");
}

TEST_CASE("prefix: two requests of one step share the prefix that the first of them computes") {
  check_table(cached_config(), R"(
    arrive r1 prompt=8 output=2               launch s1 r1:8
    arrive r2 prompt=20 output=1 is=a:16      -
    arrive r3 prompt=21 output=1 is=a:16      -
    done s1                                   launch s2 r1:1 r2:20 r3:5+16
    done s2                                   finish r1:2  finish r2:1  finish r3:1
  )");
}

TEST_CASE("prefix: sessions do not see each other where identity is session") {
  CoreConfig config = cached_config();
  config.policies.identity = "session";
  check_table(config, R"(
    arrive r1 prompt=40 output=1 is=a:32 session=1     launch s1 r1:40
    done s1                                            finish r1:1
    arrive r2 prompt=40 output=1 is=a:32 session=2     launch s2 r2:40
    done s2                                            finish r2:1
    arrive r3 prompt=40 output=1 is=a:32 session=1     launch s3 r3:8+32
    done s3                                            finish r3:1
  )");
}

TEST_CASE("prefix: nothing is reused where identity is none, or without a cache") {
  CoreConfig none = cached_config();
  none.policies.identity = "none";
  CoreConfig off = cached_config();
  off.prefix_cache = false;
  for (const CoreConfig& config : {none, off}) {
    check_table(config, R"(
      arrive r1 prompt=40 output=1 is=a:32     launch s1 r1:40
      done s1                                  finish r1:1
      arrive r2 prompt=40 output=1 is=a:32     launch s2 r2:40
      done s2                                  finish r2:1
    )");
  }
}

TEST_CASE("prefix: the oldest prefix is evicted from its tail when pages run out") {
  CoreConfig config = cached_config();
  config.pages_gpu = 6;
  check_table(config, R"(
    arrive r1 prompt=32 output=1 is=a:32     launch s1 r1:32
    done s1                                  finish r1:1
    arrive r2 prompt=32 output=1 is=b:32     launch s2 r2:32
    done s2                                  finish r2:1
    arrive r3 prompt=48 output=1 is=c:48     launch s3 r3:48      # 2 free, 3 needed: a's second page is evicted
    done s3                                  finish r3:1
    arrive r4 prompt=33 output=1 is=a:32     launch s4 r4:17+16
    done s4                                  finish r4:1
  )");
}
