// Formats and retrieval together with dropped KV entries: retained entries may be packed, and decodes may
// read a part of them (docs/design/methods/composition.md#pairs, #walk-throughs). Whole runs on real data
// are checked by a witness that packs, selects and attends on its own.

#include "tests/unit/cpu_compression/compress_run.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

constexpr auto kAdjacent = Clustering::kAdjacent;

const std::vector<Method>& combined_methods() {
  static const std::vector<Method> all = {
      // The composite of docs/design/methods/composition.md#walk-throughs, and parts of it.
      {"fastkvzip", "reserved", "ragged", 2, Clustering::kAcrossLayers, {}, "int4", "quest"},
      {"fastkvzip", "reserved", "ragged", 1, Clustering::kPerLayer, {}, "int4"},
      {"random", "reserved", "ragged", 1, kAdjacent, {}, "bf16", "quest"},
      {"keydiff", "ratio", "compact", 0, kAdjacent, {}, "fp8", "quest"},
      // Chunks in full precision, and compression at the prompt's end.
      {"fastkvzip", "released", "ragged", 2, kAdjacent, {}, "fp4", "quest"},
      {"snapkv", "uniform", "compact", 0, kAdjacent, {}, "fp8"},
      {"snapkv", "ada", "ragged", 1, kAdjacent, {}, "fp4"},
      {"snapkv", "uniform", "compact", 0, kAdjacent, {}, "bf16", "quest"},
      {"judge_q", "uniform", "compact", 0, kAdjacent, {}, "int4"},
      {"kvzip", "top_across_layers", "ragged", 1, kAdjacent, {}, "int4"},
      // Compression at decode steps, and rings.
      {"h2o", "uniform", "compact", 0, kAdjacent, {}, "int4"},
      {"streaming_llm", "uniform", "ring", 0, kAdjacent, {}, "int4"},
      {"duo_attention", "head_masks", "ring", 1, kAdjacent, {}, "fp8"},
      // Slots dropped in place.
      {"intent_rule", "uniform", "page_mask", 0, kAdjacent, {}, "int4", "quest"},
      {"snapkv", "uniform", "page_mask", 0, kAdjacent, {}, "bf16", "quest"},
      {"intent_rule", "uniform", "slot_mask", 0, kAdjacent, {}, "int4"},
      // No entry is dropped.
      {"none", "all", "paged", 0, kAdjacent, {}, "int4", "quest"},
      {"none", "all", "paged", 0, kAdjacent, {}, "fp8", "quest"},
  };
  return all;
}

RunOf combined_run(const Method& method, uint64_t seed) {
  LlmSpec llm = tiny_models()[seed % 2 == 0 ? 1 : 2];
  if (llm.kv_heads == 3) llm.kv_heads = llm.query_heads = 2;
  RunOf out{.llm = llm, .config = config_of(method, llm), .seed = seed};
  if (out.config.policies.layout == "paged") {
    out.config.prefix_cache = true;
    out.config.policies.identity = "session";
  }
  out.client = {.sessions = 3, .requests_per_session = 2, .prompt_tokens_max = 60, .output_tokens_max = 16};
  return out;
}

std::string combined_name(const Method& method) {
  return std::string(method.scorer) + " " + method.budget + " " + method.layout + " " + method.precision +
         " " + method.retrieval;
}

// Room for every entry, and no pages to select.
RunOf roomy(RunOf what) {
  BudgetSpec& budget = what.config.policies.budget_spec;
  budget.kv_entries = 8192, budget.ratio = kWhole, budget.retained_min = 512;
  budget.mu.assign(budget.mu.size(), kWhole);
  budget.keeps_all.assign(budget.keeps_all.size(), true);
  what.config.policies.retrieval_spec.budget_tokens = 4096;
  return what;
}

}  // namespace

TEST_CASE(
    "G-1 G-3 X-2 X-3 Q-2 combined: each token attends to the retained entries as stored, or to its best "
    "pages") {
  for (const Method& method : combined_methods()) {
    const std::string name = combined_name(method);
    CAPTURE(name);
    RunResult all;
    for (uint64_t seed = 1; seed <= 4; ++seed) {
      CAPTURE(seed);
      RunOf what = combined_run(method, seed);
      what.config.steps_in_flight_max = 1 + static_cast<uint32_t>(seed % 2);
      if (seed >= 3) {  // memory is short: preemptions, cancelled requests
        const uint32_t groups = layout_traits(what.config.policies.layout).has_groups
                                    ? what.config.policies.layout_spec.groups()
                                    : 1;
        what.client.cancels_per_100 = 20, what.client.sessions = 6, what.client.output_tokens_max = 40;
        what.config.pages_gpu = (seed == 3 ? 24 : 32) * groups * 4 / what.config.page_tokens;
      }
      const RunResult result = run_of(what);
      CHECK(result.worst < 2e-5);
      all.compressions += result.compressions, all.dropped += result.dropped, all.rows += result.rows;
      all.chose += result.chose, all.preemptions += result.preemptions;
    }
    MESSAGE(name << ": " << all.rows << " rows, " << all.dropped << " KV entries dropped, " << all.chose
                 << " heads of rows chose, " << all.preemptions << " preemptions");
    const bool drops = std::string(method.layout) != "ring" && std::string(method.layout) != "paged";
    CHECK((all.dropped > 0) == drops);
    CHECK((all.chose > 0) == (std::string(method.retrieval) != "all"));
  }
}

