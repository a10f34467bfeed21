// Which requests are admitted, which wait, and which are rejected.

#include <doctest/doctest.h>

#include "tests/support/policy_configs.h"
#include "tests/support/table.h"

using namespace kvtwin;
using kvtwin::testing::check_table;
using kvtwin::testing::table_config;

TEST_CASE("admission: the watermark keeps pages free from new requests, but not from growth") {
  CoreConfig config = table_config();
  config.pages_gpu = 6;
  config.watermark_pages = 2;
  check_table(config, R"(
    arrive r1 prompt=32 output=2      launch s1 r1:32             # 2 of 6 pages
    arrive r2 prompt=48 output=2      -
    done s1                           launch s2 r1:1              # r1 3, r2 would take 3: below 2 free
    done s2                           finish r1:2  launch s3 r2:48
    done s3                           launch s4 r2:1
    done s4                           finish r2:2
  )");
}

TEST_CASE("admission: watermark admission considers the next chunk only, and all of it") {
  CoreConfig config = table_config();
  config.pages_gpu = 9;
  check_table(config, R"(
    arrive r1 prompt=64 output=2      launch s1 r1:64             # 4 of 9 pages, then 5
    arrive r2 prompt=130 output=2     -                           # 9 pages in all, 4 for a chunk of 63
    done s1                           launch s2 r1:1 r2:63
    done s2                           finish r1:2  launch s3 r2:64
    done s3                           launch s4 r2:3
    done s4                           launch s5 r2:1
    done s5                           finish r2:2
    arrive r3 prompt=80 output=2      launch s6 r3:64             # 4 pages, then 6
    arrive r4 prompt=130 output=2     -
    done s6                           launch s7 r3:16 r4:48       # 3 of the 4 pages left
  )");
}

TEST_CASE("admission: full-prompt admission waits until the whole prompt has pages") {
  CoreConfig config = table_config();
  config.pages_gpu = 8;
  config.admission = AdmissionKind::kFullPrompt;
  check_table(config, R"(
    arrive r1 prompt=32 output=2      launch s1 r1:32             # 2 of 8 pages, then 3
    arrive r2 prompt=100 output=2     -
    done s1                           launch s2 r1:1              # r2 needs 7
    done s2                           finish r1:2  launch s3 r2:64
    done s3                           launch s4 r2:36
    done s4                           launch s5 r2:1
    done s5                           finish r2:2
  )");
}

TEST_CASE("admission: full reservation reserves prompt and output, and never preempts") {
  CoreConfig config = table_config();
  config.pages_gpu = 6;
  config.admission = AdmissionKind::kFullReservation;
  check_table(config, R"(
    arrive r1 prompt=16 output=32     launch s1 r1:16             # 3 pages are its own
    arrive r2 prompt=16 output=33     -
    done s1                           launch s2 r1:1              # r2 would need 4
    arrive r3 prompt=8 output=2       -                           # and r3 waits after it
    cancel r2                         cancelled r2:0
    done s2                           launch s3 r1:1 r3:8
  )");
}

TEST_CASE("admission: the queue is served in order, without overtaking") {
  CoreConfig config = table_config();
  config.pages_gpu = 4;
  check_table(config, R"(
    arrive r1 prompt=48 output=2      launch s1 r1:48
    arrive r2 prompt=32 output=1      -
    arrive r3 prompt=8 output=1       -
    done s1                           launch s2 r1:1
    done s2                           finish r1:2  launch s3 r2:32 r3:8
    done s3                           finish r2:1  finish r3:1
  )");
}

TEST_CASE("admission: a request that can never run is rejected at once with the reason") {
  CoreConfig config = table_config();
  config.pages_gpu = 10;
  config.watermark_pages = 2;
  config.context_tokens_max = 150;
  check_table(config, R"(
    arrive r1 prompt=100 output=51    reject r1 window 151>150
    arrive r2 prompt=100 output=29    reject r2 pool 9>8
    arrive r3 prompt=0 output=5       reject r3 empty 1>0
    arrive r4 prompt=100 output=28    launch s1 r4:64
  )");
}
