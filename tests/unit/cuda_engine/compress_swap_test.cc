// Requests that are swapped out to the host after KV entries were dropped, on the GPU: when they return, they
// compute what the CPU engine computes with the same retained KV entries.

#include "engine/methods/combinations.h"
#include "tests/unit/cpu_compression/swapped_methods.h"
#include "tests/unit/cuda_engine/compress_both.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

CoreConfig swapping_config(const Method& method, const LlmSpec& llm, uint32_t pages) {
  CoreConfig config = cuda_config(method, llm);
  config.prefix_cache = false;
  config.requests_max = 8;
  config.pages_gpu = pages * tables_of(config) * 16 / config.page_tokens;
  config.pages_host = 4000;
  config.policies.placement = "host";
  config.preemption = PreemptionKind::kSwap;
  return config;
}

// A number near the midpoint of two codes may get the other one (packed_test.cc), and then decodes may choose
// another page.
double tolerance_of(const Method& method, const LlmSpec& llm) {
  if (std::string(method.precision) == "bf16") return bf16_tolerance(llm);
  return std::string(method.precision) == "fp8" ? 0.016 : 0.045;
}

}  // namespace

TEST_CASE("X-9 cuda compress: requests that were swapped out and in compute what the CPU engine computes") {
  uint64_t all = 0;
  for (const Method& method : swapped_methods()) {
    const std::string name = swapped_name(method);
    CAPTURE(name);
    const LlmSpec llm = models()[0];
    uint64_t swap_ins = 0;
    double worst = 0;
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      CAPTURE(seed);
      ExpectedOutcome what{.llm = llm, .config = swapping_config(method, llm, seed % 2 == 0 ? 20 : 24)};
      if (cannot_combine(what.config, Computes::kCuda).has_value()) continue;
      what.seed = seed, what.compare = true, what.sessions = 10;
      what.config.steps_in_flight_max = 1 + static_cast<uint32_t>(seed % 2);
      PairedEngines result = run_both(what);
      const double tolerance = tolerance_of(method, llm);
      if (std::string(method.retrieval) == "all") {
        CHECK_MESSAGE(result.worst < tolerance, steps_off(result, tolerance));
      } else {
        std::sort(result.errors.begin(), result.errors.end());
        CHECK(result.errors[result.errors.size() / 2] < tolerance * 2 / 3);
      }
      swap_ins += result.swap_ins, worst = std::max(worst, result.worst);
    }
    MESSAGE(name << ": " << swap_ins << " returns from the host, worst relative error of logits " << worst);
    all += swap_ins;
  }
  CHECK(all > 50);
}
