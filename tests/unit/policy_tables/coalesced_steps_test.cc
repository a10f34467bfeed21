// Steps planned in advance: two steps in flight, and coalesced steps in one command.

#include <doctest/doctest.h>

#include "tests/support/policy_configs.h"
#include "tests/support/table.h"

using namespace kvtwin;
using kvtwin::testing::check_table;

namespace {

CoreConfig coalescing_config() {
  CoreConfig config = kvtwin::testing::table_config();
  config.repeat_max = 1'000;
  return config;
}
CoreConfig async_config() {
  CoreConfig config = kvtwin::testing::table_config();
  config.steps_in_flight_max = 2;
  return config;
}

}  // namespace

TEST_CASE("two steps: the next is planned while one runs, and none is launched after the last token") {
  check_table(async_config(), R"(
    arrive r1 prompt=8 output=3       launch s1 r1:8  launch s2 r1:1
    done s1                           emitted r1:1  launch s3 r1:1
    done s2                           -                           # s3 gives the last token
    done s3                           finish r1:3
  )");
}

TEST_CASE("two steps: a request that arrives joins the step after those in flight") {
  check_table(async_config(), R"(
    arrive r1 prompt=8 output=4       launch s1 r1:8  launch s2 r1:1
    arrive r2 prompt=8 output=2       -
    done s1                           launch s3 r1:1 r2:8
    done s2                           launch s4 r1:1 r2:1
    done s3                           -
    done s4                           finish r1:4  finish r2:2
  )");
}

TEST_CASE("two steps: end-of-sequence is known one step late") {
  check_table(async_config(), R"(
    arrive r1 prompt=8 output=9       launch s1 r1:8  launch s2 r1:1
    done s1                           launch s3 r1:1
    done s2 eos=r1                    -                           # the result of s3 is discarded
    done s3                           finish r1:2
  )");
}

TEST_CASE("coalesced steps end when the first of their requests ends") {
  check_table(coalescing_config(), R"(
    arrive r1 prompt=8 output=10      launch s1 r1:8
    arrive r2 prompt=8 output=4       -
    done s1                           launch s2 r1:1 r2:8         # a chunk is never coalesced
    done s2                           launch s3..s5 r1:1 r2:1
    done s3..s5                       finish r2:4  launch s6..s10 r1:1
    done s6..s10                      finish r1:10
  )");
}

TEST_CASE("coalesced steps end at a trigger") {
  check_table(coalescing_config(), R"(
    arrive r1 prompt=8 output=9 triggers=4     launch s1 r1:8
    done s1                           emitted r1:1  launch s2..s4 r1:1
    done s2..s4                       emitted r1:4  launch s5..s9 r1:1
    done s5..s9                       finish r1:9
  )");
}

TEST_CASE("coalesced steps get their pages in advance, as long as some are free") {
  CoreConfig config = coalescing_config();
  config.pages_gpu = 4;
  check_table(config, R"(
    arrive r1 prompt=16 output=48     launch s1 r1:16
    done s1                           launch s2..s48 r1:1         # three more pages
    done s2..s48                      finish r1:48
    arrive r2 prompt=16 output=20     launch s49 r2:16
    arrive r3 prompt=16 output=30     -
    done s49                          launch s50 r2:1 r3:16
    done s50                          launch s51..s65 r2:1 r3:1   # r3 gets the fourth page; then r2 needs one
    done s51..s65                     preempt r3  launch s66 r2:1
    done s66                          launch s67..s68 r2:1        # r3 waits for two pages
    done s67..s68                     finish r2:20  launch s69 r3:32
  )");
}

TEST_CASE("coalesced steps end after the running step when a request arrives") {
  check_table(coalescing_config(), R"(
    arrive r1 prompt=8 output=40      launch s1 r1:8
    done s1                           launch s2..s40 r1:1
    done s2..s4                       -                           # reported because of the arrival
    arrive r2 prompt=8 output=1       -
    done s5                           launch s6 r1:1 r2:8
    done s6                           finish r2:1  launch s7..s40 r1:1
    done s7..s40                      finish r1:40
  )");
}

TEST_CASE("coalesced steps end at a cancellation, and pages allocated in advance are freed") {
  CoreConfig config = coalescing_config();
  config.pages_gpu = 4;
  check_table(config, R"(
    arrive r1 prompt=16 output=48     launch s1 r1:16
    done s1                           launch s2..s48 r1:1
    cancel r1                         -
    done s2                           cancelled r1:1
    arrive r2 prompt=63 output=1      launch s3 r2:63             # all four pages are free
    done s3                           finish r2:1
  )");
}

TEST_CASE("coalesced steps end at end-of-sequence") {
  check_table(coalescing_config(), R"(
    arrive r1 prompt=8 output=40      launch s1 r1:8
    done s1                           launch s2..s40 r1:1
    done s2..s9 eos=r1                finish r1:9
  )");
}

TEST_CASE("coalesced steps with two in flight: the step after them is planned while the last one runs") {
  CoreConfig config = coalescing_config();
  config.steps_in_flight_max = 2;
  check_table(config, R"(
    arrive r1 prompt=8 output=5       launch s1 r1:8  launch s2..s5 r1:1
    done s1                           emitted r1:1
    done s2..s4                       -
    done s5                           finish r1:5
  )");
}

TEST_CASE("coalesced steps: repeat_max is their largest number") {
  CoreConfig config = coalescing_config();
  config.repeat_max = 3;
  check_table(config, R"(
    arrive r1 prompt=8 output=6       launch s1 r1:8
    done s1                           launch s2..s4 r1:1
    done s2..s4                       launch s5..s6 r1:1
    done s5..s6                       finish r1:6
  )");
}
