// Decision tables of preempted requests whose KV entries were dropped: which of them are swapped out, with
// which pages, and which are computed again.

#include <doctest/doctest.h>

#include "tests/support/policy_configs.h"
#include "tests/support/table.h"
#include "tests/support/test_policies.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

// Pages of 4 tokens, one sink, a window of one token, and a host tier.
CoreConfig swapping(const char* layout, const char* budget, uint32_t pages_gpu) {
  CoreConfig config = table_config();
  config.page_tokens = config.unit_tokens = 4;
  config.pages_gpu = pages_gpu;
  config.pages_host = 20;
  config.preemption = PreemptionKind::kSwap;
  PolicySet& set = config.policies;
  set.placement = "host", set.identity = "none", set.layout = layout, set.budget = budget;
  set.budget_spec.sinks = set.budget_spec.window = 1;
  set.budget_spec.chunk_tokens = 8;
  set.budget_spec.kv_entries = 6;
  set.budget_spec.interval = 3;
  return config;
}

// Two groups of one head each.
CoreConfig by_group(const char* budget, uint32_t pages_gpu) {
  CoreConfig config = swapping("ragged", budget, pages_gpu);
  config.policies.layout_spec = {.layers = 1, .kv_heads = 2, .heads_per_group = 1};
  config.policies.budget_spec.mu = {kWhole / 2, kWhole / 4};
  config.policies.budget_spec.sigma = {0, 0};
  return config;
}

void check_swap(const CoreConfig& config, CompressionTrigger compression_trigger, const char* table) {
  check_table(config, axes_with_scorer(config, compression_trigger), table);
}

}  // namespace

// Each has two int4 pages when r1 needs a third.
TEST_CASE("swap: pages in formats by tag are copied whole, and the last one is filled further") {
  CoreConfig config = table_config();
  config.page_tokens = config.unit_tokens = 32;
  config.step_tokens_max = 128;
  config.pages_gpu = 4;
  config.pages_host = 20;
  config.preemption = PreemptionKind::kSwap;
  config.policies.placement = "host";
  config.policies.precision = "triaxial";
  check_table(config, R"(
    arrive r1 prompt=62 output=5      launch s1 r1:62
    arrive r2 prompt=62 output=5      -
    done s1                           launch s2 r1:1 r2:62
    done s2                           launch s3 r1:1 r2:1
    done s3                           send t1 2  preempt r2
    arrived t1                        launch s4 r1:1
    done s4                           launch s5 r1:1
    done s5                           finish r1:5  return t2 2
    arrived t2                        launch s6 r2:1+63
    done s6                           launch s7 r2:1
  )");
}

// r2 is reduced from 12 KV entries to 6. When it is preempted it has 8: two pages go to the host and return.
TEST_CASE("swap: a compressed request takes its retained pages along, and is not compressed again") {
  check_swap(swapping("compact", "uniform", 5), CompressionTrigger::kPromptEnd, R"(
    arrive r1 prompt=8 output=12      launch s1 r1:8 cut r1:0-8:4
    arrive r2 prompt=12 output=6      -
    done s1                           launch s2 r1:1 r2:12 cut r2:0-12:4
    done s2                           launch s3 r1:1 r2:1
    done s3                           launch s4 r1:1 r2:1
    done s4                           send t1 2  preempt r2  launch s5 r1:1
    arrived t1                        -
    done s5                           launch s6 r1:1
    cancel r1                         -
    done s6                           cancelled r1:5  return t2 2
    arrived t2                        launch s7 r2:1+14
    done s7                           launch s8 r2:1
  )");
}

// r2 has a reservation for its prompt; r1 needs pages beyond its own.
TEST_CASE(
    "swap: the pages of all groups, within a prompt and after it; what was reserved is reserved again") {
  check_swap(by_group("reserved", 9), CompressionTrigger::kChunkEnd, R"(
    arrive r1 prompt=8 output=8       launch s1 r1:8 cut r1:0-8:3,2
    arrive r2 prompt=8 output=8       -
    done s1                           launch s2 r1:1 r2:8 cut r2:0-8:3,2
    done s2                           launch s3 r1:1 r2:1
    done s3                           launch s4 r1:1 r2:1
    done s4                           launch s5 r1:1 r2:1
    done s5                           send t1 4  preempt r2
    arrived t1                        launch s6 r1:1
    done s6                           launch s7 r1:1
    done s7                           launch s8 r1:1
    done s8                           finish r1:8  return t2 4
    arrived t2                        launch s9 r2:1+11
  )");
  CoreConfig config = by_group("reserved", 13);
  config.step_tokens_max = 9;
  check_swap(config, CompressionTrigger::kChunkEnd, R"(
    arrive r1 prompt=8 output=8       launch s1 r1:8 cut r1:0-8:3,2
    arrive r2 prompt=40 output=2      -
    done s1                           launch s2 r1:1 r2:8 cut r2:0-8:3,2    # 9 pages are reserved
    done s2                           launch s3 r1:1 r2:8 cut r2:7-16:4,2
    done s3                           launch s4 r1:1 r2:8 cut r2:15-24:4,2
    done s4                           send t1 6  preempt r2  launch s5 r1:1
    arrived t1                        -                                     # 8 are free
    done s5                           launch s6 r1:1
    done s6                           launch s7 r1:1
    done s7                           launch s8 r1:1
    done s8                           finish r1:8  return t2 6
    arrived t2                        launch s9 r2:8+24 cut r2:23-32:4,2    # the next chunk
  )");
}

