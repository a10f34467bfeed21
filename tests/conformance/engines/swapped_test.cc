// Conformance of engines that drop KV entries, in whole runs on few pages: a request that was swapped out to
// the host and returned computes what it computes alone, without ever leaving the GPU. The CPU engine repeats
// its entries and compressions, one request at a time. Exact engines must retain the same KV entries; those
// of the others are forced on the definition, because near ties of scores have no order.

#include <doctest/doctest.h>

#include <algorithm>

#include "tests/conformance/engines/alone.h"
#include "tests/unit/cpu_compression/swapped_methods.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

// The method on pages for few requests, and a host tier.
CoreConfig short_of_pages(const Method& method, const LlmSpec& llm, uint64_t seed) {
  CoreConfig out = compressed_config(method, llm);
  const bool groups = layout_traits(out.policies.layout).has_groups;
  const uint32_t page = tested_kind().exact ? 4 : 16, pages = seed % 2 == 0 ? 17 : 24;
  out.prefix_cache = false;
  out.requests_max = 8;
  out.steps_in_flight_max = 1 + static_cast<uint32_t>(seed % 2);
  out.pages_gpu = pages * (groups ? out.policies.layout_spec.groups() : 1) * page / out.page_tokens;
  out.pages_host = 4000;
  out.policies.placement = "host";
  out.preemption = PreemptionKind::kSwap;
  return out;
}

void check_swapped(const Method& method, uint64_t seed, Compared* out) {
  CAPTURE(seed);
  const TestedKind kind = tested_kind();
  const LlmSpec& llm = kind.compressed_models[seed % kind.compressed_models.size()];
  const CoreConfig config = short_of_pages(method, llm, seed);
  compare_with_alone(config, llm,
                     {.seed = seed,
                      .sessions = 10,
                      .requests_per_session = 2,
                      .unit_tokens = config.unit_tokens,
                      .prompt_tokens_max = kind.exact ? 60u : 150u,
                      .output_tokens_max = 40},
                     out);
}

// Whether the engine computes the method, and a request alone defines what it retains and chooses.
bool is_tested(const Method& method) {
  const TestedKind kind = tested_kind();
  const CoreConfig config = short_of_pages(method, kind.compressed_models[0], 1);
  if (cannot_combine(config, kind.computes).has_value()) return false;
  if (kind.exact) return !score_of(config).scorer->scores_tokens();  // asks the memory of a session
  return method.retrieval == std::string_view("all");                // near ties of pages have no order
}

}  // namespace

TEST_CASE("X-9 swap: requests whose KV entries were dropped compute the same after a return from the host") {
  uint64_t methods = 0, returned = 0;
  for (const Method& method : swapped_methods()) {
    if (!is_tested(method)) continue;
    const std::string name = swapped_name(method);
    CAPTURE(name);
    Compared compared;
    for (uint64_t seed = 1; seed <= 2; ++seed) check_swapped(method, seed, &compared);
    MESSAGE(name << ": " << compared.requests << " requests, " << compared.compressions << " compressions, "
                 << compared.returned << " returned from the host; worst relative error " << compared.worst);
    ++methods, returned += compared.returned;
  }
  CHECK(methods > 15);
  CHECK(returned > 5 * methods);
}
