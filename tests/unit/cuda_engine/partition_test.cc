// Decodes that are divided as the partition says, each split a CTA: values within rounding of the CPU
// engine's, and splits that are those of the planner.

#include "engine/cuda/decode_partition.h"
#include "engine/methods/budget_groups.h"
#include "tests/unit/cuda_engine/compress_both.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

const Method kRagged{"fastkvzip", "reserved", "ragged", 1, Clustering::kPerLayer};

CoreConfig divided(const Method& method, const LlmSpec& llm, const char* partition) {
  CoreConfig config = cuda_config(method, llm);
  config.policies.partition = partition;
  return config;
}

const PartitionSpec kSmallTiles{.tile = 16};  // requests are short

}  // namespace

TEST_CASE("cuda partition: whatever the partition, logits equal the CPU engine's within rounding") {
  const Method methods[] = {kRagged,
                            {"fastkvzip", "released", "ragged", 2},
                            {"knorm", "ratio", "compact"},
                            {"h2o", "uniform", "compact_rerotate"},
                            {"duo_attention", "head_masks", "ring", 1}};
  const LlmSpec llm = models()[0];
  for (const Method& method : methods) {
    for (const char* partition : {"flash_decoding", "flashinfer", "stream_k", "aot"}) {
      const std::string name = name_of(method) + " " + partition;
      CAPTURE(name);
      ExpectedOutcome what{.llm = llm, .config = divided(method, llm, partition), .seed = 2, .compare = true};
      what.cancels = 10, what.partition = kSmallTiles;
      const PairedEngines result = run_both(what);
      CHECK_MESSAGE(result.worst < bf16_tolerance(llm), steps_off(result, bf16_tolerance(llm)));
      // Listed splits change from step to step, and so does the number of CTAs.
      CHECK((result.replays > 0) ==
            (partition == std::string("stream_k") && method.scorer != std::string("h2o")));
      MESSAGE(name << ": " << result.replays << " replays, worst relative error of logits " << result.worst);
    }
  }
}

TEST_CASE("cuda partition: AOT's splits follow the planned fractions of what compressions have ranked") {
  LlmSpec llm = models()[0];
  llm.layers = 1, llm.kv_heads = 2;
  CoreConfig config = divided(kRagged, llm, "aot");
  const GroupMap groups = make_groups(config.policies);
  cuda::DecodePartition partition(config.policies, groups, kSmallTiles, {kWhole / 4, kWhole / 4 * 3},
                                  {8, 1, 16});
  // One request, whose 400 tokens were ranked; then with a tail that matters: 0.25 * 400 + 200 and 500.
  const struct {
    uint32_t short_head, long_head, tokens, short_splits, long_splits;
  } rows[] = {{96, 288, 401, 2, 6}, {300, 500, 600, 3, 5}};
  for (const auto& row : rows) {
    partition.clear();
    partition.add(0, row.short_head, 400, row.tokens);
    partition.add(1, row.long_head, 400, row.tokens);
    partition.end_layer();
    uint32_t counts[2] = {0, 0}, ends[2] = {0, 0};
    for (const DecodeSplit& split : partition.splits()) {
      CHECK(split.begin == ends[split.sequence]);
      ends[split.sequence] = split.end;
      ++counts[split.sequence];
    }
    CHECK(ends[0] == row.short_head);
    CHECK(ends[1] == row.long_head);
    CHECK(counts[0] == row.short_splits);
    CHECK(counts[1] == row.long_splits);
  }
}

TEST_CASE("cuda partition: what has no kernel is refused by name") {
  const LlmSpec llm = models()[0];
  CoreConfig config = divided(kRagged, llm, "aot");
  CHECK_FALSE(cuda::check_partition(config, kSmallTiles).has_value());
  CHECK(cuda::check_partition(config, {.tile = 24}).value_or("").find("tiles of 24") != std::string::npos);
  config.page_tokens = config.unit_tokens = 1;
  CHECK(cuda::check_partition(config, kSmallTiles).value_or("").find("pages of 1") != std::string::npos);
  config.policies.partition = "stream_k";
  CHECK_FALSE(cuda::check_partition(config, kSmallTiles).has_value());
  config = divided({"snapkv", "uniform", "page_mask"}, llm, "aot");
  const std::string problem = cuda::check_compressed(config, score_of(config), llm).value_or("");
  CHECK(problem.find("not for layout page_mask") != std::string::npos);
}
