// Requests that are swapped out to the host and return, over whole runs on real data: they sample what they
// sample without ever being preempted, to the bit, although their KV entries were dropped, packed or chosen
// among.

#include "tests/unit/cpu_compression/swapped_methods.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

RunOf swapped_run(const Method& method, uint64_t seed) {
  LlmSpec llm = tiny_models()[seed % 2 == 0 ? 1 : 2];
  if (llm.kv_heads == 3) llm.kv_heads = llm.query_heads = 2;
  RunOf out{.llm = llm, .config = config_of(method, llm), .seed = seed};
  out.config.prefix_cache = false;
  out.config.requests_max = 8;
  // A chunk of a packed prompt reads its own rows exactly, so prompts must be cut alike in both runs: not at
  // all.
  if (out.config.policies.precision != "bf16") out.config.step_tokens_max = 1024;
  out.config.steps_in_flight_max = 1 + static_cast<uint32_t>(seed % 2);
  out.config.batch_order = seed % 3 == 0 ? BatchOrder::kPrefillFirst : BatchOrder::kDecodeFirst;
  out.client = {.sessions = 10, .requests_per_session = 2, .prompt_tokens_max = 60, .output_tokens_max = 40};
  return out;
}

// The same with pages for few requests, and a host tier.
RunOf short_of_pages(RunOf run, uint32_t pages) {
  CoreConfig& config = run.config;
  const bool groups = layout_traits(config.policies.layout).has_groups;
  config.pages_gpu = pages * (groups ? config.policies.layout_spec.groups() : 1) * 4 / config.page_tokens;
  config.pages_host = 4000;
  config.policies.placement = "host";
  config.preemption = PreemptionKind::kSwap;
  return run;
}

// Of the requests that returned, those that were never computed again sample as in the run with room.
struct Returned {
  size_t all = 0, compared = 0;
};

Returned compare(const RunOf& roomy, uint32_t pages) {
  const RunResult expected = run_of(roomy);
  CHECK(expected.preemptions == 0);
  const RunResult swapped = run_of(short_of_pages(roomy, pages));
  CHECK(swapped.worst < 2e-5);
  Returned out{.all = swapped.swapped_in.size()};
  for (const auto& [request, logits] : swapped.logits) {
    if (swapped.recomputed.contains(request)) continue;
    CHECK(logits == expected.logits.at(request));
    out.compared += swapped.swapped_in.contains(request) ? 1 : 0;
  }
  return out;
}

}  // namespace

TEST_CASE("X-9 compress: a request that was swapped out and in samples as if it had never been preempted") {
  for (const Method& method : swapped_methods()) {
    const std::string name = swapped_name(method);
    CAPTURE(name);
    Returned returned;
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      CAPTURE(seed);
      const Returned one = compare(swapped_run(method, seed), seed % 2 == 0 ? 17 : 24);
      returned.all += one.all, returned.compared += one.compared;
    }
    MESSAGE(name << ": " << returned.all << " requests returned, " << returned.compared
                 << " of them never computed again");
    CHECK(returned.compared > 0);
  }
}

TEST_CASE("X-5 X-9 compress: the same with prefix checkpoints, whose pages other requests keep") {
  const Method methods[] = {
      {"fastkvzip", "reserved", "ragged", 1, Clustering::kPerLayer},
      {"random", "reserved", "ragged", 2, Clustering::kAcrossLayers},
      {"fastkvzip", "released", "ragged", 2},
      {"knorm", "ratio", "compact"},
  };
  for (const Method& method : methods) {
    const std::string name = swapped_name(method);
    CAPTURE(name);
    Returned returned;
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      CAPTURE(seed);
      RunOf run = swapped_run(method, seed);
      run.config.prefix_cache = true;
      run.config.policies.identity = "shared";
      const Returned one = compare(run, seed % 2 == 0 ? 20 : 28);
      returned.all += one.all, returned.compared += one.compared;
    }
    MESSAGE(name << ": " << returned.all << " requests returned, " << returned.compared
                 << " of them never computed again");
    CHECK(returned.compared > 0);
  }
}
