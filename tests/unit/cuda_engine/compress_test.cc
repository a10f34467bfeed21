// Methods that drop KV entries on the GPU. With room for every entry they are dense attention to the bit.
// With the GPU's selection forced on it the CPU engine computes the same logits within bf16's rounding; the
// engines' own selections overlap. Steps replayed as graphs equal steps launched without them, to the bit.
// Packed KV entries: compress_packed_test.cc.

#include "tests/unit/cuda_engine/compress_both.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

const std::vector<Method>& methods() {
  static const std::vector<Method> all = {
      {"knorm", "ratio", "compact"},
      {"knorm", "uniform", "ragged", 1},
      {"keydiff", "ratio", "ragged", 2},
      {"random", "reserved", "ragged", 2, Clustering::kAcrossLayers},
      {"streaming_llm", "uniform", "compact"},
      {"streaming_llm", "uniform", "ring"},
      {"duo_attention", "head_masks", "ragged", 1},
      {"duo_attention", "head_masks", "ring", 1},
      {"fastkvzip", "reserved", "ragged", 1, Clustering::kPerLayer},
      {"fastkvzip", "released", "ragged", 2},
      {"trimkv", "uniform", "compact"},
      {"snapkv", "uniform", "compact"},
      {"snapkv", "ada", "ragged", 1},
      {"snapkv", "top_across_layers", "ragged", 2},
      {"snapkv", "uniform", "page_mask"},
      {"pyramidkv", "pyramid", "ragged", 1},
      {"finch", "uniform", "compact_rerotate"},
      {"tova", "uniform", "compact"},
      {"h2o", "uniform", "compact"},
      {"h2o", "uniform", "compact_rerotate"},
      {"h2o_prefill", "uniform", "compact"},
      {"raas", "uniform", "ragged", 1},
      {"knorm", "ratio", "slot_mask", 0, Clustering::kAdjacent, CompressionTrigger::kPromptEnd},
      {"fastkvzip", "uniform", "page_mask", 0, Clustering::kAdjacent, CompressionTrigger::kPromptEnd},
      {"judge_q", "uniform", "compact"},
      {"judge_q", "ada", "ragged", 1},
      {"judge_q", "uniform", "page_mask"},
      {"kvzip", "top_across_layers", "ragged", 1},
      {"kvzip", "top_per_layer", "ragged", 2, Clustering::kAdjacent, CompressionTrigger::kChunkEnd},
      {"kvzip", "ratio", "compact_rerotate"},
      {"expected_attention", "ratio", "compact"},
      {"critical_kv", "ada", "ragged", 1},
      {"intent_rule", "uniform", "slot_mask"},
      {"intent_rule", "uniform", "page_mask"},
      {"intent_residual", "ratio", "page_mask"},
      {"intent_rule", "uniform", "compact"},
  };
  return all;
}

// What a request begins with is compressed before its rows.
const std::vector<Method>& turn_methods() {
  static const std::vector<Method> all = {
      {"intent_rule", "uniform", "page_mask", 0, Clustering::kAdjacent, CompressionTrigger::kTurnStart},
      {"intent_residual", "uniform", "slot_mask", 0, Clustering::kAdjacent, CompressionTrigger::kTurnStart},
      {"knorm", "ratio", "page_mask", 0, Clustering::kAdjacent, CompressionTrigger::kTurnStart},
      {"keydiff", "uniform", "slot_mask", 0, Clustering::kAdjacent, CompressionTrigger::kTurnStart},
      {"fastkvzip", "uniform", "page_mask", 0, Clustering::kAdjacent, CompressionTrigger::kTurnStart},
  };
  return all;
}

void check_dense(const std::vector<Method>& methods) {
  for (const LlmSpec& llm : models()) {
    for (const Method& method : methods) {
      const std::string name = name_of(method);
      CAPTURE(name);
      ExpectedOutcome what{.llm = llm, .config = cuda_config(method, llm), .seed = 7, .dense = true};
      give_room(&what.config.policies.budget_spec);
      const PairedEngines result = run_both(what);
      CHECK(result.steps > 5);
      CHECK(result.unequal == 0);
    }
  }
}

void check_logits(const std::vector<Method>& methods) {
  for (const Method& method : methods) {
    const std::string name = name_of(method);
    CAPTURE(name);
    double worst = 0;
    uint64_t compressions = 0;
    for (const LlmSpec& llm : models()) {
      for (uint64_t seed = 1; seed <= 2; ++seed) {
        CAPTURE(seed);
        ExpectedOutcome what{.llm = llm, .config = cuda_config(method, llm), .seed = seed, .compare = true};
        what.config.steps_in_flight_max = 1 + static_cast<uint32_t>(seed % 2);
        const PairedEngines result = run_both(what);
        CHECK_MESSAGE(result.worst < bf16_tolerance(llm), steps_off(result, bf16_tolerance(llm)));
        worst = std::max(worst, result.worst);
        compressions += result.compressions;
      }
    }
    CHECK((compressions > 0) == (std::string(method.layout) != "ring"));
    MESSAGE(name << ": " << compressions << " compressions, worst relative error of logits " << worst);
  }
}

