// Decision tables of requests that retain part of their KV.

#include <doctest/doctest.h>

#include "tests/support/policy_configs.h"
#include "tests/support/table.h"
#include "tests/support/test_policies.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

// Pages of 4 tokens, one sink, a window of one token.
CoreConfig small(const char* layout, const char* budget) {
  CoreConfig config = table_config();
  config.page_tokens = config.unit_tokens = 4;
  config.policies.identity = "none";
  config.policies.layout = layout;
  config.policies.budget = budget;
  config.policies.budget_spec.sinks = 1;
  config.policies.budget_spec.window = 1;
  config.policies.budget_spec.chunk_tokens = 8;
  return config;
}

// Two groups of one head each; of the ranked entries one retains a half and the other a quarter.
CoreConfig tangram() {
  CoreConfig config = small("ragged", "reserved");
  config.policies.layout_spec = {.layers = 1, .kv_heads = 2, .heads_per_group = 1};
  config.policies.budget_spec.mu = {kWhole / 2, kWhole / 4};
  config.policies.budget_spec.sigma = {0, 0};
  return config;
}

void check(const CoreConfig& config, CompressionTrigger compression_trigger, const char* table) {
  check_table(config, axes_with_scorer(config, compression_trigger), table);
}

}  // namespace

// 16 tokens: 14 ranked, of which 7 and 4 are retained, so 9 and 6 KV entries in total: the reservation is 3
// + 2 pages.
TEST_CASE("T-1 reserved: the pages in use until the first decode step are exactly the reservation") {
  check(tangram(), CompressionTrigger::kChunkEnd, R"(
    arrive r1 prompt=16 output=6      launch s1 r1:8 cut r1:0-8:3,2   held 3
    done s1                           launch s2 r1:8 cut r1:7-16:4,2  held 5
    done s2                           launch s3 r1:1                  held 5   # 10 and 7 KV entries
    done s3                           launch s4 r1:1                  held 5   # 11 and 8
    done s4                           launch s5 r1:1                  held 6   # 12 and 9
    done s5                           launch s6 r1:1                  held 7   # 13 and 10
    done s6                           launch s7 r1:1                  held 7
    done s7                           finish r1:6                     held 0
  )");
}

// 5 pages each: of 12 pages, two requests are admitted; the third waits although 6 pages are still free.
TEST_CASE(
    "X-4 reserved: admission counts retained entries, and no request is preempted before decodes grow") {
  CoreConfig config = tangram();
  config.pages_gpu = 12;
  check(config, CompressionTrigger::kChunkEnd, R"(
    arrive r1 prompt=16 output=1      launch s1 r1:8 cut r1:0-8:3,2   held 3
    arrive r2 prompt=16 output=1      -                               held 3
    arrive r3 prompt=16 output=1      -                               held 3
    done s1                           launch s2 r1:8 r2:8 cut r1:7-16:4,2 cut r2:0-8:3,2   held 8
    done s2                           finish r1:1 launch s3 r2:8 r3:8 cut r2:7-16:4,2 cut r3:0-8:3,2   held 8
    done s3                           finish r2:1 launch s4 r3:8 cut r3:7-16:4,2   held 5
    done s4                           finish r3:1                     held 0
  )");
}

TEST_CASE("reserved: pages can also be reserved for a part of the output") {
  CoreConfig config = tangram();
  config.pages_gpu = 12;
  config.policies.budget_spec.decode_reserve = 4;  // 13 and 10 KV entries: 4 + 3 pages each
  check(config, CompressionTrigger::kChunkEnd, R"(
    arrive r1 prompt=16 output=9      launch s1 r1:8 cut r1:0-8:3,2   held 3
    arrive r2 prompt=16 output=9      -                               held 3
    done s1                           launch s2 r1:8 cut r1:7-16:4,2  held 5   # 7 are set aside: 5 left for r2
  )");
}

