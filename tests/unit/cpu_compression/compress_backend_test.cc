// Every way of dropping KV entries, over whole runs on real data. Attention reads the retained entries, the
// retained set satisfies the command, logs replay, and concurrent requests change nothing.

#include "tests/unit/cpu_compression/compress_run.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

const std::vector<Method>& backend_methods() {
  static const std::vector<Method> all = {
      {"knorm", "ratio", "compact"},
      {"knorm", "uniform", "ragged", 1},
      {"keydiff", "ratio", "ragged", 2},
      {"random", "uniform", "compact"},
      {"random", "reserved", "ragged", 2, Clustering::kAcrossLayers},
      {"streaming_llm", "uniform", "compact"},
      {"fastkvzip", "reserved", "ragged", 1, Clustering::kPerLayer},
      {"fastkvzip", "released", "ragged", 2},
      {"trimkv", "uniform", "compact"},
      {"snapkv", "uniform", "compact"},
      {"snapkv", "ada", "ragged", 1},
      {"snapkv", "top_per_layer", "ragged", 1},
      {"snapkv", "top_across_layers", "ragged", 1},
      {"snapkv", "top_across_layers", "ragged", 2},
      {"pyramidkv", "pyramid", "ragged", 1},
      {"expected_attention", "ratio", "compact"},
      {"h2o_prefill", "uniform", "compact"},
      {"finch", "uniform", "compact_rerotate"},
      {"snapkv", "uniform", "compact_rerotate"},
      {"critical_kv", "ada", "ragged", 1},
      {"tova", "uniform", "compact"},
      {"h2o", "uniform", "compact"},
      {"h2o", "uniform", "compact_rerotate"},
      {"raas", "uniform", "ragged", 1},
      {"duo_attention", "head_masks", "ragged", 1},
      {"streaming_llm", "uniform", "ring"},
      {"duo_attention", "head_masks", "ring", 1},
      {"judge_q", "uniform", "compact"},
      {"judge_q", "ada", "ragged", 1},
      {"kvzip", "top_across_layers", "ragged", 1},
      {"kvzip", "ratio", "compact_rerotate"},
      {"intent_rule", "uniform", "slot_mask"},
      {"intent_rule", "uniform", "page_mask"},
      {"intent_residual", "ratio", "page_mask"},
      {"intent_rule", "uniform", "compact"},
      {"judge_q", "uniform", "page_mask"},
      {"snapkv", "uniform", "page_mask"},
      {"h2o", "uniform", "page_mask"},
      {"knorm", "ratio", "slot_mask", 0, Clustering::kAdjacent, CompressionTrigger::kPromptEnd},
      {"fastkvzip", "uniform", "page_mask", 0, Clustering::kAdjacent, CompressionTrigger::kPromptEnd},
      {"intent_rule", "uniform", "page_mask", 0, Clustering::kAdjacent, CompressionTrigger::kTurnStart},
      {"intent_residual", "uniform", "slot_mask", 0, Clustering::kAdjacent, CompressionTrigger::kTurnStart},
      {"knorm", "ratio", "page_mask", 0, Clustering::kAdjacent, CompressionTrigger::kTurnStart},
      {"fastkvzip", "uniform", "page_mask", 0, Clustering::kAdjacent, CompressionTrigger::kTurnStart},
  };
  return all;
}

// GQA 4:1 with one and with two KV heads, and MHA with an odd number of heads.
std::vector<LlmSpec> backend_models() {
  std::vector<LlmSpec> out = {tiny_models()[2], tiny_models()[1]};
  out[1].kv_heads = out[1].query_heads = 2;
  return out;
}

RunOf backend_run(const Method& method, const LlmSpec& llm, uint64_t seed) {
  RunOf out{.llm = llm, .config = config_of(method, llm), .seed = seed};
  out.client = {.sessions = 3, .requests_per_session = 2, .prompt_tokens_max = 60, .output_tokens_max = 16};
  return out;
}

std::string backend_name(const Method& method) {
  return std::string(method.scorer) + " " + method.budget + " " + method.layout;
}

}  // namespace

