// Which requests run in a step, and how many tokens of each.

#include <doctest/doctest.h>

#include "tests/support/policy_configs.h"
#include "tests/support/table.h"

using namespace kvtwin;
using kvtwin::testing::check_table;
using kvtwin::testing::table_config;

TEST_CASE("batching: a prompt longer than the budget is computed in chunks and samples with the last one") {
  check_table(table_config(), R"(
    arrive r1 prompt=150 output=2     launch s1 r1:64
    done s1                           launch s2 r1:64
    done s2                           launch s3 r1:22             # the chunk that samples
    done s3                           emitted r1:1  launch s4 r1:1
    done s4                           finish r1:2
  )");
}

TEST_CASE("batching: chunk_tokens_max limits one prompt's tokens, and the next prompt takes the rest") {
  CoreConfig config = table_config();
  config.chunk_tokens_max = 40;
  check_table(config, R"(
    arrive r1 prompt=100 output=1     launch s1 r1:40
    arrive r2 prompt=100 output=1     -
    done s1                           launch s2 r1:40 r2:24
    done s2                           launch s3 r1:20 r2:40
    done s3                           finish r1:1  launch s4 r2:36
    done s4                           finish r2:1
  )");
}

TEST_CASE("batching: running requests come before waiting ones, in order of admission") {
  check_table(table_config(), R"(
    arrive r1 prompt=32 output=3      launch s1 r1:32
    arrive r2 prompt=100 output=3     -
    arrive r3 prompt=10 output=2      -
    done s1                           launch s2 r1:1 r2:63        # the budget is spent: r3 waits
    done s2                           launch s3 r1:1 r2:37 r3:10
    done s3                           finish r1:3  launch s4 r2:1 r3:1
    done s4                           finish r3:2  launch s5 r2:1
    done s5                           finish r2:3
  )");
}

TEST_CASE("batching: no more than requests_max run at once") {
  CoreConfig config = table_config();
  config.requests_max = 2;
  check_table(config, R"(
    arrive r1 prompt=8 output=2       launch s1 r1:8
    arrive r2 prompt=8 output=2       -
    arrive r3 prompt=8 output=2       -
    done s1                           launch s2 r1:1 r2:8
    done s2                           finish r1:2  launch s3 r2:1 r3:8
    done s3                           finish r2:2  launch s4 r3:1
    done s4                           finish r3:2
  )");
}

TEST_CASE("batching: prompts first: decodes take the rest of the budget") {
  CoreConfig config = table_config();
  config.batch_order = BatchOrder::kPrefillFirst;
  check_table(config, R"(
    arrive r1 prompt=10 output=3      launch s1 r1:10
    arrive r2 prompt=100 output=1     -
    done s1                           launch s2 r2:64             # r1's decode finds no budget
    done s2                           launch s3 r2:36 r1:1
    done s3                           finish r2:1  launch s4 r1:1
    done s4                           finish r1:3
  )");
}

TEST_CASE("batching: mixed: a prompt gets half of the budget while any request decodes") {
  CoreConfig config = table_config();
  config.batch_order = BatchOrder::kMixed;
  check_table(config, R"(
    arrive r1 prompt=100 output=3     launch s1 r1:64             # nothing decodes yet: all of it
    done s1                           launch s2 r1:36
    arrive r2 prompt=100 output=1     -
    done s2                           launch s3 r1:1 r2:32
    done s3                           launch s4 r1:1 r2:32
    done s4                           finish r1:3  launch s5 r2:36
    done s5                           finish r2:1
  )");
}

TEST_CASE("batching: steps are padded to the next capture size, but not above the largest") {
  CoreConfig config = table_config();
  config.capture_sizes = {1, 2, 4, 8};
  check_table(config, R"(
    arrive r1 prompt=3 output=3       launch s1 r1:3 pad=4
    arrive r2 prompt=9 output=2       -
    arrive r3 prompt=6 output=2       -
    done s1                           launch s2 r1:1 r2:9 r3:6
    done s2                           launch s3 r1:1 r2:1 r3:1 pad=4
    done s3                           finish r1:3  finish r2:2  finish r3:2
  )");
}

TEST_CASE("batching: a request of no output ends with its prompt") {
  check_table(table_config(), R"(
    arrive r1 prompt=70 output=0      launch s1 r1:64
    done s1                           launch s2 r1:6
    done s2                           finish r1:0
  )");
}

TEST_CASE("batching: the Client is notified of the first token and of each trigger") {
  check_table(table_config(), R"(
    arrive r1 prompt=5 output=5 triggers=3,5     launch s1 r1:5
    done s1                           emitted r1:1  launch s2 r1:1
    done s2                           launch s3 r1:1
    done s3                           emitted r1:3  launch s4 r1:1
    done s4                           launch s5 r1:1
    done s5                           emitted r1:5  finish r1:5
  )");
}

TEST_CASE("batching: end-of-sequence ends a request before its forced length") {
  check_table(table_config(), R"(
    arrive r1 prompt=5 output=50      launch s1 r1:5
    arrive r2 prompt=5 output=3       -
    done s1                           launch s2 r1:1 r2:5
    done s2 eos=r1                    finish r1:2  launch s3 r2:1
    done s3                           launch s4 r2:1
    done s4                           finish r2:3
  )");
}

// Found by the swarm (seed 28): r1 returned from preemption with all but one token cached, already looked
// like a decode, and was planned twice in the same step.
TEST_CASE("batching: prompts first plans a request that was just admitted only once") {
  CoreConfig config = table_config();
  config.batch_order = BatchOrder::kPrefillFirst;
  config.prefix_cache = true;
  check_table(config, R"(
    arrive r1 prompt=33 output=1 is=a:32     launch s1 r1:33
    done s1                                  finish r1:1
    arrive r2 prompt=33 output=2 is=a:32     launch s2 r2:1+32
    done s2                                  launch s3 r2:1
    done s3                                  finish r2:2
  )");
}
