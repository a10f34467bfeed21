// The operations that the CUDA engine starts are those of the step's list
// (docs/design/step-graph-and-prices.md#step-list); tests/unit/sim/step_list_test.cc compares the same lists
// with what the simulator prices.

#include <doctest/doctest.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "tests/support/source_dir.h"
#include "tests/support/step_lists.h"
#include "tests/unit/cuda_engine/retrieved_run.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

using Texts = std::set<std::string>;

std::string committed(const std::string& name) {
  std::ostringstream out;
  out << std::ifstream(source_dir() + "/tests/golden/operations/" + name + ".txt").rdbuf();
  return out.str();
}

// The lists that hand-made steps start.
std::vector<std::string> dense_steps(const LlmSpec& llm) {
  constexpr RequestId kA{1}, kB{2};
  const ModelWeights weights = ModelWeights::random(llm, 7);
  const std::unique_ptr<cuda::DeviceModel> device = on_device(weights);
  GivenTokens tokens;
  for (const RequestId request : {kA, kB}) tokens.give(request, random_tokens(3, 60, llm.vocab), 60);
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
Texts retrieving_steps(const std::string& method) {
  const OnDevice d(retrieval_model(64, 8, 2));
  Texts out;
  run_on_cuda(setting_of(method, method == "freekv" ? 0 : 2), *d.model, d.llm, {}, {}, 64,
              [&](const LaunchStep&, uint32_t, const StepList& issued) { out.insert(issued.text()); });
  return out;
}

// Of every step of `kind`: with any rows, choices and completed pages.
Texts possible_lists(RetrievalKind kind, bool speculation) {
  Texts out;
  for (uint32_t bits = 1; bits < 64; ++bits) {
    const auto bit = [&](uint32_t i) { return (bits >> i & 1) != 0; };
    NamedList list{"", retrieving_list(kind, speculation, {bit(0), bit(1), false}, bit(2), bit(3), bit(4)),
                   bit(5)};
    if (!list.enters || recalls(kind)) out.insert(list.text());
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
  CHECK(found[0] == committed("dense_chunk"));
  CHECK(found[1] == committed("dense_decode"));
  CHECK(found[2] == committed("dense_mixed"));
  llm.head_dim = 16;  // neither attention_decode nor attention_prefill takes them
  CHECK(dense_steps(llm).at(1) == committed("dense_rows"));
}

TEST_CASE("cuda: steps of retrieval start the operations of their lists") {
  for (const char* const method : {"quest", "arkvale", "freekv"}) {
    const Texts found = retrieving_steps(method);
    const Texts possible = possible_lists(method_named(method), std::string(method) == "freekv");
    MESSAGE(method << ": " << found.size() << " different lists");
    for (const std::string& one : found) CHECK_MESSAGE(possible.contains(one), method << " starts\n" << one);
    for (const NamedList& list : named_lists()) {
      if (list.name.starts_with(method)) CHECK_MESSAGE(found.contains(committed(list.name)), list.name);
    }
  }
}
