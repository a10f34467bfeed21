// Composing a scenario for the simulator and for the CPU engine does what the capability table says of each
// pair of policies.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <map>
#include <string>

#include "engine/methods/combination_pairs.h"
#include "kernels/scoring/scorer.h"
#include "scenarios/app/compose.h"
#include "scenarios/app/compose_values.h"
#include "tests/support/source_dir.h"

namespace kvtwin {
namespace {

const char* word_of(CompressionTrigger trigger) {
  switch (trigger) {
    case CompressionTrigger::kChunkEnd:
      return "chunk_end";
    case CompressionTrigger::kPromptEnd:
      return "prompt_end";
    case CompressionTrigger::kTurnStart:
      return "turn_start";
    case CompressionTrigger::kDecodeStep:
      return "decode_step";
    case CompressionTrigger::kAtNoTime:
      break;
  }
  return "";
}

// These policies on a model of four layers with two KV heads, with numbers that contradict none of them.
std::string scenario_of(const PolicySet& set, bool prefix_cache, const char* backend) {
  std::string scorer;
  if (set.scorer != PolicySet().scorer) {
    scorer = fmt::format("compression_trigger: \"{}\"", word_of(*set.scorer_spec.compression_trigger));
    if (set.scorer_spec.window_closed) scorer += " window_closed: true";
    if (kernels::find_scorer(set.scorer)->external) scorer += " command: \"true\"";
    scorer = fmt::format("scorer_options {{ {} }}", scorer);
  }
  const bool masks = budget_traits(set.budget).table == HeadTable::kMasks;
  const bool calibrated = budget_traits(set.budget).table == HeadTable::kCalibrated;
  return fmt::format(
      "backend: \"{}\"\n"
      "model {{ name: \"../models/tiny/llama-4x256.textproto\" }} hardware {{ node: \"h200\" }}\n"
      "memory {{ page_tokens: {} gpu_pages: 64 host_bytes: {} }}\n"
      "limits {{ prefix_cache: {} step_tokens_max: 512 }}\n"
      "policies {{ scorer: \"{}\" {} budget: \"{}\" layout: \"{}\" precision: \"{}\" placement: \"{}\"\n"
      "  retrieval: \"{}\" partition: \"{}\" identity: \"{}\"\n"
      "  budget_options {{ sinks: 4 window: 32 chunk_tokens: 256 ratio: 0.5 kv_entries: 128 {} {} }}\n"
      "  precision_options {{ group: 32 }} {} }}\n"
      "trace {{ path: \"../traces/data/search_tiny.kvtrace\" format: \"kvtwin\" }}\n"
      "replay {{ sessions_max: 1 oversized: \"reject\" }}\n",
      backend, layout_traits(set.layout).needs_page_1 ? 1 : 32,
      placement_traits(set.placement).uses_host ? 20'000'000 : 0, prefix_cache, set.scorer, scorer,
      set.budget, set.layout, set.precision, set.placement, set.retrieval, set.partition, set.identity,
      masks ? "full_heads: [0, 3]" : "",
      calibrated ? "mean: [0.1, 0.2, 0.3, 0.4, 0.1, 0.2, 0.3, 0.4] deviation: [0, 0, 0, 0, 0, 0, 0, 0]" : "",
      retrieval_traits(set.retrieval).joins_heads() ? "retrieval_options { rank: 16 }" : "");
}

// The error of composing it; empty: it works.
std::string composed_error(const PolicySet& set, bool prefix_cache, const char* backend) {
  const auto scenario = parse_scenario(scenario_of(set, prefix_cache, backend),
                                       testing::source_dir() + "/scenarios/test.textproto", {});
  if (!scenario) return scenario.error().front().text();
  const auto composed = compose(*scenario);
  if (!composed) return composed.error().front().text();
  const auto made = make_engine_backend(*scenario, *composed, false);
  return made ? "" : made.error().text();
}

}  // namespace

TEST_CASE("combinations: composing for sim and cpu agrees with the capability table, pair by pair") {
  const CombinationPairs pairs;
  std::map<std::string, std::string> known;  // errors by scenario
  for (const Computes where : {Computes::kSim, Computes::kCpu}) {
    const char* const backend = where == Computes::kSim ? "sim" : "cpu";
    for (size_t a = 0; a < kPairAxes.size(); ++a) {
      for (size_t b = a + 1; b < kPairAxes.size(); ++b) {
        for (const std::string& of_a : pairs.names(kPairAxes[a])) {
          for (const std::string& of_b : pairs.names(kPairAxes[b])) {
            const PairVerdict found = pairs.verdict(kPairAxes[a], of_a, kPairAxes[b], of_b, where);
            CAPTURE(backend);
            CAPTURE(of_a);
            CAPTURE(of_b);
            const std::string text = scenario_of(found.set, found.prefix_cache, backend);
            if (!known.contains(text)) known[text] = composed_error(found.set, found.prefix_cache, backend);
            CoreConfig config;
            config.policies = found.set, config.prefix_cache = found.prefix_cache;
            PolicySet& own = config.policies;
            own.layout_spec = {.layers = 4, .kv_heads = 2, .heads_per_group = 2};
            own.budget_spec.mu.assign(8, kWhole / 4), own.budget_spec.sigma.assign(8, 0);
            own.budget_spec.keeps_all.assign(8, false), own.budget_spec.kv_entries = 128;
            const std::string expected = cannot_combine(config, where).value_or("");
            CHECK(expected.empty() == (found.verdict == Support::kWorks));
            CHECK_MESSAGE(known[text].empty() == expected.empty(), known[text]);
            CHECK_MESSAGE(known[text].find(expected) != std::string::npos, known[text]);
          }
        }
      }
    }
  }
  CHECK(known.size() > 300);
}

}  // namespace kvtwin