TEST_CASE("chunks that are compressed are never split: they wait for a step with room") {
  CoreConfig config = tangram();
  config.step_tokens_max = 9;
  check(config, CompressionTrigger::kChunkEnd, R"(
    arrive r1 prompt=8 output=9       launch s1 r1:8 cut r1:0-8:3,2
    arrive r2 prompt=12 output=1      -
    done s1                           launch s2 r1:1 r2:8 cut r2:0-8:3,2
    arrive r3 prompt=1 output=9       -
    done s2                           launch s3 r1:1 r2:4 r3:1 cut r2:7-12:2,1 cut r3:0-1:0,0
    arrive r4 prompt=8 output=1       -
    done s3                           finish r2:1 launch s4 r1:1 r3:1  # 7 tokens of room are too few for r4
  )");
}

TEST_CASE("two groups cross into new pages at different coalesced steps") {
  CoreConfig config = tangram();
  config.repeat_max = 100;
  check(config, CompressionTrigger::kChunkEnd, R"(
    arrive r1 prompt=16 output=6      launch s1 r1:8 cut r1:0-8:3,2   held 3
    done s1                           launch s2 r1:8 cut r1:7-16:4,2  held 5
    done s2                           launch s3..s7 r1:1              held 5
    done s3..s7                       finish r1:6                     held 0
  )");
}

// r1 has used up its reservation of 5 pages, r2 has 2 of its own left.
TEST_CASE("X-4 reserved: coalesced steps do not take pages that are reserved for another request") {
  CoreConfig config = tangram();
  config.repeat_max = 100;
  config.pages_gpu = 11;
  config.policies.budget_spec.decode_reserve = 4;
  check(config, CompressionTrigger::kChunkEnd, R"(
    arrive r1 prompt=8 output=12 triggers=5   launch s1 r1:8 cut r1:0-8:3,2
    done s1                                   launch s2..s5 r1:1
    done s2..s5                               launch s6..s12 r1:1
    arrive r2 prompt=8 output=12              -
    done s6                                   launch s7 r1:1 r2:8 cut r2:0-8:3,2
    done s7                                   launch s8 r1:1 r2:1          # r1 needs a seventh page in s9
    done s8                                   preempt r2  launch s9 r1:1
  )");
}

TEST_CASE("prompt end: the whole prompt has pages, and dropped entries free theirs with the step") {
  CoreConfig config = small("compact", "uniform");
  config.policies.budget_spec.kv_entries = 8;
  check(config, CompressionTrigger::kPromptEnd, R"(
    arrive r1 prompt=20 output=2      launch s1 r1:20 cut r1:0-20:6   held 2
    done s1                           launch s2 r1:1                  held 3
    done s2                           finish r1:2                     held 0
    arrive r2 prompt=8 output=1       launch s3 r2:8                  held 2   # nothing to drop
    done s3                           finish r2:1                     held 0
  )");
}

TEST_CASE("prompt end in chunks: only the last chunk compresses") {
  CoreConfig config = small("compact", "ratio");
  config.policies.budget_spec.ratio = kWhole / 2;
  config.step_tokens_max = 8;
  check(config, CompressionTrigger::kPromptEnd, R"(
    arrive r1 prompt=20 output=1      launch s1 r1:8                  held 2
    done s1                           launch s2 r1:8                  held 4
    done s2                           launch s3 r1:4 cut r1:0-20:9    held 3
    done s3                           finish r1:1                     held 0
  )");
}

TEST_CASE("dynamic: each group's pages are freed when the backend has reported its counts") {
  CoreConfig config = small("ragged", "top_per_layer");
  config.policies.layout_spec = {.layers = 1, .kv_heads = 2, .heads_per_group = 1};
  check(config, CompressionTrigger::kPromptEnd, R"(
    arrive r1 prompt=16 output=3      launch s1 r1:16 cut r1:0-16:?   held 8
    done s1 retained=12,3                 launch s2 r1:1                  held 5   # 13 and 4 KV entries
    done s2                           launch s3 r1:1                  held 6   # 14 and 5
    done s3                           finish r1:3                     held 0
  )");
}