TEST_CASE(
    "G-1 G-3 X-2 T-1 T-2 compress: each token attends to exactly the retained entries; its log replays") {
  for (const Method& method : backend_methods()) {
    const std::string name = backend_name(method);
    CAPTURE(name);
    RunResult all;
    for (const LlmSpec& llm : backend_models()) {
      for (uint64_t seed = 1; seed <= 3; ++seed) {
        CAPTURE(seed);
        RunOf what = backend_run(method, llm, seed);
        what.config.steps_in_flight_max = 1 + static_cast<uint32_t>(seed % 2);
        what.config.batch_order = seed == 3 ? BatchOrder::kMixed : BatchOrder::kDecodeFirst;
        const RunResult result = run_of(what);
        CHECK(result.worst < 2e-5);
        all.compressions += result.compressions, all.dropped += result.dropped, all.rows += result.rows;
      }
    }
    MESSAGE(name << ": " << all.rows << " rows, " << all.compressions << " compressions, " << all.dropped
                 << " KV entries dropped");
    const bool ring = std::string(method.layout) == "ring";
    CHECK((all.compressions > 0) == !ring);
    CHECK((all.dropped > 0) == !ring);
  }
}

TEST_CASE("X-3 compress: the same holds under pressure, with preemptions and cancelled requests") {
  uint64_t preemptions = 0;
  for (const Method& method : backend_methods()) {
    const std::string name = backend_name(method);
    CAPTURE(name);
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      CAPTURE(seed);
      RunOf what = backend_run(method, backend_models()[seed % 2], seed);
      what.client.cancels_per_100 = 20;
      const uint32_t groups = layout_traits(what.config.policies.layout).has_groups
                                  ? what.config.policies.layout_spec.groups()
                                  : 1;
      what.client.sessions = 6, what.client.output_tokens_max = 40;
      what.config.pages_gpu = (seed == 1 ? 24 : 32) * groups * 4 / what.config.page_tokens;
      what.config.steps_in_flight_max = 1 + static_cast<uint32_t>(seed % 2);
      const RunResult result = run_of(what);
      CHECK(result.worst < 2e-5);
      preemptions += result.preemptions;
    }
  }
  MESSAGE(preemptions << " preemptions");
  CHECK(preemptions > 20);
}

TEST_CASE(
    "X-9 compress: a request samples the same with other requests and alone, for every chunking of its "
    "prompt") {
  for (const Method& method : backend_methods()) {
    const std::string name = backend_name(method);
    CAPTURE(name);
    RunOf what = backend_run(method, backend_models()[0], 5);
    const RunResult concurrent = run_of(what);
    what.config.requests_max = 1;
    what.config.step_tokens_max = 33;
    what.config.steps_in_flight_max = 2;
    const RunResult alone = run_of(what);
    CHECK(concurrent.preemptions == 0);
    CHECK(concurrent.logits == alone.logits);
    CHECK(concurrent.dropped == alone.dropped);
  }
}

TEST_CASE("G-2 X-1 T-3 compress: with room for every entry, every method is dense attention, to the bit") {
  for (const LlmSpec& llm : backend_models()) {
    std::map<uint32_t, RunResult> dense;  // by page size, which decides how requests share prefixes
    for (const uint32_t page : {1u, 4u}) {
      RunOf what = backend_run({"none", "all", "paged"}, llm, 7);
      what.dense = true;
      what.config.page_tokens = what.config.unit_tokens = page;
      dense[page] = run_of(what);
      REQUIRE(!dense[page].logits.empty());
    }
    for (const Method& method : backend_methods()) {
      const std::string name = backend_name(method);
      CAPTURE(name);
      RunOf what = backend_run(method, llm, 7);
      BudgetSpec& budget = what.config.policies.budget_spec;
      budget.kv_entries = 8192, budget.ratio = kWhole, budget.retained_min = 512;
      budget.mu.assign(budget.mu.size(), kWhole);
      budget.keeps_all.assign(budget.keeps_all.size(), true);
      const RunResult result = run_of(what);
      CHECK(result.dropped == 0);
      CHECK(result.logits == dense[what.config.page_tokens].logits);
    }
  }
}
