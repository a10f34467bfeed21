// Placement "resident" with a prefix cache: prefixes are on the host, and are copied to the GPU before a
// request's first step.

#include <doctest/doctest.h>

#include "tests/support/policy_configs.h"
#include "tests/support/table.h"

using namespace kvtwin;
using kvtwin::testing::check_table;

namespace {

CoreConfig shared_resident_config() {
  CoreConfig config = kvtwin::testing::resident_config();
  config.pages_gpu = 12;
  config.prefix_cache = true;
  return config;
}

}  // namespace

TEST_CASE("resident prefix: a request waits for its prefix from the host, and computes only its own tokens") {
  check_table(shared_resident_config(), R"(
    arrive r1 prompt=64 output=3 is=a:64     launch s1 r1:64
    done s1                                  launch s2 r1:1
    arrive r2 prompt=80 output=1 is=a:64     -
    done s2                                  recall t1 4  launch s3 r1:1   # r1 still runs: found when computed
    arrived t1                               -
    done s3                                  finish r1:3  launch s4 r2:16+64
    done s4                                  finish r2:1
  )");
}

TEST_CASE("resident prefix: its pages on the GPU belong to the request until the prompt is complete") {
  CoreConfig config = shared_resident_config();
  check_table(config, R"(
    arrive r1 prompt=64 output=1 is=a:64     launch s1 r1:64 held 3   # the prompt's end is planned
    done s1                                  finish r1:1 held 0
    arrive r2 prompt=112 output=1 is=a:64    recall t1 4 held 4
    arrived t1                               launch s2 r2:48+64 held 3
    done s2                                  finish r2:1 held 0
  )");
}

TEST_CASE("resident prefix: no copy targets pages that a step in flight still reads") {
  CoreConfig config = shared_resident_config();
  config.steps_in_flight_max = 2;
  check_table(config, R"(
    arrive r1 prompt=16 output=1 is=a:16     launch s1 r1:16
    done s1                                  finish r1:1
    arrive r2 prompt=128 output=9            launch s2 r2:64  launch s3 r2:64
    arrive r3 prompt=17 output=1 is=a:16     -
    done s2                                  launch s4 r2:1             # s3 has freed 5 pages, and still reads them
    done s3                                  recall t1 1  launch s5 r2:1
    arrived t1                               -
    done s4                                  launch s6 r2:1 r3:1+16
  )");
}

TEST_CASE(
    "resident prefix: decoded tokens are not shared, because they did not attend to the whole context") {
  check_table(shared_resident_config(), R"(
    arrive r1 prompt=40 output=24 is=a:64    launch s1 r1:40
    done s1                                  launch s2 r1:1
    cancel r1                                -
    done s2                                  cancelled r1:1
    arrive r2 prompt=64 output=1 is=a:64     recall t1 2
    arrived t1                               launch s3 r2:32+32
  )");
}

TEST_CASE("resident prefix: a prefix that cannot be loaded is computed") {
  check_table(shared_resident_config(), R"(
    arrive r1 prompt=32 output=1 is=a:32     launch s1 r1:32
    done s1                                  finish r1:1
    arrive r2 prompt=40 output=1 is=a:32     recall t1 2
    failed t1                                launch s2 r2:40
    done s2                                  finish r2:1
    arrive r3 prompt=40 output=1 is=a:32     recall t2 2            # it is still there
    cancel r3                                cancelled r3:0
    arrived t2                               -
  )");
}

TEST_CASE("resident prefix: a full host evicts prefixes before it preempts a request") {
  CoreConfig config = shared_resident_config();
  config.pages_host = 6;
  check_table(config, R"(
    arrive r1 prompt=64 output=1 is=a:64     launch s1 r1:64
    done s1                                  finish r1:1
    arrive r2 prompt=64 output=20            launch s2 r2:64        # two pages are free, two of a's tail are evicted
    done s2                                  launch s3 r2:1         # one more
    arrive r3 prompt=17 output=1 is=a:32     -                      # a's first page is left; there is no room
    done s3                                  launch s4 r2:1
  )");
}

TEST_CASE("resident prefix: a preempted request finds its prompt again") {
  CoreConfig config = shared_resident_config();
  config.pages_host = 7;
  check_table(config, R"(
    arrive r1 prompt=48 output=20 is=a:48    launch s1 r1:48
    arrive r2 prompt=48 output=20 is=b:48    -
    done s1                                  launch s2 r1:1 r2:48     # 4 + 3 pages of the host
    done s2                                  preempt r2  launch s3 r1:1
    done s3                                  launch s4 r1:1
  )");
}

TEST_CASE(
    "X-4 resident prefix: a reservation covers what the request lacks, and is held while its prefix is "
    "loaded") {
  CoreConfig config = shared_resident_config();
  config.admission = AdmissionKind::kFullReservation;
  config.pages_host = 12;
  check_table(config, R"(
    arrive r1 prompt=64 output=1 is=a:64     launch s1 r1:64
    done s1                                  finish r1:1
    arrive r2 prompt=80 output=60 is=a:64    recall t1 4              # 9 pages of the host, 4 of them a's
    arrive r3 prompt=47 output=1             launch s2 r3:47          # 3 of the 12 - 9 that are left
    arrive r4 prompt=16 output=1             -
    arrived t1                               -
    done s2                                  finish r3:1  launch s3 r2:16+64 r4:16
  )");
}