TEST_CASE("dynamic with two steps in flight: the request skips the step for which its counts are missing") {
  CoreConfig config = small("ragged", "released");
  config.policies.layout_spec = {.layers = 1, .kv_heads = 2, .heads_per_group = 1};
  config.steps_in_flight_max = 2;
  check(config, CompressionTrigger::kChunkEnd, R"(
    arrive r1 prompt=16 output=1      launch s1 r1:8 cut r1:0-8:?     held 4
    arrive r2 prompt=3 output=2       launch s2 r2:3 cut r2:0-3:?     held 6
    done s1 retained=5,4                  launch s3 r1:8 cut r1:7-16:?    held 9   # 13 and 12 KV entries, and r2's 2 pages
    done s2 retained=3,3                  launch s4 r2:1                  held 9
    done s3 retained=9,6                  finish r1:1                     held 2
    done s4                           finish r2:2                     held 0
  )");
}

TEST_CASE("dynamic: the even depth of the released code allocates what was freed") {
  CoreConfig config = small("ragged", "released");
  config.policies.layout_spec = {.layers = 1, .kv_heads = 2, .heads_per_group = 1};
  config.policies.budget_spec.uniform_depth = true;
  check(config, CompressionTrigger::kChunkEnd, R"(
    arrive r1 prompt=8 output=3       launch s1 r1:8 cut r1:0-8:?     held 4
    done s1 retained=8,2                  launch s2 r1:1                  held 6   # 9 and 3 KV entries, 3 pages each
  )");
}

TEST_CASE("decode steps: a request is reduced to its budget when it is `interval` above it") {
  CoreConfig config = small("compact", "uniform");
  config.policies.budget_spec.kv_entries = 6;
  config.policies.budget_spec.interval = 3;
  config.repeat_max = 100;
  check(config, CompressionTrigger::kDecodeStep, R"(
    arrive r1 prompt=5 output=9       launch s1 r1:5                  held 2
    done s1                           launch s2..s4 r1:1              held 2   # up to 8 KV entries
    done s2..s4                       launch s5 r1:1 cut r1:0-9:4     held 2   # 9: back to 6
    done s5                           launch s6..s7 r1:1              held 2
    done s6..s7                       launch s8 r1:1 cut r1:0-12:4    held 2
    done s8                           launch s9 r1:1                  held 2
    done s9                           finish r1:9                     held 0
  )");
}

TEST_CASE("I-3 slot mask: dropped tokens free their slots; lengths and matches are unchanged") {
  CoreConfig config = small("slot_mask", "uniform");
  config.page_tokens = config.unit_tokens = 1;
  config.policies.identity = "session";
  config.prefix_cache = true;
  config.policies.budget_spec.kv_entries = 6;  // 4 of the ranked ones
  check(config, CompressionTrigger::kPromptEnd, R"(
    arrive r1 prompt=10 output=2 session=1 is=a:12         launch s1 r1:10 cut r1:0-10:4   held 10
    done s1 live=0-0,4-7,9-9                               launch s2 r1:1                  held 7
    done s2                                                finish r1:2                     held 0
    arrive r2 prompt=14 output=1 session=1 is=a:11,b:4     launch s3 r2:3+11 cut r2:0-14:4 held 10  # 7 live and 3 new
    done s3 live=0-0,7-7,9-11,13-13                        finish r2:1                     held 0
  )");
}

TEST_CASE("X-6 page mask: a page is freed when all its entries are dropped, and still matches") {
  CoreConfig config = small("page_mask", "uniform");
  config.policies.identity = "session";
  config.prefix_cache = true;
  config.policies.budget_spec.kv_entries = 6;
  check(config, CompressionTrigger::kPromptEnd, R"(
    arrive r1 prompt=16 output=2 session=1 is=a:16         launch s1 r1:16 cut r1:0-16:4   held 4
    done s1 live=0-0,3-3,8-8,11-11,12-12,15-15             launch s2 r1:1                  held 4  # 4..7 are dropped
    done s2                                                finish r1:2                     held 0
    arrive r2 prompt=20 output=1 session=1 is=a:16,b:4     launch s3 r2:4+16 cut r2:0-20:4 held 4
    done s3 live=0-0,16-18,19-19                           finish r2:1                     held 0
  )");
}