void check_replays(const std::vector<Method>& methods) {
  for (const Method& method : methods) {
    const std::string name = name_of(method);
    CAPTURE(name);
    uint64_t replays = 0;
    for (const LlmSpec& llm : models()) {
      ExpectedOutcome what{.llm = llm, .config = cuda_config(method, llm), .seed = 5, .launched = true};
      const PairedEngines result = run_both(what);
      CHECK(result.unequal == 0);
      replays += result.replays;
    }
    // Methods that score at every step, or compress at every third one, have no replays.
    MESSAGE(name << ": " << replays << " steps were replays");
    if (method.scorer == std::string("snapkv") && method.layout == std::string("compact"))
      CHECK(replays > 20);
    const bool dropped_slots = method.layout == std::string("page_mask");
    if (method.scorer == std::string("fastkvzip") || dropped_slots) CHECK(replays > 20);
    if (method.scorer == std::string("h2o")) CHECK(replays == 0);
  }
}

}  // namespace

TEST_CASE("G-2 cuda compress: with room for every entry, every method is dense attention, to the bit") {
  check_dense(methods());
}

TEST_CASE(
    "G-3 cuda compress: logits equal the CPU engine's with the same retained entries, within rounding") {
  check_logits(methods());
}

TEST_CASE("cuda compress: steps replayed as graphs equal steps launched without them, to the bit") {
  check_replays(methods());
}

TEST_CASE("cuda compress: decodes are padded to captured sizes, and one graph serves a size") {
  const Method padded[] = {
      {"snapkv", "uniform", "compact"},
      {"fastkvzip", "reserved", "ragged", 1, Clustering::kPerLayer},
      {"fastkvzip", "released", "ragged", 2},
      {"streaming_llm", "uniform", "ring"},
      {"snapkv", "uniform", "page_mask"},
      {"knorm", "ratio", "slot_mask", 0, Clustering::kAdjacent, CompressionTrigger::kPromptEnd},
  };
  for (const Method& method : padded) {
    const std::string name = name_of(method);
    CAPTURE(name);
    for (const LlmSpec& llm : models()) {
      ExpectedOutcome what{.llm = llm, .config = cuda_config(method, llm), .seed = 5, .compare = true};
      what.launched = true;
      const uint64_t unpadded = run_both(what).replays;  // one graph for each of 1, 2 and 3 requests
      what.config.capture_sizes = {4, 8};
      const PairedEngines result = run_both(what);
      CHECK(result.unequal == 0);
      CHECK_MESSAGE(result.worst < bf16_tolerance(llm), steps_off(result, bf16_tolerance(llm)));
      CHECK(result.replays > unpadded);
      MESSAGE(name << ": " << result.replays << " steps were replays, " << unpadded << " without padding");
    }
  }
}

TEST_CASE("G-3 cuda compress: sums of attention are gathered beside dropped slots, where nothing is shared") {
  for (const char* scorer : {"h2o", "h2o_prefill"}) {
    for (const char* layout : {"page_mask", "slot_mask"}) {
      const Method method{scorer, "uniform", layout};
      const std::string name = name_of(method);
      CAPTURE(name);
      for (const LlmSpec& llm : models()) {
        ExpectedOutcome what{.llm = llm, .config = cuda_config(method, llm), .seed = 2, .compare = true};
        what.config.prefix_cache = false, what.cancels = 10;
        const PairedEngines result = run_both(what);
        CHECK_MESSAGE(result.worst < bf16_tolerance(llm), steps_off(result, bf16_tolerance(llm)));
        CHECK(result.compressions > 4);
        MESSAGE(name << ": " << result.compressions << " compressions, worst relative error of logits "
                     << result.worst);
      }
    }
  }
}

TEST_CASE("X-3 cuda compress: the same holds under pressure, with preemptions and cancelled requests") {
  CHECK(check_under_pressure(methods()) > 3);
}

TEST_CASE("G-2 G-3 X-3 cuda compress: all this holds of compressions at the start of a turn") {
  check_dense(turn_methods());
  check_logits(turn_methods());
  check_replays(turn_methods());
  CHECK(check_under_pressure(turn_methods()) > 0);
}
