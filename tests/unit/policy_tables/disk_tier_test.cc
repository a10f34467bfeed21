// Pages that the host would drop are spilled to the disk, and loaded from there on a hit.

#include <doctest/doctest.h>

#include "tests/support/policy_configs.h"
#include "tests/support/table.h"

using namespace kvtwin;
using kvtwin::testing::check_table;

namespace {

// Four pages on the GPU; two on the host, which spills keep free; eight on the disk.
CoreConfig disk_config() {
  CoreConfig config = kvtwin::testing::host_config();
  config.pages_host = 2;
  config.pages_disk = 8;
  config.offload_pages_target = 4;
  config.spill_pages_target = 2;
  return config;
}

}  // namespace

TEST_CASE("disk: a prefix moves down one tier at a time, and comes back from the disk by one transfer") {
  check_table(disk_config(), R"(
    arrive r1 prompt=32 output=1 is=a:32     launch s1 r1:32
    done s1                                  finish r1:1  offload t1 2
    arrived t1                               -                      # on gpu and host: nothing to spill
    arrive r2 prompt=63 output=1             spill t2 2  launch s2 r2:63   # a leaves the gpu
    arrived t2                               -
    done s2                                  finish r2:1
    arrive r3 prompt=40 output=1 is=a:32     recall t3 2 disk
    arrived t3                               launch s3 r3:8+32
    done s3                                  finish r3:1  offload t4 2      # it is on the gpu alone again
    arrived t4                               -
  )");
}

TEST_CASE("disk: a page that is hit while it is spilled is read from the host and stays there") {
  check_table(disk_config(), R"(
    arrive r1 prompt=32 output=1 is=a:32     launch s1 r1:32
    done s1                                  finish r1:1  offload t1 2
    arrived t1                               -
    arrive r2 prompt=63 output=1             spill t2 2  launch s2 r2:63
    done s2                                  finish r2:1
    arrive r3 prompt=40 output=1 is=a:32     recall t3 2
    arrived t2                               -                      # the recall reads the host's copy still
    arrived t3                               launch s3 r3:8+32
    done s3                                  finish r3:1            # and has left it there: clean
    arrive r4 prompt=63 output=1             spill t4 2  launch s4 r4:63
    failed t4                                -
    done s4                                  finish r4:1  spill t5 2    # retried when a request ends
    arrived t5                               -
  )");
}

TEST_CASE("disk: a prefix whose read fails is computed; a prefix on two tiers comes by two transfers") {
  CoreConfig config = disk_config();
  config.spill_pages_target = config.pages_disk = 1;
  check_table(config, R"(
    arrive r1 prompt=32 output=1 is=a:32     launch s1 r1:32
    done s1                                  finish r1:1  offload t1 2
    arrived t1                               -
    arrive r2 prompt=63 output=1             spill t2 1  launch s2 r2:63   # the last page of a
    arrived t2                               -
    done s2                                  finish r2:1
    arrive r3 prompt=40 output=1 is=a:32     recall t3 1
    arrived t3                               recall t4 1 disk
    failed t4                                launch s3 r3:24+16
    done s3                                  finish r3:1
    arrive r4 prompt=40 output=1 is=a:32     recall t5 1 disk
    arrived t5                               launch s4 r4:8+32
    done s4                                  finish r4:1  offload t6 1
  )");
}

TEST_CASE("disk: a full disk drops its oldest page by page from the tail; older pages stay on the host") {
  CoreConfig config = disk_config();
  config.pages_disk = 1;
  check_table(config, R"(
    arrive r1 prompt=32 output=1 is=a:32     launch s1 r1:32
    done s1                                  finish r1:1  offload t1 2
    arrived t1                               -
    arrive r2 prompt=63 output=1             spill t2 1  launch s2 r2:63   # the last page of a
    arrived t2                               spill t3 1                    # it is dropped for the first page
    arrived t3                               -
    done s2                                  finish r2:1
    arrive r3 prompt=40 output=1 is=a:32     recall t4 1 disk
    arrived t4                               launch s3 r3:24+16
    done s3                                  finish r3:1  offload t5 2
  )");
}

TEST_CASE("disk: a spill protects its path on the GPU, and other pages are offloaded at once") {
  CoreConfig config = disk_config();
  config.offload_pages_target = config.evict_batch_pages = 1;
  config.pages_host = 3;
  check_table(config, R"(
    arrive r1 prompt=32 output=1 is=a:32     launch s1 r1:32
    done s1                                  finish r1:1
    arrive r2 prompt=32 output=1 is=b:32     offload t1 2  launch s2 r2:32
    arrived t1                               -
    done s2                                  finish r2:1
    arrive r3 prompt=16 output=1             spill t2 1  offload t3 1  launch s3 r3:16
    arrived t2                               -
    arrived t3                               -
    done s3                                  finish r3:1
  )");
}

TEST_CASE("disk: no page leaves the GPU while a spill makes room for its copy") {
  CoreConfig config = disk_config();
  config.offload_pages_target = config.evict_batch_pages = 1;
  config.spill_pages_target = 1;
  check_table(config, R"(
    arrive r1 prompt=32 output=1 is=a:32     launch s1 r1:32
    done s1                                  finish r1:1
    arrive r2 prompt=32 output=1 is=b:32     offload t1 2  launch s2 r2:32
    arrived t1                               -
    done s2                                  finish r2:1
    arrive r3 prompt=16 output=1             spill t2 1  launch s3 r3:16
    arrived t2                               -
    done s3                                  finish r3:1
    arrive r4 prompt=40 output=1 is=b:32     launch s4 r4:8+32
    done s4                                  finish r4:1
  )");
}
