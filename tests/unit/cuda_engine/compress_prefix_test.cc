// Compressed prefixes on the GPU: requests that continue from a prefix checkpoint, or from their own, compute
// what the CPU engine computes with the same retained KV entries.

#include "tests/unit/cuda_engine/compress_both.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

// Prefix-closed at chunk ends, with known and reported counts, for all layouts that move KV entries.
struct Sharing {
  Method method;
  bool window_closed = false;
};

Method packed_as(const char* precision, Method method) {
  method.precision = precision;
  return method;
}

const std::vector<Sharing>& sharing() {
  static const std::vector<Sharing> all = {
      {{"streaming_llm", "ratio", "compact"}},
      {{"knorm", "ratio", "compact"}},
      {{"keydiff", "uniform", "ragged", 1}},
      {{"random", "reserved", "ragged", 2}},
      {{"fastkvzip", "reserved", "ragged", 1, Clustering::kAcrossLayers}},
      {{"trimkv", "pyramid", "ragged", 2}},
      {{"duo_attention", "head_masks", "ragged", 1}},
      {{"expected_attention", "ratio", "ragged", 1, Clustering::kAdjacent, CompressionTrigger::kChunkEnd}},
      {{"snapkv", "reserved", "ragged", 1, Clustering::kPerLayer, CompressionTrigger::kChunkEnd}, true},
      {{"knorm", "top_per_layer", "ragged", 1}},
      {{"fastkvzip", "released", "ragged", 2}},
      {packed_as("int4", {"knorm", "ratio", "compact"})},
      {packed_as("fp8", {"fastkvzip", "reserved", "ragged", 1, Clustering::kPerLayer})},
  };
  return all;
}

CoreConfig sharing_config(const Sharing& of, const LlmSpec& llm) {
  CoreConfig config = cuda_config(of.method, llm);
  config.prefix_cache = true;
  config.policies.identity = "shared";
  config.policies.scorer_spec.window_closed = of.window_closed;
  return config;
}

// As in compress_packed_test.cc: a number near the midpoint of two codes may get the other one.
double tolerance_of(const Method& method, const LlmSpec& llm) {
  if (std::string(method.precision) == "bf16") return bf16_tolerance(llm);
  return std::string(method.precision) == "fp8" ? 0.016 : 0.045;
}

}  // namespace

TEST_CASE("X-5 cuda compress: requests continue from compressed prefixes as on the CPU engine") {
  for (const Sharing& of : sharing()) {
    const std::string name = name_of(of.method);
    CAPTURE(name);
    const LlmSpec llm = models()[0];
    ExpectedOutcome what{.llm = llm, .config = sharing_config(of, llm), .seed = 5, .compare = true};
    const PairedEngines result = run_both(what);
    CHECK(result.worst < tolerance_of(of.method, llm));
    CHECK(result.begun > 0);
    CHECK(result.continued > 3);
    MESSAGE(name << ": " << result.begun << " began with a prefix, " << result.continued
                 << " continued, worst relative error of logits " << result.worst);
  }
}

TEST_CASE("X-5 cuda compress: the same with little memory, preemptions and cancelled requests") {
  uint64_t preemptions = 0;
  for (const Sharing& of : sharing()) {
    const std::string name = name_of(of.method);
    CAPTURE(name);
    const LlmSpec llm = models()[1];
    ExpectedOutcome what{
        .llm = llm, .config = sharing_config(of, llm), .seed = 3, .compare = true, .cancels = 20};
    const uint32_t groups =
        layout_traits(what.config.policies.layout).has_groups ? what.config.policies.layout_spec.groups() : 1;
    what.config.pages_gpu = 16 * groups;
    what.config.steps_in_flight_max = 2;
    const PairedEngines result = run_both(what);
    CHECK(result.worst < tolerance_of(of.method, llm));
    preemptions += result.preemptions;
  }
  CHECK(preemptions > 0);
}
