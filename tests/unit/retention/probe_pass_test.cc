// Decision tables of passes of probe tokens: `r1:5p` is a pass of five.

#include <doctest/doctest.h>

#include "tests/support/policy_configs.h"
#include "tests/support/table.h"
#include "tests/support/test_policies.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

// Steps of 16 tokens, pages of 4; one sink, a window of one token, and half of the others are retained.
CoreConfig small() {
  CoreConfig config = table_config();
  config.page_tokens = config.unit_tokens = 4;
  config.step_tokens_max = 16;
  config.policies.identity = "none";
  config.policies.layout = "compact";
  config.policies.budget = "ratio";
  config.policies.budget_spec.ratio = kWhole / 2;
  config.policies.budget_spec.sinks = 1;
  config.policies.budget_spec.window = 1;
  return config;
}

ProbePasses soft(uint32_t tokens) { return ProbePasses::of_soft_tokens(tokens); }

// `tokens` at a time from position 2 on, each part after an instruction of two.
ProbePasses repeats(uint32_t tokens) {
  ScorerSpec spec;
  spec.repeat_tokens = tokens, spec.repeat_tail = 0, spec.repeat_instruction = 2;
  return ProbePasses::of_repeats(spec, 2);
}

void check(const CoreConfig& config, const ProbePasses& passes, const char* table) {
  check_table(config, axes_with_scorer(config, CompressionTrigger::kPromptEnd, passes), table);
}

}  // namespace

TEST_CASE("passes: they follow the prompt's last chunk, and the compression follows the last of them") {
  check(small(), repeats(8), R"(
    arrive r1 prompt=20 output=3      launch s1 r1:16
    done s1                           launch s2 r1:4                     # samples the first token
    done s2                           emitted r1:1  launch s3 r1:10p
    done s3                           launch s4 r1:10p                   # positions 10 to 17
    done s4                           launch s5 r1:4p cut r1:0-20:9
    done s5                           launch s6 r1:1
    done s6                           launch s7 r1:1
    done s7                           finish r1:3
  )");
}

TEST_CASE("passes: where every chunk is compressed, they follow each chunk") {
  CoreConfig config = small();
  config.policies.layout = "ragged";
  config.policies.budget = "top_per_layer";
  config.policies.layout_spec = {.layers = 1, .kv_heads = 2, .heads_per_group = 1};
  config.policies.budget_spec.chunk_tokens = 8;
  check_table(config, axes_with_scorer(config, CompressionTrigger::kChunkEnd, repeats(8)), R"(
    arrive r1 prompt=18 output=3      launch s1 r1:8
    done s1                           launch s2 r1:8p cut r1:0-8:?       # positions 2 to 7
    done s2 retained=5,4              launch s3 r1:8
    done s3                           launch s4 r1:10p                   # from the window of one token on
    done s4                           launch s5 r1:3p cut r1:7-16:?
    done s5 retained=9,6              launch s6 r1:2                     # samples the first token
    done s6                           emitted r1:1  launch s7 r1:5p cut r1:15-18:?
    done s7 retained=10,7             launch s8 r1:1
    done s8                           launch s9 r1:1
    done s9                           finish r1:3
  )");
}

TEST_CASE("passes: decodes, passes and chunks share the budget of a step") {
  check(small(), soft(5), R"(
    arrive r1 prompt=8 output=9       launch s1 r1:8
    done s1                           launch s2 r1:5p cut r1:0-8:3
    done s2                           launch s3 r1:1
    arrive r2 prompt=10 output=2      -
    arrive r3 prompt=20 output=1      -
    done s3                           launch s4 r1:1 r2:10 r3:5
    done s4                           launch s5 r1:1 r2:5p r3:10 cut r2:0-10:4
    done s5                           launch s6 r1:1 r2:1 r3:5
    done s6                           finish r2:2  launch s7 r1:1 r3:5p cut r3:0-20:9
    done s7                           finish r3:1  launch s8 r1:1
  )");
}

TEST_CASE("passes: a pass of exactly the budget leads the next step, and a longer one has a step alone") {
  for (const auto& [tokens, pass] : {std::pair{16u, "r2:16p"}, std::pair{40u, "r2:40p"}}) {
    const std::string first = "r1:" + std::to_string(tokens) + "p";
    check(small(), soft(tokens),
          ("arrive r1 prompt=8 output=9       launch s1 r1:8\n"
           "done s1                           launch s2 " +
           first +
           " cut r1:0-8:3\n"
           "done s2                           launch s3 r1:1\n"
           "arrive r2 prompt=8 output=1       -\n"
           "done s3                           launch s4 r1:1 r2:8\n"
           "done s4                           launch s5 r1:1            # 15 tokens of room\n"
           "done s5                           launch s6 " +
           std::string(pass) +
           " cut r2:0-8:3\n"
           "done s6                           finish r2:1  launch s7 r1:1\n")
              .c_str());
  }
}

TEST_CASE("passes: steps that begin with a pass alternate with steps of decodes") {
  check(small(), repeats(14), R"(
    arrive r1 prompt=4 output=20      launch s1 r1:4
    done s1                           launch s2 r1:4p cut r1:0-4:1
    done s2                           launch s3 r1:1
    arrive r2 prompt=30 output=1      -
    done s3                           launch s4 r1:1 r2:15
    done s4                           launch s5 r1:1 r2:15
    done s5                           launch s6 r1:1                     # 15 tokens of room
    done s6                           launch s7 r2:16p
    done s7                           launch s8 r1:1
    done s8                           launch s9 r2:16p cut r2:0-30:14
    done s9                           finish r2:1  launch s10 r1:1
  )");
}