TEST_CASE("X-5 dropped entries stay in their session: equal tokens of another one do not match") {
  CoreConfig config = small("page_mask", "uniform");
  config.policies.identity = "session";
  config.prefix_cache = true;
  config.policies.budget_spec.kv_entries = 6;
  check(config, CompressionTrigger::kPromptEnd, R"(
    arrive r1 prompt=12 output=1 session=1 is=a:12         launch s1 r1:12 cut r1:0-12:4
    done s1 live=0-0,8-11                                  finish r1:1
    arrive r2 prompt=12 output=1 session=2 is=a:12         launch s2 r2:12 cut r2:0-12:4
    done s2 live=0-0,8-11                                  finish r2:1
    arrive r3 prompt=12 output=1 session=1 is=a:12         launch s3 r3:4+8   # 1 live and 4 new
  )");
}

TEST_CASE("page mask: a page shared with another request of the session stays") {
  CoreConfig config = small("page_mask", "uniform");
  config.policies.identity = "session";
  config.prefix_cache = true;
  config.policies.budget_spec.kv_entries = 6;
  check(config, CompressionTrigger::kPromptEnd, R"(
    arrive r1 prompt=5 output=4 session=1 is=a:8           launch s1 r1:5                            held 2
    done s1                                                launch s2 r1:1                            held 2
    done s2                                                launch s3 r1:1                            held 2
    done s3                                                launch s4 r1:1                            held 2
    arrive r2 prompt=12 output=2 session=1 is=a:8,b:4      -                                         held 2
    arrive r3 prompt=12 output=2 session=1 is=a:8,c:4      -                                         held 2
    done s4                                                finish r1:4 launch s5 r2:4+8 r3:4+8 cut r2:0-12:4 cut r3:0-12:4   held 4
    done s5 live=0-0,8-11                                  launch s6 r2:1 r3:1                       held 6   # 4..7 are dropped for r2, not for r3
    done s6                                                finish r2:2 finish r3:2                   held 0
  )");
}

TEST_CASE("page mask: a request that alone uses a page of its session frees it") {
  CoreConfig config = small("page_mask", "uniform");
  config.policies.identity = "session";
  config.prefix_cache = true;
  config.policies.budget_spec.kv_entries = 6;
  check(config, CompressionTrigger::kPromptEnd, R"(
    arrive r1 prompt=5 output=4 session=1 is=a:8           launch s1 r1:5                            held 2
    done s1                                                launch s2 r1:1                            held 2
    done s2                                                launch s3 r1:1                            held 2
    done s3                                                launch s4 r1:1                            held 2
    done s4                                                finish r1:4                               held 0
    arrive r2 prompt=12 output=2 session=1 is=a:8,b:4      launch s5 r2:4+8 cut r2:0-12:4            held 3
    done s5 live=0-0,8-11                                  launch s6 r2:1                            held 3   # 4..7 are dropped, 12 needs a page
    done s6                                                finish r2:2                               held 0
  )");
}

namespace {

// Six of the entries besides the template, the query included.
CoreConfig asking() {
  CoreConfig config = small("slot_mask", "uniform");
  config.page_tokens = config.unit_tokens = 1;
  config.policies.scorer = "intent_rule";
  config.policies.identity = "session";
  config.prefix_cache = true;
  config.policies.budget_spec.kv_entries = 6;
  config.policies.budget_spec.sinks_free = true;
  return config;
}

}  // namespace

