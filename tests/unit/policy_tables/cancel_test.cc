// Cancellation in every state of a request.

#include <doctest/doctest.h>

#include "tests/support/policy_configs.h"
#include "tests/support/table.h"

using namespace kvtwin;
using kvtwin::testing::check_table;
using kvtwin::testing::table_config;

TEST_CASE("cancel: a waiting request ends at once") {
  check_table(table_config(), R"(
    arrive r1 prompt=64 output=2      launch s1 r1:64
    arrive r2 prompt=64 output=2      -
    cancel r2                         cancelled r2:0
    done s1                           launch s2 r1:1
    done s2                           finish r1:2
  )");
}

TEST_CASE("cancel: a running request ends at the next step boundary with the tokens emitted so far") {
  check_table(table_config(), R"(
    arrive r1 prompt=8 output=9       launch s1 r1:8
    done s1                           launch s2 r1:1
    cancel r1                         -
    done s2                           cancelled r1:1              # the token of s2 is discarded
  )");
}

TEST_CASE("cancel: a request ends between chunks of its prompt") {
  check_table(table_config(), R"(
    arrive r1 prompt=100 output=9     launch s1 r1:64
    cancel r1                         -
    arrive r2 prompt=5 output=1       -
    done s1                           cancelled r1:0  launch s2 r2:5
    done s2                           finish r2:1
  )");
}

TEST_CASE("cancel: with two steps in flight the request leaves when both have ended") {
  CoreConfig config = table_config();
  config.steps_in_flight_max = 2;
  check_table(config, R"(
    arrive r1 prompt=8 output=9       launch s1 r1:8  launch s2 r1:1
    cancel r1                         -
    done s1                           -
    done s2                           cancelled r1:0
  )");
}

TEST_CASE("cancel: a request that is unknown, or has just ended, changes nothing") {
  check_table(table_config(), R"(
    arrive r1 prompt=8 output=1       launch s1 r1:8
    done s1                           finish r1:1
    cancel r1                         -
  )");
}

TEST_CASE("cancel: a preempted request ends where it waits") {
  CoreConfig config = table_config();
  config.pages_gpu = 4;
  check_table(config, R"(
    arrive r1 prompt=16 output=18     launch s1 r1:16
    arrive r2 prompt=32 output=9      -
    done s1                           launch s2 r1:1 r2:32        # 2 + 2 pages
    done s2                           preempt r2  launch s3 r1:1
    cancel r2                         cancelled r2:1
    done s3                           launch s4 r1:1
  )");
}

TEST_CASE("cancel: a session's end is forwarded to the backend") {
  check_table(table_config(), R"(
    arrive r1 prompt=8 output=1 session=7     launch s1 r1:8
    done s1                           finish r1:1
    end 7                             forget 7
  )");
}
