// Conformance of engines whose compressed prefixes are copied to a host tier, in whole runs on few pages: a
// request that begins with a prefix checkpoint which was loaded from the host computes what it computes
// alone, from its first token on (alone.h).

#include <doctest/doctest.h>

#include "tests/conformance/engines/alone.h"
#include "tests/unit/cpu_compression/swapped_methods.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

// The method on pages for few requests, and a host tier for their prefixes.
CoreConfig offloading(const Method& method, const LlmSpec& llm, uint64_t seed) {
  CoreConfig out = compressed_config(method, llm);
  const bool groups = layout_traits(out.policies.layout).has_groups;
  // Where pages have 16 tokens, a prefix has fewer of them.
  const bool small = tested_kind().exact;
  const uint32_t page = small ? 4 : 16, pages = (seed % 2 == 0 ? 30 : 40) / (small ? 1 : 2);
  out.prefix_cache = true;
  out.policies.identity = "shared";
  out.requests_max = 3;
  out.steps_in_flight_max = 1 + static_cast<uint32_t>(seed % 2);
  out.pages_gpu = pages * (groups ? out.policies.layout_spec.groups() : 1) * page / out.page_tokens;
  out.pages_host = 4000;
  out.offload_pages_target = out.pages_gpu / 2;
  out.policies.placement = "host";
  if (seed % 3 == 0) out.preemption = PreemptionKind::kSwap;
  return out;
}

bool is_offloaded(const Method& method) {
  const CoreConfig config = offloading(method, tested_kind().compressed_models[0], 1);
  return layout_traits(method.layout).slot_retention == SlotRetention::kMove &&
         !cannot_combine(config, tested_kind().computes).has_value() &&
         !validate_core_config(config).has_value();
}

uint64_t check_offloaded(const Method& method, uint64_t seed, Compared* out) {
  CAPTURE(seed);
  const TestedKind kind = tested_kind();
  const LlmSpec& llm = kind.compressed_models[seed % kind.compressed_models.size()];
  const CoreConfig config = offloading(method, llm, seed);
  return compare_with_alone(config, llm,
                            {.seed = seed,
                             .sessions = 6,
                             .requests_per_session = 4,
                             .unit_tokens = config.unit_tokens,
                             .prompt_tokens_max = kind.exact ? 60u : 120u,
                             .output_tokens_max = 10},
                            out)[TransferKind::kLoad];
}

}  // namespace

TEST_CASE("X-9 prefixes: requests that begin with a compressed prefix from the host compute the same") {
  uint64_t methods = 0;
  for (const Method& method : swapped_methods()) {
    if (!is_offloaded(method)) continue;
    const std::string name = swapped_name(method);
    CAPTURE(name);
    Compared compared;
    uint64_t loads = 0;
    for (uint64_t seed = 1; seed <= 3; ++seed) loads += check_offloaded(method, seed, &compared);
    MESSAGE(name << ": " << compared.requests << " requests, " << compared.compressions << " compressions, "
                 << compared.reused << " with a prefix, " << loads << " loads; worst relative error "
                 << compared.worst);
    CHECK(compared.reused > 5);
    CHECK(loads > 2);
    ++methods;
  }
  CHECK(methods >= 3);
}