TEST_CASE("query span: roles decide what is forced and how much else is retained") {
  // Template 0..2, a question at 10..12 with one template token before and two after it: 6 less 2 of the
  // others.
  check(asking(), CompressionTrigger::kPromptEnd, R"(
    arrive r1 prompt=14 output=1 session=1 is=a:14 asks=2,10-12,9-14  launch s1 r1:14?10-12 cut r1:0-14:4!0-2!9-14
    done s1 live=0-1,3-3,5-7,9-13                                     finish r1:1
    arrive r2 prompt=20 output=1 session=1 is=a:13,b:7 asks=2,17-19,16-20  launch s2 r2:7+13?17-19 cut r2:0-20:4!0-2!16-20
    done s2 live=0-1,3-3,5-7,16-19                                    finish r2:1
    arrive r3 prompt=22 output=1 session=1 is=a:13,b:6,c:3 asks=2,14-22,14-22  launch s3 r3:3+19?14-22 cut r3:0-22:0!0-2!14-22
  )");
  // Without roles, the last token is the query, and the first one the template.
  check(asking(), CompressionTrigger::kPromptEnd, R"(
    arrive r1 prompt=14 output=1 session=1 is=a:14         launch s1 r1:14?13-14 cut r1:0-14:5!0-1!13-14
  )");
}

TEST_CASE("query span: in chunks, each chunk names the whole query; a short prompt is not compressed") {
  CoreConfig config = asking();
  config.step_tokens_max = 8;
  check(config, CompressionTrigger::kPromptEnd, R"(
    arrive r1 prompt=14 output=1 session=1 is=a:14 asks=2,6-12,6-14   launch s1 r1:8?6-12
    done s1                                                           launch s2 r1:6?6-12 cut r1:0-14:0!0-2!6-14
    done s2 live=0-1,6-13                                             finish r1:1
    arrive r2 prompt=8 output=1 session=2 is=b:8 asks=2,4-6,4-8       launch s3 r2:8?4-6
  )");
}

TEST_CASE(
    "query span: a prefix that is compressed before its turn has its template forced, and no query yet") {
  check(asking(), CompressionTrigger::kTurnStart, R"(
    arrive r1 prompt=14 output=1 session=1 is=a:14 asks=2,10-12,9-14  launch s1 r1:14?10-12
    done s1                                                           finish r1:1
    arrive r2 prompt=20 output=1 session=1 is=a:14,b:6 asks=2,16-18,16-20  launch s2 r2:6+14?16-18 cut r2:0-14:6!0-2
  )");
}

TEST_CASE("ring: a request never has more pages than its ring") {
  CoreConfig config = small("ring", "uniform");
  config.policies.budget_spec.kv_entries = 7;
  config.repeat_max = 100;
  check(config, CompressionTrigger::kAtNoTime, R"(
    arrive r1 prompt=20 output=20     launch s1 r1:20                 held 2
    done s1                           launch s2..s20 r1:1             held 2
    done s2..s20                      finish r1:20                    held 0
    arrive r2 prompt=3 output=20      launch s21 r2:3                 held 1
    done s21                          launch s22..s26 r2:1            held 1   # until the ring is full
    done s22..s26                     launch s27..s40 r2:1            held 2
    done s27..s40                     finish r2:20                    held 0
  )");
}

TEST_CASE("a preempted request starts its compressions again") {
  CoreConfig config = tangram();
  config.pages_gpu = 9;
  config.step_tokens_max = 32;
  check(config, CompressionTrigger::kChunkEnd, R"(
    arrive r1 prompt=8 output=8       launch s1 r1:8 cut r1:0-8:3,2        held 3
    arrive r2 prompt=8 output=8       -                                    held 3
    done s1                           launch s2 r1:1 r2:8 cut r2:0-8:3,2   held 7
    done s2                           launch s3 r1:1 r2:1                  held 8
    done s3                           launch s4 r1:1 r2:1                  held 8
    done s4                           launch s5 r1:1 r2:1                  held 9
    done s5                           preempt r2 launch s6 r1:1            held 6   # r1: 10 and 9 KV entries
    done s6                           launch s7 r1:1                       held 6   # r2 needs 4 pages for 12 tokens
    done s7                           launch s8 r1:1                       held 6
    done s8                           finish r1:8 launch s9 r2:8 cut r2:0-8:3,2   held 3
    done s9                           launch s10 r2:4 cut r2:7-12:2,1      held 4
  )");
}

