// Compressed prefixes on the GPU: requests that continue from a prefix checkpoint, or from their own, compute
// what the CPU engine computes with the same retained KV entries.

#include "tests/unit/cpu_compression/sharing_methods.h"
#include "tests/unit/cuda_engine/compress_both.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

SharingMethod packed_as(const char* precision, SharingMethod of) {
  of.method.precision = precision;
  return of;
}

// Two of them packed too.
const std::vector<SharingMethod>& methods() {
  static const std::vector<SharingMethod> all = [] {
    std::vector<SharingMethod> out = sharing_methods();
    out.push_back(packed_as("int4", out[1]));
    out.push_back(packed_as("fp8", out[4]));
    return out;
  }();
  return all;
}

CoreConfig sharing_config(const SharingMethod& of, const LlmSpec& llm) {
  CoreConfig config = cuda_config(of.method, llm);
  config.prefix_cache = true;
  config.policies.identity = "shared";
  config.policies.scorer_spec.window_closed = of.window_closed;
  return config;
}

}  // namespace

TEST_CASE("X-5 cuda compress: requests continue from compressed prefixes as on the CPU engine") {
  for (const SharingMethod& of : methods()) {
    const std::string name = name_of(of.method);
    CAPTURE(name);
    const LlmSpec llm = models()[0];
    ExpectedOutcome what{.llm = llm, .config = sharing_config(of, llm), .seed = 5, .compare = true};
    const PairedEngines result = run_both(what);
    CHECK(result.worst < method_tolerance(of.method.precision, llm));
    CHECK(result.begun > 0);
    CHECK(result.continued > 3);
    MESSAGE(name << ": " << result.begun << " began with a prefix, " << result.continued
                 << " continued, worst relative error of logits " << result.worst);
  }
}

TEST_CASE("X-5 cuda compress: the same with little memory, preemptions and cancelled requests") {
  uint64_t preemptions = 0;
  for (const SharingMethod& of : methods()) {
    const std::string name = name_of(of.method);
    CAPTURE(name);
    const LlmSpec llm = models()[1];
    ExpectedOutcome what{
        .llm = llm, .config = sharing_config(of, llm), .seed = 3, .compare = true, .cancels = 20};
    what.config.pages_gpu = 16 * tables_of(what.config);
    what.config.steps_in_flight_max = 2;
    const PairedEngines result = run_both(what);
    CHECK(result.worst < method_tolerance(of.method.precision, llm));
    preemptions += result.preemptions;
  }
  CHECK(preemptions > 0);
}
