// Memory is short: which request is preempted, and how it resumes.

#include <doctest/doctest.h>

#include "tests/support/policy_configs.h"
#include "tests/support/table.h"

using namespace kvtwin;
using kvtwin::testing::check_table;
using kvtwin::testing::table_config;

TEST_CASE("preempt: the newest request is preempted and recomputed with its emitted tokens") {
  CoreConfig config = table_config();
  config.pages_gpu = 5;
  check_table(config, R"(
    arrive r1 prompt=32 output=18     launch s1 r1:32             # 2 pages, then 3
    arrive r2 prompt=31 output=8      -
    done s1                           launch s2 r1:1 r2:31        # 3 + 2
    done s2                           launch s3 r1:1 r2:1         # position 31 of r2 fills its 2nd page
    done s3                           preempt r2  launch s4 r1:1  # r2 would need a 6th
    done s4                           launch s5 r1:1
    cancel r1                         -
    done s5                           cancelled r1:4  launch s6 r2:33   # 31 of prompt, 2 emitted before
    done s6                           launch s7 r2:1
  )");
}

TEST_CASE("preempt: a preempted request reuses its cached prefix") {
  CoreConfig config = table_config();
  config.pages_gpu = 5;
  config.prefix_cache = true;
  check_table(config, R"(
    arrive r1 prompt=32 output=18 is=a:32     launch s1 r1:32
    arrive r2 prompt=31 output=8 is=b:16      -
    done s1                                   launch s2 r1:1 r2:31
    done s2                                   launch s3 r1:1 r2:1
    done s3                                   preempt r2  launch s4 r1:1
    done s4                                   launch s5 r1:1
    cancel r1                                 -
    done s5                                   cancelled r1:4  launch s6 r2:17+16
  )");
}

TEST_CASE("preempt: a request that runs alone is never preempted: one that cannot fit was rejected") {
  CoreConfig config = table_config();
  config.pages_gpu = 2;
  check_table(config, R"(
    arrive r1 prompt=20 output=12     launch s1 r1:20
    arrive r2 prompt=30 output=3      reject r2 pool 3>2
  )");
}

TEST_CASE("preempt: with two steps in flight, the running step still counts for the preempted request") {
  CoreConfig config = table_config();
  config.pages_gpu = 3;
  config.steps_in_flight_max = 2;
  check_table(config, R"(
    arrive r1 prompt=15 output=9      launch s1 r1:15  launch s2 r1:1
    arrive r2 prompt=16 output=9      -
    done s1                           emitted r1:1  launch s3 r1:1 r2:16
    done s2                           preempt r2  launch s4 r1:1  # r2 would need a fourth page
    done s3                           emitted r2:1  launch s5 r1:1   # its step was under way
    cancel r1                         -
    done s4                           -
    done s5                           cancelled r1:3  launch s6 r2:17  launch s7 r2:1  # with r2's emitted token
  )");
}

namespace {

// An engine that only prefills: five pages, chunks of two pages.
CoreConfig prefilling() {
  CoreConfig config = table_config();
  config.pages_gpu = 5;
  config.step_tokens_max = 32;
  config.prefill_only = true;
  return config;
}

}  // namespace

TEST_CASE(
    "preempt: a request that runs alone waits for pages being handed over; freeing its own would not help") {
  check_table(prefilling(), R"(
    arrive r1 prompt=32 output=9      launch s1 r1:32
    done s1                           over r1 2
    arrive r2 prompt=78 output=2      launch s2 r2:32
    done s2                           -                  # one page is free, two are needed
    taken r1                          launch s3 r2:32
    done s3                           launch s4 r2:14
    done s4                           over r2 5
  )");
  CoreConfig config = prefilling();
  config.steps_in_flight_max = 2;
  check_table(config, R"(
    arrive r1 prompt=32 output=9      launch s1 r1:32
    done s1                           over r1 2
    arrive r2 prompt=78 output=2      launch s2 r2:32    # its step is in flight
    done s2                           -
    taken r1                          launch s3 r2:32  launch s4 r2:14
    done s3                           -
    done s4                           over r2 5
  )");
}

// --- by swapping

namespace {

CoreConfig demoting() {
  CoreConfig config = table_config();
  config.pages_gpu = 5;
  config.pages_host = 8;
  config.policies.placement = "host";
  config.preemption = PreemptionKind::kSwap;
  return config;
}

}  // namespace

TEST_CASE("swap: the newest request's pages go to the host, and it continues where it was") {
  check_table(demoting(), R"(
    arrive r1 prompt=32 output=18     launch s1 r1:32
    arrive r2 prompt=31 output=8      -
    done s1                           launch s2 r1:1 r2:31
    done s2                           launch s3 r1:1 r2:1
    done s3                           send t1 2  preempt r2  launch s4 r1:1
    arrived t1                        -                           # 3 pages are needed, 2 are free
    done s4                           launch s5 r1:1
    cancel r1                         -
    done s5                           cancelled r1:4  return t2 2
    arrived t2                        launch s6 r2:1+32           # nothing is computed again
    done s6                           launch s7 r2:1
  )");
}

TEST_CASE("swap: a request is recomputed if its copy fails or the host has no room") {
  check_table(demoting(), R"(
    arrive r1 prompt=32 output=18     launch s1 r1:32
    arrive r2 prompt=31 output=8      -
    done s1                           launch s2 r1:1 r2:31
    done s2                           launch s3 r1:1 r2:1
    done s3                           send t1 2  preempt r2  launch s4 r1:1
    failed t1                         -
    done s4                           launch s5 r1:1
    cancel r1                         -
    done s5                           cancelled r1:4  launch s6 r2:33
  )");
  CoreConfig config = demoting();
  config.pages_host = 1;
  check_table(config, R"(
    arrive r1 prompt=32 output=18     launch s1 r1:32
    arrive r2 prompt=31 output=8      -
    done s1                           launch s2 r1:1 r2:31
    done s2                           launch s3 r1:1 r2:1
    done s3                           preempt r2  launch s4 r1:1
  )");
}

TEST_CASE(
    "swap: a request short of a page waits for a copy in flight; a swapped-out request can be cancelled") {
  check_table(demoting(), R"(
    arrive r1 prompt=31 output=20     launch s1 r1:31
    arrive r2 prompt=33 output=8      -
    done s1                           launch s2 r1:1 r2:33        # 2 + 3
    done s2                           send t1 3  preempt r2       # r1 needs a third page
    cancel r2                         cancelled r2:1
    arrived t1                        launch s3 r1:1
  )");
}
