// Packed KV entries of methods that drop KV entries, and Quest over the retained ones. With room for every
// entry they equal the packed engine to the bit. With the GPU's selection forced on it, the CPU engine
// computes the same logits, except for numbers near the midpoint of two codes (packed_test.cc); by its own
// scores it retains nearly the same.

#include "tests/unit/cuda_engine/compress_both.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

Method packed_as(const char* precision, Method method) {
  method.precision = precision;
  return method;
}

const std::vector<Method>& packed_methods() {
  static const std::vector<Method> all = {
      packed_as("int4", {"knorm", "ratio", "compact"}),
      packed_as("fp8", {"knorm", "uniform", "ragged", 1}),
      packed_as("fp4", {"keydiff", "ratio", "ragged", 2}),
      packed_as("int4", {"random", "reserved", "ragged", 2, Clustering::kAcrossLayers}),
      packed_as("int4", {"streaming_llm", "uniform", "ring"}),
      packed_as("fp8", {"duo_attention", "head_masks", "ring", 1}),
      packed_as("int4", {"fastkvzip", "reserved", "ragged", 1, Clustering::kPerLayer}),
      packed_as("fp4", {"fastkvzip", "released", "ragged", 2}),
      packed_as("fp8", {"trimkv", "uniform", "compact"}),
      packed_as("int4", {"snapkv", "uniform", "compact"}),
      packed_as("fp4", {"snapkv", "ada", "ragged", 1}),
      packed_as("int4", {"snapkv", "uniform", "page_mask"}),
      packed_as("int4", {"tova", "uniform", "compact"}),
      packed_as("int4", {"judge_q", "uniform", "compact"}),
      packed_as("fp8", {"judge_q", "ada", "ragged", 1}),
      packed_as("int4", {"judge_q", "uniform", "page_mask"}),
      packed_as("int4", {"kvzip", "top_across_layers", "ragged", 1}),
      packed_as("int4", {"expected_attention", "ratio", "compact"}),
      packed_as("int4", {"critical_kv", "ada", "ragged", 1}),
      packed_as("int4",
                {"knorm", "ratio", "slot_mask", 0, Clustering::kAdjacent, CompressionTrigger::kPromptEnd}),
      packed_as("int4",
                {"knorm", "ratio", "page_mask", 0, Clustering::kAdjacent, CompressionTrigger::kTurnStart}),
      packed_as("fp8", {"intent_rule", "ratio", "page_mask", 0, Clustering::kAdjacent,
                        CompressionTrigger::kTurnStart}),
  };
  return all;
}

// Quest over the retained entries.
const std::vector<Method>& quest_methods() {
  const auto quest = [](const char* precision, Method method) {
    method.precision = precision, method.retrieval = "quest";
    return method;
  };
  static const std::vector<Method> all = {
      quest("int4", {"fastkvzip", "reserved", "ragged", 2, Clustering::kAcrossLayers}),
      quest("int4", {"fastkvzip", "reserved", "ragged", 1, Clustering::kPerLayer}),
      quest("fp8", {"keydiff", "ratio", "compact"}),
      quest("fp4", {"knorm", "ratio", "ragged", 2}),
  };
  return all;
}

}  // namespace

TEST_CASE("G-2 cuda compress: packed, with room for every entry, equals the packed engine, to the bit") {
  for (size_t i = 0; i < packed_methods().size(); ++i) {
    const Method& method = packed_methods()[i];
    const LlmSpec llm = models()[i % 2];
    const std::string name = name_of(method);
    CAPTURE(name);
    ExpectedOutcome what{.llm = llm, .config = cuda_config(method, llm), .seed = 7, .dense = true};
    give_room(&what.config.policies.budget_spec);
    const PairedEngines result = run_both(what);
    CHECK(result.steps > 5);
    CHECK(result.unequal == 0);
  }
}

TEST_CASE(
    "cuda compress: packed KV entries that are kept are those that the CPU engine keeps, but for a few") {
  for (const Method& method : packed_methods()) {
    const PolicyAxes axes = make_axes(cuda_config(method, models()[0]).policies);
    const bool counts = axes.budget->known_at_admission(),
               moves = axes.layout.slot_retention == SlotRetention::kMove;
    if (!counts || !moves) continue;  // otherwise engines may disagree on the counts
    const std::string name = name_of(method);
    CAPTURE(name);
    const LlmSpec llm = models()[0];
    const PairedEngines result =
        run_both({.llm = llm, .config = cuda_config(method, llm), .seed = 1, .judge = true});
    const double fraction = static_cast<double>(result.agreed) / static_cast<double>(result.retained);
    CHECK(fraction > 0.9);
    MESSAGE(name << ": " << result.retained << " KV entries kept, by both " << fraction);
  }
}

