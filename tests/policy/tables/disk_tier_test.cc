// What the host would drop goes to the disk, and comes back from there when it is hit.

#include <doctest/doctest.h>

#include "tests/support/policy_configs.h"
#include "tests/support/table.h"

using namespace kvtwin;
using kvtwin::testing::check_table;

namespace {

// Four pages on the gpu, two on the host, of which one is to be free, eight on the disk.
CoreConfig disk_config() {
  CoreConfig config = kvtwin::testing::table_config();
  config.prefix_cache = true;
  config.policies.placement = "host";
  config.pages_gpu = 4;
  config.pages_host = 2;
  config.pages_disk = 8;
  config.clean_pages_target = 4;
  config.clean_batch_pages = 8;
  config.spill_pages_target = 2;
  return config;
}

}  // namespace

TEST_CASE("disk: a prefix goes down a tier at a time, and comes back from the disk by one transfer") {
  check_table(disk_config(), R"(
    arrive r1 prompt=32 output=1 is=a:32     launch s1 r1:32
    done s1                                  finish r1:1  demote t1 2
    arrived t1                               -                      # on gpu and host: nothing to spill
    arrive r2 prompt=63 output=1             launch s2 r2:63  spill t2 2   # a leaves the gpu
    arrived t2                               -
    done s2                                  finish r2:1
    arrive r3 prompt=40 output=1 is=a:32     recall t3 2 disk
    arrived t3                               demote t4 2  launch s3 r3:8+32
    arrived t4                               -
    done s3                                  finish r3:1
  )");
}