TEST_CASE("passes: a step that begins with a pass still has what is left of its budget") {
  check(small(), soft(15), R"(
    arrive r1 prompt=8 output=20      launch s1 r1:8
    done s1                           launch s2 r1:15p cut r1:0-8:3
    done s2                           launch s3 r1:1
    arrive r2 prompt=8 output=20      -
    done s3                           launch s4 r1:1 r2:8
    done s4                           launch s5 r1:1 r2:15p cut r2:0-8:3
    done s5                           launch s6 r1:1 r2:1
    arrive r3 prompt=8 output=1       -
    done s6                           launch s7 r1:1 r2:1 r3:8
    done s7                           launch s8 r1:1 r2:1                # 14 tokens of room
    done s8                           launch s9 r3:15p r1:1 cut r3:0-8:3
    done s9                           finish r3:1  launch s10 r1:1 r2:1
  )");
}

TEST_CASE("passes: a request that is preempted between its passes runs all of them again") {
  CoreConfig config = small();
  config.pages_gpu = 6;
  check(config, repeats(4), R"(
    arrive r1 prompt=8 output=5       launch s1 r1:8                     held 2
    done s1                           launch s2 r1:6p                    held 2
    done s2                           launch s3 r1:4p cut r1:0-8:3       held 2   # 5 KV entries
    arrive r2 prompt=15 output=2      -                                  held 2
    done s3                           launch s4 r1:1 r2:15               held 6
    done s4                           launch s5 r1:1 r2:6p               held 6
    done s5                           launch s6 r1:1 r2:6p               held 6
    done s6                           preempt r2  launch s7 r1:1         held 3
    done s7                           finish r1:5  launch s8 r2:16       held 4
    done s8                           launch s9 r2:6p                    held 4
    done s9                           launch s10 r2:6p                   held 4
    done s10                          launch s11 r2:6p                   held 4
    done s11                          launch s12 r2:4p cut r2:0-16:7     held 3
    done s12                          finish r2:2                        held 0
  )");
}

TEST_CASE("passes: none where nothing is dropped") {
  CoreConfig config = small();
  config.policies.budget = "uniform";
  config.policies.budget_spec.kv_entries = 8;
  check(config, soft(5), R"(
    arrive r1 prompt=8 output=2       launch s1 r1:8
    done s1                           launch s2 r1:1
    done s2                           finish r1:2
  )");
}

TEST_CASE("passes: a request that ends with its first token runs no further pass") {
  check(small(), repeats(4), R"(
    arrive r1 prompt=8 output=3       launch s1 r1:8
    done s1 eos=r1                    finish r1:1
    arrive r2 prompt=8 output=3       launch s2 r2:8
    done s2                           launch s3 r2:6p
    cancel r2                         -
    done s3                           cancelled r2:1
  )");
  CoreConfig config = small();
  config.steps_in_flight_max = 2;  // the first pass is planned while the prompt runs
  check(config, repeats(4), R"(
    arrive r1 prompt=8 output=3       launch s1 r1:8  launch s2 r1:6p
    done s1 eos=r1                    -
    done s2                           finish r1:1
  )");
}

TEST_CASE("passes: in order of kinds, passes are where prompts are, with the whole budget") {
  CoreConfig config = small();
  config.batch_order = BatchOrder::kMixed;
  check(config, soft(10), R"(
    arrive r1 prompt=8 output=9       launch s1 r1:8
    done s1                           launch s2 r1:10p cut r1:0-8:3
    done s2                           launch s3 r1:1
    arrive r2 prompt=8 output=1       -
    done s3                           launch s4 r1:1 r2:8
    arrive r3 prompt=20 output=1      -
    done s4                           launch s5 r1:1 r2:10p r3:5 cut r2:0-8:3
    done s5                           finish r2:1  launch s6 r1:1 r3:8   # a prompt has half of the budget
  )");
  config.batch_order = BatchOrder::kPrefillFirst;
  check(config, soft(16), R"(
    arrive r1 prompt=8 output=9       launch s1 r1:8
    done s1                           launch s2 r1:16p cut r1:0-8:3
    done s2                           launch s3 r1:1
    arrive r2 prompt=8 output=1       -
    done s3                           launch s4 r2:8 r1:1
    done s4                           launch s5 r2:16p cut r2:0-8:3      # r1's decode finds no budget
    done s5                           finish r2:1  launch s6 r1:1
  )");
}

TEST_CASE("passes: dropped slots and resident pages wait for the last pass") {
  CoreConfig config = small();
  config.policies.layout = "page_mask";
  check(config, soft(5), R"(
    arrive r1 prompt=8 output=2       launch s1 r1:8                     held 2
    done s1                           launch s2 r1:5p cut r1:0-8:3       held 2
    done s2 live=0-3,7-7              launch s3 r1:1                     held 3
    done s3                           finish r1:2                        held 0
  )");
  config = resident_config();  // pages of 16 tokens; 3 of a request stay on the GPU
  config.policies.identity = "none";
  config.policies.layout = "compact";
  config.policies.budget = "ratio";
  config.policies.budget_spec.ratio = kWhole / 2;
  config.policies.budget_spec.sinks = config.policies.budget_spec.window = 16;
  config.pages_gpu = 8;
  config.step_tokens_max = 128;
  check(config, soft(5), R"(
    arrive r1 prompt=96 output=2      launch s1 r1:96                    held 6
    done s1                           launch s2 r1:5p cut r1:0-96:32     held 3
    done s2                           launch s3 r1:1                     held 3
    done s3                           finish r1:2                        held 0
  )");
}
