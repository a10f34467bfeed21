#include "tests/property/swarm/swarm_settings.h"

#include <memory>
#include <string>

#include "engine/base/check.h"
#include "engine/methods/registry.h"
#include "tests/property/swarm/swarm.h"
#include "tests/property/swarm/swarm_families.h"
#include "tests/support/test_policies.h"

namespace kvtwin::testing {
namespace {

// A setting of another family, whose clients give hints or none.
Setting draw_evictions(uint64_t seed) {
  Prng prng(draw({seed, 0xe71c}));
  Setting setting =
      draw_family(one_of({uint64_t{1}, kPrefixCheckpointSeeds, kClusterSeeds, kSwapSeeds}, &prng) + seed -
                  kEvictionSeeds);
  const std::string eviction = one_of({"session_aware", "tool_ttl", "cost_aware"}, &prng);
  const uint32_t doubling = one_of({0u, 1u, 20u, 1'000u}, &prng);
  for (CoreConfig& config : setting.run.engines) {
    config.page_order = PageOrder::kLowestFirst;
    config.prefix_eviction = eviction;
    config.eviction_doubling_tokens = doubling;
    config.eviction_refill = Duration{int64_t{doubling} * 1'000'000'000};
  }
  setting.client.hints_per_100 = prng.chance(1, 4) ? 0 : number(&prng, 1, 100);
  // Long enough for hints to expire.
  if (prng.chance(1, 2)) setting.client.gap_ns_max = 90'000'000'000;
  return setting;
}

ProbePasses draw_pass_list(uint32_t step_tokens_max, Prng* prng) {
  if (prng->chance(1, 3)) return ProbePasses::of_soft_tokens(number(prng, 1, 2 * step_tokens_max));
  ScorerSpec spec;
  spec.repeat_tokens = number(prng, 1, prng->chance(1, 2) ? 4 : 2 * step_tokens_max);
  spec.repeat_tail = number(prng, 0, 3);
  spec.repeat_instruction = number(prng, 0, step_tokens_max);
  return ProbePasses::of_repeats(spec, number(prng, 0, 4));
}

// A setting of a family that drops KV entries at the ends of prompts, after passes of probe tokens.
Setting draw_passes(uint64_t seed) {
  Prng prng(draw({seed, 0x9a55}));
  Setting setting =
      draw_family(one_of({kRetentionSeeds, kRetentionSwapSeeds, kResidentSeeds}, &prng) + seed - kPassSeeds);
  if (!setting.run.make_axes) return setting;
  const ProbePasses passes = draw_pass_list(setting.run.engines[0].step_tokens_max, &prng);
  setting.run.make_axes = [inner = setting.run.make_axes, passes](const CoreConfig& config) {
    PolicyAxes axes = inner(config);
    axes.scorer =
        std::make_unique<TestScorer>(axes.scorer->compression_trigger(), axes.scorer->causality(), passes);
    return axes;
  };
  return setting;
}

// A setting with compressed prefixes, whose pages are in one queue with free ones, or next to full
// reservations of requests whose counts the data decides.
Setting draw_checkpoint_room(uint64_t seed) {
  Prng prng(draw({seed, 0xc4ec}));
  const uint64_t family = prng.chance(1, 4) ? kRetentionSwapSeeds : kPrefixCheckpointSeeds;
  Setting setting = draw_family(family + seed - kCheckpointRoomSeeds);
  const bool oldest_first = prng.chance(2, 3), reserves = prng.chance(1, 2);
  for (CoreConfig& config : setting.run.engines) {
    if (oldest_first) config.page_order = PageOrder::kOldestFirst, config.prefix_eviction = "lru";
    if (reserves) config.admission = AdmissionKind::kFullReservation;
    KVT_CHECK(!validate_axes(setting.run.make_axes(config), config.policies, config).has_value());
  }
  return setting;
}

// A setting with two formats, and many requests that are swapped out.
Setting draw_format_swap(uint64_t seed) {
  Prng prng(draw({seed, 0xf05a}));
  Setting setting = draw_family(kFormatSeeds + seed - kFormatSwapSeeds);
  setting.client.sessions = number(&prng, 3, 12);
  setting.client.output_tokens_max = number(&prng, 1, 150);
  for (CoreConfig& config : setting.run.engines) {
    config.policies.placement = "host";
    config.preemption = PreemptionKind::kSwap;
    config.pages_host = number(&prng, 1, prng.chance(1, 2) ? 8 : 120);
    if (prng.chance(1, 2)) config.watermark_pages = 0;
    KVT_CHECK(!validate_core_config(config).has_value());
  }
  return setting;
}

// A setting with compressed prefixes and a host tier for them; in some, requests are swapped out too.
Setting draw_checkpoint_host(uint64_t seed) {
  Prng prng(draw({seed, 0xc057}));
  Setting setting = draw_family(kPrefixCheckpointSeeds + seed - kCheckpointHostSeeds);
  setting.client.requests_per_session = number(&prng, 2, 10);
  for (CoreConfig& config : setting.run.engines) {
    config.policies.placement = "host";
    config.pages_host = number(&prng, 1, prng.chance(1, 2) ? 12 : 300);
    config.offload_pages_target = number(&prng, 1, config.pages_gpu);
    config.offload_batch_pages = number(&prng, 1, 4);
    if (prng.chance(1, 3) && config.admission != AdmissionKind::kFullReservation)
      config.preemption = PreemptionKind::kSwap;
    KVT_CHECK(!validate_axes(setting.run.make_axes(config), config.policies, config).has_value());
  }
  return setting;
}

// A setting with two formats and a host tier for prefixes; in some, requests are swapped out too.
Setting draw_format_host(uint64_t seed) {
  Prng prng(draw({seed, 0xf057}));
  Setting setting = draw_family(kFormatSeeds + seed - kFormatHostSeeds);
  setting.client.requests_per_session = number(&prng, 2, 10);
  for (CoreConfig& config : setting.run.engines) {
    config.policies.placement = "host";
    config.pages_host = number(&prng, 1, prng.chance(1, 2) ? 12 : 200);
    config.offload_pages_target = number(&prng, 1, config.pages_gpu);
    config.offload_batch_pages = number(&prng, 1, 8);
    if (prng.chance(1, 3)) config.preemption = PreemptionKind::kSwap;
    KVT_CHECK(!validate_core_config(config).has_value());
  }
  return setting;
}

}  // namespace

Setting draw_setting(uint64_t seed) {
  if (seed >= kFormatHostSeeds) return draw_format_host(seed);
  if (seed >= kCheckpointHostSeeds) return draw_checkpoint_host(seed);
  if (seed >= kFormatSwapSeeds) return draw_format_swap(seed);
  if (seed >= kCheckpointRoomSeeds) return draw_checkpoint_room(seed);
  if (seed >= kPassSeeds) return draw_passes(seed);
  return seed < kEvictionSeeds ? draw_family(seed) : draw_evictions(seed);
}

}  // namespace kvtwin::testing
