// Compressed prefixes on real data: a request that starts from a prefix checkpoint computes the same bits as
// one that computes its whole prompt (docs/design/methods/composition.md#causality).

#include "engine/methods/budget_groups.h"
#include "tests/unit/cpu_compression/sharing_methods.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

RunOf run_with(const SharingMethod& sharing, const LlmSpec& llm, bool shared) {
  RunOf out{.llm = llm, .config = config_of(sharing.method, llm), .seed = 5};
  out.client = {.sessions = 5, .requests_per_session = 4, .prompt_tokens_max = 60, .output_tokens_max = 20};
  out.config.prefix_cache = shared;
  out.config.policies.identity = shared ? "shared" : "none";
  out.config.policies.scorer_spec.window_closed = sharing.window_closed;
  out.config.policies.budget_spec.chunk_tokens = sharing.chunk;
  return out;
}

}  // namespace

TEST_CASE(
    "X-5 prefix checkpoints: a request that continues one computes the same bits as one that computed its "
    "prefix") {
  for (const LlmSpec& llm : {tiny_models()[2], tiny_models()[1]}) {  // GQA, MHA
    for (const SharingMethod& sharing : sharing_methods()) {
      CAPTURE(sharing.method.scorer);
      CAPTURE(sharing.method.budget);
      const RunResult apart = run_of(run_with(sharing, llm, false));
      const RunResult shared = run_of(run_with(sharing, llm, true));
      CHECK(apart.reused == 0);
      CHECK(shared.reused > 100);
      CHECK(shared.dropped > 0);
      CHECK(shared.worst < 1e-5);
      REQUIRE(shared.logits.size() == apart.logits.size());
      uint64_t rows = 0;
      for (const auto& [request, hashes] : apart.logits) {
        CAPTURE(raw(request));
        const auto& others = shared.logits.at(request);
        REQUIRE(others.size() == hashes.size());
        for (const auto& [position, hash] : hashes) CHECK(others.at(position) == hash);
        rows += hashes.size();
      }
      CHECK(rows > 50);
    }
  }
}

TEST_CASE("X-5 prefix checkpoints: little memory and preemptions change no bit") {
  const LlmSpec llm = tiny_models()[2];
  uint64_t preempted = 0, reused = 0, rows = 0;
  for (const size_t i : {1, 4, 9, 12}) {
    const SharingMethod& sharing = sharing_methods()[i];
    CAPTURE(sharing.method.scorer);
    RunOf ample = run_with(sharing, llm, false), scarce = run_with(sharing, llm, true);
    ample.client.prompt_tokens_max = scarce.client.prompt_tokens_max = 40;
    ample.client.output_tokens_max = scarce.client.output_tokens_max = 40;
    const GroupMap groups = make_groups(scarce.config.policies);
    scarce.config.pages_gpu = 26 * groups.groups();
    scarce.config.steps_in_flight_max = 2;
    ample.config.pages_gpu = 20'000;
    const RunResult apart = run_of(ample), shared = run_of(scarce);
    preempted += shared.preemptions;
    reused += shared.reused;
    for (const auto& [request, hashes] : shared.logits) {
      // A preempted request recomputes with its emitted tokens as a part of the prompt, and these are
      // compressed.
      if (shared.preempted.contains(request)) continue;
      CAPTURE(raw(request));
      rows += hashes.size();
      const auto known = apart.logits.find(request);
      REQUIRE(known != apart.logits.end());
      for (const auto& [position, hash] : hashes) {
        CHECK(known->second.at(position) == hash);
      }
    }
  }
  MESSAGE(preempted << " preemptions, " << reused << " positions reused, " << rows << " rows compared");
  CHECK(reused > 0);
  CHECK(preempted > 0);
  CHECK(rows > 50);
}