// The first compression of r2 is answered late.
TEST_CASE("swap: a request that awaits its counts is computed again; when it has them, it is swapped out") {
  CoreConfig config = by_group("top_per_layer", 12);
  config.steps_in_flight_max = 2;
  check_swap(config, CompressionTrigger::kPromptEnd, R"(
    arrive r1 prompt=7 output=9       launch s1 r1:7 cut r1:0-7:?
    arrive r2 prompt=12 output=9      launch s2 r2:12 cut r2:0-12:?
    done s1 retained=7,7              launch s3 r1:1
    done s2 retained=12,4             launch s4 r1:1 r2:1
    done s3                           launch s5 r1:1 r2:1
    done s4                           launch s6 r1:1 r2:1
  )");
}

TEST_CASE("swap: pages that were dropped in place are not copied, and their positions stay without a page") {
  check_swap(swapping("page_mask", "uniform", 7), CompressionTrigger::kPromptEnd, R"(
    arrive r1 prompt=8 output=12                    launch s1 r1:8 cut r1:0-8:4
    done s1 live=0-5                                launch s2 r1:1
    arrive r2 prompt=16 output=9                    -
    done s2                                         launch s3 r1:1 r2:16 cut r2:0-16:4
    done s3 live=0-1,8-11                           launch s4 r1:1 r2:1
    done s4                                         launch s5 r1:1 r2:1
    done s5                                         launch s6 r1:1 r2:1
  )");
}

TEST_CASE("swap: without room on the host, or after a failed copy, the request is compressed anew") {
  CoreConfig config = swapping("compact", "uniform", 5);
  check_swap(config, CompressionTrigger::kPromptEnd, R"(
    arrive r1 prompt=8 output=12      launch s1 r1:8 cut r1:0-8:4
    arrive r2 prompt=12 output=6      -
    done s1                           launch s2 r1:1 r2:12 cut r2:0-12:4
    done s2                           launch s3 r1:1 r2:1
    done s3                           launch s4 r1:1 r2:1
    done s4                           send t1 2  preempt r2  launch s5 r1:1
    arrived t1                        -
    cancel r1                         -
    done s5                           cancelled r1:4  return t2 2
    failed t2                         launch s6 r2:15 cut r2:0-15:4
  )");
  config.pages_host = 1;
  check_swap(config, CompressionTrigger::kPromptEnd, R"(
    arrive r1 prompt=8 output=12      launch s1 r1:8 cut r1:0-8:4
    arrive r2 prompt=12 output=6      -
    done s1                           launch s2 r1:1 r2:12 cut r2:0-12:4
    done s2                           launch s3 r1:1 r2:1
    done s3                           launch s4 r1:1 r2:1
    done s4                           preempt r2  launch s5 r1:1
  )");
}

// r2 shares its two chunks with later requests: of its five pages, three belong to prefix checkpoints.
TEST_CASE("swap: pages of prefix checkpoints are copied too, and stay for other requests") {
  CoreConfig config = by_group("reserved", 14);
  config.prefix_cache = true;
  config.policies.identity = "shared";
  check_swap(config, CompressionTrigger::kChunkEnd, R"(
    arrive r1 prompt=8 output=12                 launch s1 r1:8 cut r1:0-8:3,2
    arrive r2 prompt=16 output=8 is=a:16         -
    done s1                                      launch s2 r1:1 r2:8 cut r2:0-8:3,2
    done s2                                      launch s3 r1:1 r2:8 cut r2:7-16:4,2
    done s3                                      launch s4 r1:1 r2:1
    done s4                                      launch s5 r1:1 r2:1
    done s5                                      send t1 5  preempt r2
    arrive r3 prompt=20 output=1 is=a:16         -
    cancel r2                                    cancelled r2:3
    arrived t1                                   launch s6 r1:1   # one page is free, r3 needs two
    cancel r1                                    -
    done s6                                      cancelled r1:5  launch s7 r3:4+16 cut r3:15-20:2,1
  )");
  // Here it returns: nothing else protects the prefix checkpoints, and they are evicted for its own pages.
  check_swap(config, CompressionTrigger::kChunkEnd, R"(
    arrive r1 prompt=8 output=12                 launch s1 r1:8 cut r1:0-8:3,2
    arrive r2 prompt=16 output=8 is=a:16         -
    done s1                                      launch s2 r1:1 r2:8 cut r2:0-8:3,2
    done s2                                      launch s3 r1:1 r2:8 cut r2:7-16:4,2
    done s3                                      launch s4 r1:1 r2:1
    done s4                                      launch s5 r1:1 r2:1
    done s5                                      send t1 5  preempt r2
    arrived t1                                   return t2 5  launch s6 r1:1
    arrived t2                                   -
    done s6                                      launch s7 r1:1 r2:1+18
  )");
}
