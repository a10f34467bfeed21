// Cached prefixes are offloaded to the host ahead of need, and loaded when they are hit.

#include <doctest/doctest.h>

#include "tests/support/policy_configs.h"
#include "tests/support/table.h"

using namespace kvtwin;
using kvtwin::testing::check_table;
using kvtwin::testing::host_config;

TEST_CASE("host: a prefix is copied ahead of need, leaves the GPU without a copy, and is loaded on a hit") {
  check_table(host_config(), R"(
    arrive r1 prompt=32 output=1 is=a:32     launch s1 r1:32
    done s1                                  finish r1:1  offload t1 2
    arrived t1                               -
    arrive r2 prompt=63 output=1             launch s2 r2:63      # needs all pages: a's are evicted
    done s2                                  finish r2:1
    arrive r3 prompt=40 output=1 is=a:32     recall t2 2          # r3 waits for them
    arrived t2                               launch s3 r3:8+32
    done s3                                  finish r3:1
  )");
}

TEST_CASE("host: two requests that hit the same pages wait for one recall") {
  check_table(host_config(), R"(
    arrive r1 prompt=32 output=1 is=a:32     launch s1 r1:32
    done s1                                  finish r1:1  offload t1 2
    arrived t1                               -
    arrive r2 prompt=63 output=1             launch s2 r2:63
    done s2                                  finish r2:1
    arrive r3 prompt=33 output=1 is=a:32     recall t2 2
    arrive r4 prompt=34 output=1 is=a:32     -
    arrived t2                               launch s3 r3:1+32 r4:2+32
    done s3                                  finish r3:1  finish r4:1
  )");
}

TEST_CASE("host: a prefix whose load fails is computed instead") {
  check_table(host_config(), R"(
    arrive r1 prompt=32 output=1 is=a:32     launch s1 r1:32
    done s1                                  finish r1:1  offload t1 2
    arrived t1                               -
    arrive r2 prompt=63 output=1             launch s2 r2:63
    done s2                                  finish r2:1
    arrive r3 prompt=40 output=1 is=a:32     recall t2 2
    failed t2                                launch s3 r3:40
    done s3                                  finish r3:1
  )");
}

// Found by the swarm (seed 3): it was retried immediately, without end.
TEST_CASE("host: an offload that fails is retried when a request arrives or ends") {
  check_table(host_config(), R"(
    arrive r1 prompt=32 output=1 is=a:32     launch s1 r1:32
    done s1                                  finish r1:1  offload t1 2
    failed t1                                -
    arrive r2 prompt=8 output=1              offload t2 2  launch s2 r2:8
    arrived t2                               -
    done s2                                  finish r2:1
  )");
}

// Found by the swarm (seed 3): each offload dropped the other's copy, without end.
TEST_CASE("host: a host tier that is too small keeps the newest copies, without further offloads") {
  CoreConfig config = host_config();
  config.pages_host = 1;
  check_table(config, R"(
    arrive r1 prompt=16 output=1 is=a:16     launch s1 r1:16
    done s1                                  finish r1:1
    arrive r2 prompt=32 output=1 is=b:32     offload t1 1  launch s2 r2:32
    arrived t1                               -
    done s2                                  finish r2:1  offload t2 1   # b's page, which was used later
    arrived t2                               -                          # a is older than the host's copy: it is evicted
    arrive r3 prompt=17 output=1 is=a:16     launch s3 r3:17
    done s3                                  finish r3:1  offload t3 1   # now a is the newest
  )");
}

TEST_CASE("host: a request cancelled while its prefix is loaded ends, and the pages still arrive") {
  check_table(host_config(), R"(
    arrive r1 prompt=32 output=1 is=a:32     launch s1 r1:32
    done s1                                  finish r1:1  offload t1 2
    arrived t1                               -
    arrive r2 prompt=63 output=1             launch s2 r2:63
    done s2                                  finish r2:1
    arrive r3 prompt=40 output=1 is=a:32     recall t2 2
    cancel r3                                cancelled r3:0
    arrived t2                               -
    arrive r4 prompt=40 output=1 is=a:32     launch s3 r4:8+32
    done s3                                  finish r4:1
  )");
}