// --- compressed prefixes

namespace {

CoreConfig sharing() {
  CoreConfig config = tangram();
  config.prefix_cache = true;
  config.policies.identity = "shared";
  return config;
}

}  // namespace

// The groups have 5 and 4 KV entries after 8 tokens, one of them the carried window: 1 + 0 complete pages.
// After 16 tokens they have 9 and 6 KV entries: 2 + 1 complete pages. r1 reserves 3 + 2 pages, and the tails
// of two prefix checkpoints: 1 + 1 and 1 + 1.
TEST_CASE(
    "X-5 prefix checkpoints: a request starts with another's retained entries, and copies the pages it will "
    "write") {
  check(sharing(), CompressionTrigger::kChunkEnd, R"(
    arrive r1 prompt=18 output=1 is=a:16      launch s1 r1:8 cut r1:0-8:3,2     held 3
    done s1                                   launch s2 r1:8 cut r1:7-16:4,2    held 7
    done s2                                   launch s3 r1:2 cut r1:15-18:1,0   held 9
    done s3                                   finish r1:1                       held 0
    arrive r2 prompt=20 output=1 is=a:16      launch s4 r2:4+16 cut r2:15-20:2,1   held 9
    done s4                                   finish r2:1                       held 0
    arrive r3 prompt=12 output=1 is=a:12      launch s5 r3:4+8 cut r3:7-12:2,1  held 6
    done s5                                   finish r3:1                       held 0
  )");
}

// r1 has 5 + 4 KV entries after its first chunk, in 2 + 1 pages, of which 1 + 0 are complete. With 9 more
// tokens it needs 4 + 4 pages: 7 besides the complete one, and 1 + 1 for the tail of its second chunk. r2
// needs 3 + 3 pages, and 1 + 1 for a tail.
TEST_CASE("X-4 prefix checkpoints: full reservation includes the copies of tails that the data decides") {
  CoreConfig config = small("ragged", "top_per_layer");
  config.policies.layout_spec = {.layers = 1, .kv_heads = 2, .heads_per_group = 1};
  config.prefix_cache = true;
  config.policies.identity = "shared";
  config.admission = AdmissionKind::kFullReservation;
  config.pages_gpu = 3 + 9 + 8;
  check(config, CompressionTrigger::kChunkEnd, R"(
    arrive r1 prompt=16 output=1 is=a:16      launch s1 r1:8 cut r1:0-8:?       held 4
    arrive r2 prompt=8 output=1 is=b:8        -                                 held 4
    done s1 retained=5,4                      launch s2 r1:8 r2:8 cut r1:7-16:? cut r2:0-8:?   held 13
  )");
  --config.pages_gpu;
  check(config, CompressionTrigger::kChunkEnd, R"(
    arrive r1 prompt=16 output=1 is=a:16      launch s1 r1:8 cut r1:0-8:?       held 4
    arrive r2 prompt=8 output=1 is=b:8        -                                 held 4
    done s1 retained=5,4                      launch s2 r1:8 cut r1:7-16:?      held 9
  )");
}

TEST_CASE(
    "X-5 prefix checkpoints: the first of two equal requests creates it; separate sessions share nothing") {
  CoreConfig config = sharing();
  config.policies.identity = "session";
  check(config, CompressionTrigger::kChunkEnd, R"(
    arrive r1 prompt=10 output=1 is=a:8 session=1    launch s1 r1:8 cut r1:0-8:3,2
    done s1                                          launch s2 r1:2 cut r1:7-10:1,0
    done s2                                          finish r1:1
    arrive r2 prompt=10 output=1 is=a:8 session=2    launch s3 r2:8 cut r2:0-8:3,2
    done s3                                          launch s4 r2:2 cut r2:7-10:1,0
    done s4                                          finish r2:1
    arrive r3 prompt=10 output=1 is=a:8 session=1    launch s5 r3:2+8 cut r3:7-10:1,0
    done s5                                          finish r3:1
  )");
}