TEST_CASE(
    "G-2 X-1 combined: with room for every entry, packed or not, a method equals its format alone, to the "
    "bit") {
  for (const Method& method : combined_methods()) {
    const std::string name = combined_name(method);
    CAPTURE(name);
    RunOf what = roomy(combined_run(method, 8));
    // The chunking of prompts decides which tokens a chunk reads exactly, so all runs use the same.
    what.config.requests_max = 1;
    what.config.step_tokens_max = what.config.policies.budget_spec.chunk_tokens;
    const RunResult result = run_of(what);
    CHECK(result.dropped == 0);
    CHECK(result.chose == 0);
    RunOf alone = what;
    PolicySet& set = alone.config.policies;
    set.scorer = "none", set.budget = "all", set.layout = "paged", set.retrieval = "all";
    set.scorer_spec.probe_tokens = 0;
    alone.dense = true;
    CHECK(result.logits == run_of(alone).logits);
  }
}

TEST_CASE("X-1 combined: Quest over whole contexts selects the same in two implementations, to the bit") {
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    CAPTURE(seed);
    RunOf what = combined_run({"none", "all", "paged", 0, kAdjacent, {}, "bf16", "quest"}, seed);
    const RunResult result = run_of(what);
    CHECK(result.chose > 0);
    what.dense = true;
    CHECK(result.logits == run_of(what).logits);
  }
}

TEST_CASE("X-9 combined: the composite samples the same with other requests and alone") {
  for (const Method& method : {combined_methods()[0], combined_methods()[2], combined_methods()[3]}) {
    const std::string name = combined_name(method);
    CAPTURE(name);
    RunOf what = combined_run(method, 5);
    const RunResult concurrent = run_of(what);
    what.config.requests_max = 1;
    what.config.step_tokens_max = 33;
    what.config.steps_in_flight_max = 2;
    const RunResult alone = run_of(what);
    CHECK(concurrent.preemptions == 0);
    CHECK(concurrent.chose > 0);
    CHECK(concurrent.logits == alone.logits);
  }
}

TEST_CASE("X-1 combined: every format and every selection changes the logits") {
  for (const char* precision : {"bf16", "int4"}) {
    for (const char* retrieval : {"all", "quest"}) {
      if (std::string(precision) == "bf16" && std::string(retrieval) == "all") continue;
      CAPTURE(precision);
      CAPTURE(retrieval);
      const Method plain{"fastkvzip", "reserved", "ragged", 2, Clustering::kAcrossLayers};
      Method method = plain;
      method.precision = precision, method.retrieval = retrieval;
      const RunResult without = run_of(combined_run(plain, 5)), with = run_of(combined_run(method, 5));
      CHECK(with.logits != without.logits);
      CHECK(with.digest == without.digest);  // no decision depends on the data here
    }
  }
}

TEST_CASE("combined: a combination that cannot be computed is refused with a remedy") {
  const LlmSpec llm = tiny_models()[2];
  const struct {
    Method method;
    const char* message;
  } rows[] = {
      {{"snapkv", "uniform", "compact_rerotate", 0, kAdjacent, {}, "int4"}, "choose layout compact"},
      {{"snapkv", "uniform", "page_mask", 0, kAdjacent, {}, "kivi_int2"}, "set precision: int4"},
      {{"snapkv", "uniform", "compact", 0, kAdjacent, {}, "int4", "quest"}, "works at chunk ends"},
      {{"h2o", "uniform", "page_mask", 0, kAdjacent, {}, "bf16", "quest"}, "retrieval: all"},
  };
  for (const auto& row : rows) {
    const std::optional<std::string> problem = cpu::check_compressed(config_of(row.method, llm), llm);
    REQUIRE(problem.has_value());
    CHECK_MESSAGE(problem->find(row.message) != std::string::npos, *problem);
  }
}
