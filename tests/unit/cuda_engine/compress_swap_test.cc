// What the GPU's pages of dropped KV entries take to the host and back, beside tests/conformance/engines:
// marks and values, page summaries, and pages that other requests share.

#include "engine/cuda/compression/kv_entry_memory.h"
#include "tests/unit/cuda_engine/compress_both.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

CoreConfig swapping_config(const Method& method, const LlmSpec& llm, uint32_t pages) {
  CoreConfig config = cuda_config(method, llm);
  config.requests_max = 8;
  config.pages_gpu = pages * tables_of(config);
  config.pages_host = 4000;
  config.policies.placement = "host";
  config.preemption = PreemptionKind::kSwap;
  return config;
}

std::vector<uint32_t> numbers_at(const void* device, uint64_t bytes) {
  std::vector<uint32_t> out(bytes / sizeof(uint32_t));
  REQUIRE(cudaMemcpy(out.data(), device, bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
  return out;
}

}  // namespace

TEST_CASE("cuda compress: a page returns from the host with its values and marks, on another page") {
  const LlmSpec llm = models()[0];
  const CoreConfig config = cuda_config({"h2o", "uniform", "compact"}, llm);
  const cpu::RequestTableShape shape = cpu::table_shape(config);
  const cuda::KvMemory sizes{.page_tokens = 16, .pages_gpu = 6, .pages_host = 3, .rows_max = 32};
  auto memory = cuda::KvEntryMemory::make(sizes, llm, &shape, 4);
  REQUIRE(memory);
  const uint64_t marks = memory->columns() * 16 * sizeof(float);
  const uint64_t values = uint64_t{2} * memory->columns() * 16 * llm.head_dim * 2;
  const auto at = [&](uint32_t page, bool of_marks) {
    return of_marks ? reinterpret_cast<char*>(memory->scorer_state()) + page * marks
                    : reinterpret_cast<char*>(memory->pool()) + page * values;
  };
  for (const uint32_t page : {2u, 5u}) {
    for (const bool of_marks : {false, true}) {
      const uint64_t bytes = of_marks ? marks : values;
      const std::vector<uint32_t> drawn = random_tokens(page, bytes / 4, UINT32_MAX);
      REQUIRE(cudaMemcpy(at(page, of_marks), drawn.data(), bytes, cudaMemcpyHostToDevice) == cudaSuccess);
    }
  }
  // Both go to the host, and return where the other one was.
  const PageId host[] = {PageId{6}, PageId{8}};
  memory->copy(PageId{2}, host[0], nullptr), memory->copy(PageId{5}, host[1], nullptr);
  memory->copy(host[0], PageId{5}, nullptr), memory->copy(host[1], PageId{2}, nullptr);
  REQUIRE(cudaDeviceSynchronize() == cudaSuccess);
  for (const uint32_t page : {2u, 5u}) {
    CHECK(numbers_at(at(7 - page, true), marks) == random_tokens(page, marks / 4, UINT32_MAX));
    CHECK(numbers_at(at(7 - page, false), values) == random_tokens(page, values / 4, UINT32_MAX));
  }
}

TEST_CASE(
    "X-5 X-9 cuda compress: requests with prefix checkpoints that return compute what they would have") {
  const Method methods[] = {
      {"fastkvzip", "reserved", "ragged", 1, Clustering::kPerLayer},
      {"random", "reserved", "ragged", 2, Clustering::kAcrossLayers},
      {"fastkvzip", "released", "ragged", 2},
      {"knorm", "ratio", "compact"},
      {"knorm", "ratio", "compact", 0, Clustering::kAdjacent, {}, "int4"},
  };
  uint64_t swap_ins = 0;
  for (const Method& method : methods) {
    const std::string name = name_of(method);
    CAPTURE(name);
    const LlmSpec llm = models()[0];
    ExpectedOutcome what{.llm = llm, .config = swapping_config(method, llm, 20), .seed = 1, .compare = true};
    what.config.prefix_cache = true;
    what.config.policies.identity = "shared";
    what.sessions = 10;
    const PairedEngines result = run_both(what);
    const double tolerance = method_tolerance(method.precision, llm);
    CHECK_MESSAGE(result.worst < tolerance, steps_off(result, tolerance));
    CHECK(result.begun + result.continued > 0);
    swap_ins += result.swap_ins;
    MESSAGE(name << ": " << result.swap_ins << " returns from the host, worst relative error of logits "
                 << result.worst);
  }
  CHECK(swap_ins > 5);
}

TEST_CASE("X-9 cuda compress: Quest chooses among pages that returned as the CPU engine does") {
  const Method method{"fastkvzip", "reserved", "ragged", 2, Clustering::kAcrossLayers, {}, "int4", "quest"};
  const LlmSpec llm = models()[0];
  uint64_t swap_ins = 0;
  for (uint64_t seed = 1; seed <= 2; ++seed) {
    ExpectedOutcome what{
        .llm = llm, .config = swapping_config(method, llm, 20), .seed = seed, .compare = true};
    what.sessions = 10;
    PairedEngines result = run_both(what);
    CHECK(result.heads_that_chose > 0);
    // Where two pages are nearly equal, another one may be read.
    std::sort(result.errors.begin(), result.errors.end());
    const double middle = result.errors[result.errors.size() / 2];
    CHECK(middle < method_tolerance(method.precision, llm) * 2 / 3);
    MESSAGE(result.swap_ins << " returns from the host; relative error of logits: half of the steps within "
                            << middle << ", worst " << result.worst);
    swap_ins += result.swap_ins;
  }
  CHECK(swap_ins > 0);
}
