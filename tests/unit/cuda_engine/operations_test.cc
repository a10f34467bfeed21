// The operations that the CUDA engine starts are those of the step's list
// (docs/design/step-graph-and-prices.md#step-list); tests/unit/sim/step_list_test.cc compares the same lists
// with what the simulator prices.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "tests/unit/cuda_engine/compress_both.h"
#include "tests/unit/cuda_engine/issued_lists.h"
#include "tests/unit/cuda_engine/retrieved_run.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

// The lists that hand-made steps start.
std::vector<std::string> dense_steps(const LlmSpec& llm) {
  constexpr RequestId kA{1}, kB{2};
  const ModelWeights weights = ModelWeights::random(llm, 7);
  const std::unique_ptr<cuda::DeviceModel> device = on_device(weights);
  GivenTokens tokens;
  tokens.give(kA, random_tokens(3, 60, llm.vocab), 41);
  tokens.give(kB, random_tokens(4, 60, llm.vocab), 20);
  std::vector<std::string> out;
  cuda::CudaEngineConfig config;
  config.page_tokens = 16, config.pages_gpu = 60;
  config.issued = [&](const LaunchStep&, uint32_t, const StepList& issued) { out.push_back(issued.text()); };
  CudaSteps steps(config, *device, &tokens, 1);
  steps.begin(kA), steps.begin(kB);
  steps.run({{kA, 40, false}});
  steps.run({{kA, 1}});
  steps.run({{kA, 1}, {kB, 20}});
  CHECK(steps.engine().graph_replays() == 0);
  return out;
}

// The different lists that a run of retrieval starts.
ListTexts retrieving_steps(const std::string& method) {
  const OnDevice d(retrieval_model(64, 8, 2));
  ListTexts out;
  run_on_cuda(setting_of(method, method == "freekv" ? 0 : 2), *d.model, d.llm, {}, {}, 64,
              [&](const LaunchStep&, uint32_t, const StepList& issued) { out.insert(issued.text()); });
  return out;
}

// Of every step of `kind`: with any rows, choices and completed pages.
ListTexts possible_lists(RetrievalKind kind, bool speculation) {
  ListTexts out;
  for (uint32_t bits = 1; bits < 64; ++bits) {
    const auto bit = [&](uint32_t i) { return (bits >> i & 1) != 0; };
    NamedList list{"", retrieving_list(kind, speculation, {bit(0), bit(1), false}, bit(2), bit(3), bit(4)),
                   bit(5)};
    if (!list.enters || recalls(kind)) out.insert(list.text());
  }
  return out;
}

// Of every step of a method that drops KV entries.
ListTexts possible_drops(bool state, bool moves, bool wraps, bool before) {
  ListTexts out;
  for (uint32_t bits = 1; bits < 2048; ++bits) {
    const auto bit = [&](uint32_t i) { return (bits >> i & 1) != 0; };
    const uint32_t compressions = (bit(8) ? 1u : 0u) + (bit(9) ? 2u : 0u);
    const StepListSpec spec = dropping_list({bit(0), bit(1), bit(2)}, bit(3),
                                            {.plans_layers = bit(4),
                                             .copies = bit(5),
                                             .state = state,
                                             .captures = bit(6),
                                             .in_layers = bit(7),
                                             .wraps = wraps && bit(10),
                                             .before = before ? compressions : 0,
                                             .behind = before ? 0 : compressions,
                                             .moves = moves});
    out.insert(list_step(spec).text());
  }
  return out;
}

}  // namespace

TEST_CASE("cuda: dense steps start the operations of their lists") {
  LlmSpec llm = tiny_model("llama", 8, 2);
  llm.layers = 3;
  llm.head_dim = 64;
  const std::vector<std::string> found = dense_steps(llm);
  REQUIRE(found.size() == 3);
  CHECK(found[0] == committed_list("dense_chunk"));
  CHECK(found[1] == committed_list("dense_decode"));
  CHECK(found[2] == committed_list("dense_mixed"));
  llm.head_dim = 16;  // neither attention_decode nor attention_prefill takes them
  CHECK(dense_steps(llm).at(1) == committed_list("dense_rows"));
}

TEST_CASE("cuda: steps of retrieval start the operations of their lists") {
  for (const char* const method : {"quest", "arkvale", "freekv"}) {
    check_lists(retrieving_steps(method),
                possible_lists(method_named(method), std::string(method) == "freekv"), method);
  }
}

TEST_CASE("cuda: steps that drop KV entries start the operations of their lists") {
  const LlmSpec llm = retrieval_model(64, 8, 2);
  const struct {
    const char* name;
    Method method;
    bool state, moves, wraps = false, before = false;
  } rows[] = {
      {"snapkv", {"snapkv", "uniform", "compact"}, false, true},
      {"intentkv", {"intent_rule", "uniform", "page_mask"}, false, false},
      {"tangram", {"fastkvzip", "reserved", "ragged", 1, Clustering::kPerLayer}, true, true},
      {"streaming_llm", {"streaming_llm", "uniform", "ring"}, false, true, true},
      {"turn_start",
       {"intent_rule", "uniform", "page_mask", 0, Clustering::kAdjacent, CompressionTrigger::kTurnStart},
       false,
       false,
       false,
       true}};
  for (const auto& row : rows) {
    ExpectedOutcome what{.llm = llm, .config = cuda_config(row.method, llm), .seed = 2};
    ListTexts found;
    what.issued = [&](const LaunchStep&, uint32_t, const StepList& issued) { found.insert(issued.text()); };
    run_both(what);
    check_lists(found, possible_drops(row.state, row.moves, row.wraps, row.before), row.name);
  }
}