TEST_CASE("G-3 cuda compress: packed, logits equal the CPU engine's with the same retained entries") {
  for (const Method& method : packed_methods()) {
    const std::string name = name_of(method);
    CAPTURE(name);
    double worst = 0;
    uint64_t compressions = 0;
    for (const LlmSpec& llm : models()) {
      ExpectedOutcome what{
          .llm = llm, .config = cuda_config(method, llm), .seed = 1, .compare = true, .cancels = 10};
      const PairedEngines result = run_both(what);
      CHECK_MESSAGE(result.worst < method_tolerance(method.precision, llm),
                    steps_off(result, method_tolerance(method.precision, llm)));
      worst = std::max(worst, result.worst);
      compressions += result.compressions;
    }
    CHECK((compressions > 0) == (std::string(method.layout) != "ring"));
    MESSAGE(name << ": " << compressions << " compressions, worst relative error of logits " << worst);
  }
}

TEST_CASE(
    "X-3 cuda compress: packed, the same holds under pressure, with preemptions and cancelled requests") {
  CHECK(check_under_pressure(packed_methods()) > 3);
}

TEST_CASE(
    "G-2 cuda compress: Quest with a budget beyond every request equals the packed engine, to the bit") {
  for (const Method& method : quest_methods()) {
    const std::string name = name_of(method);
    CAPTURE(name);
    const LlmSpec llm = models()[0];
    ExpectedOutcome what{.llm = llm, .config = cuda_config(method, llm), .seed = 7, .dense = true};
    give_room(&what.config.policies.budget_spec);
    what.config.policies.retrieval_spec.budget_tokens = 1024;
    const PairedEngines result = run_both(what);
    CHECK(result.steps > 5);
    CHECK(result.unequal == 0);
  }
}

TEST_CASE("G-3 cuda compress: Quest over retained packed entries reads the pages that the CPU engine reads") {
  uint64_t preemptions = 0;
  for (const Method& method : quest_methods()) {
    const std::string name = name_of(method);
    CAPTURE(name);
    for (const bool pressure : {false, true}) {
      const LlmSpec llm = models()[0];
      ExpectedOutcome what{.llm = llm, .config = cuda_config(method, llm), .compare = true, .cancels = 10};
      what.seed = pressure ? 3 : 2;
      const uint32_t groups = layout_traits(what.config.policies.layout).has_groups
                                  ? what.config.policies.layout_spec.groups()
                                  : 1;
      if (pressure) what.config.pages_gpu = 13 * groups;
      PairedEngines result = run_both(what);
      CHECK(result.heads_that_chose > 0);
      CHECK(result.compressions > 0);
      preemptions += result.preemptions;
      // Where two pages are nearly equal, another one may be read.
      std::sort(result.errors.begin(), result.errors.end());
      const double middle = result.errors[result.errors.size() / 2];
      CHECK(middle < method_tolerance(method.precision, llm) * 2 / 3);
      MESSAGE(name << ": " << result.heads_that_chose << " heads chose, " << result.preemptions
                   << " preemptions, relative error of logits: half of the steps within " << middle
                   << ", nine of ten within " << result.errors[result.errors.size() * 9 / 10] << ", worst "
                   << result.worst);
    }
  }
  CHECK(preemptions > 0);
}

TEST_CASE("cuda compress: unsupported combinations with packed KV entries are refused by name") {
  const LlmSpec llm = models()[0];
  const auto refused = [&](Method method, uint32_t page_tokens = 16) {
    CoreConfig config = cuda_config(method, llm);
    config.page_tokens = config.unit_tokens = page_tokens;
    return cuda::check_compressed(config, score_of(config), llm).value_or("computed");
  };
  const auto message = [](const std::string& text, const char* part) {
    return text.find(part) != std::string::npos;
  };
  CHECK(message(refused(packed_as("int4", {"h2o", "uniform", "compact"})), "gathers"));
  CHECK(message(refused(packed_as("fp8", {"raas", "uniform", "ragged", 1})), "gathers"));
  Method method = quest_methods()[0];
  CHECK(refused(method) == "computed");
  CHECK(message(refused(method, 32), "pages of 32"));
  method.budget = "released";
  CHECK(message(refused(method), "counts are known"));
  method = quest_methods()[0], method.precision = "bf16";
  CHECK(message(refused(method), "quest of fp8, int4 or fp4 is"));
}
