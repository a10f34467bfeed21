#include "tests/property/swarm/swarm_families.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <numeric>

#include "engine/base/check.h"
#include "engine/methods/budget_groups.h"
#include "engine/methods/registry.h"
#include "tests/property/swarm/swarm.h"
#include "tests/support/test_policies.h"

namespace kvtwin::testing {
namespace {

void draw_resident(CoreConfig* config, Prng* prng) {
  PolicySet& set = config->policies;
  set.placement = "resident";
  set.retrieval = one_of({"freekv", "arkvale", "shadowkv", "infinigen"}, prng);
  config->pages_host = number(prng, 1, prng->chance(1, 2) ? 12 : 120);
  RetrievalSpec& spec = set.retrieval_spec;
  spec.speculation = set.retrieval == "freekv";
  spec.layers_dense = number(prng, 1, 2);
  spec.sink_tokens = config->page_tokens * number(prng, 0, 2);
  spec.window_tokens = config->page_tokens * number(prng, 1, 2);
  spec.budget_tokens = spec.sink_tokens + spec.window_tokens + config->page_tokens * number(prng, 1, 3);
  spec.extra_tokens = config->page_tokens * number(prng, 0, 1);
  spec.resident_fraction_q32 = prng->chance(1, 3) ? 0 : number(prng, 0, UINT32_MAX);
}

void draw_memory(CoreConfig* config, Prng* prng) {
  config->page_tokens = one_of({1u, 2u, 4u, 6u, 8u, 16u}, prng);
  do {
    config->unit_tokens = number(prng, 1, config->page_tokens);
  } while (config->page_tokens % config->unit_tokens != 0);
  config->pages_gpu = prng->chance(1, 12) ? 1 : number(prng, 2, prng->chance(1, 3) ? 8 : 64);
  config->page_order = prng->chance(1, 2) ? PageOrder::kLowestFirst : PageOrder::kOldestFirst;
  config->prefix_cache = prng->chance(5, 6);
  if (config->page_order == PageOrder::kLowestFirst && prng->chance(1, 3)) config->prefix_eviction = "lfu";
  config->evict_batch_pages = number(prng, 1, 8);
  config->policies.identity = one_of({"shared", "shared", "shared", "session", "none"}, prng);
  if (config->prefix_cache && prng->chance(1, 2)) {
    config->policies.placement = "host";
    config->pages_host = number(prng, 1, prng->chance(1, 2) ? 6 : 80);
    config->offload_pages_target = number(prng, 0, config->pages_gpu);
    config->offload_batch_pages = number(prng, 1, 8);
  }
  if (!config->prefix_cache && prng->chance(2, 3)) draw_resident(config, prng);
}

void draw_scheduling(CoreConfig* config, Prng* prng) {
  config->requests_max = number(prng, 1, prng->chance(1, 2) ? 3 : 16);
  config->step_tokens_max = number(prng, 1, prng->chance(1, 3) ? 4 : 200);
  config->requests_max = std::min(config->requests_max, config->step_tokens_max);
  if (prng->chance(1, 3)) config->chunk_tokens_max = number(prng, 1, config->step_tokens_max);
  if (prng->chance(1, 6)) config->context_tokens_max = number(prng, 1, 200);
  config->steps_in_flight_max = number(prng, 1, 2);
  config->batch_order =
      one_of({BatchOrder::kDecodeFirst, BatchOrder::kPrefillFirst, BatchOrder::kMixed}, prng);
  config->admission =
      one_of({AdmissionKind::kWatermark, AdmissionKind::kFullPrompt, AdmissionKind::kFullReservation}, prng);
  if (prng->chance(1, 3)) config->watermark_pages = number(prng, 0, config->pages_gpu / 2);
  for (uint32_t size = 1; prng->chance(1, 2) && size < 64; size *= 2) config->capture_sizes.push_back(size);
}

void draw_budget(CoreConfig* config, CompressionTrigger compression_trigger, Prng* prng) {
  PolicySet& set = config->policies;
  BudgetSpec& spec = set.budget_spec;
  spec = {};
  spec.sinks = number(prng, 0, 3);
  spec.window = number(prng, set.layout == "ring" ? 1 : 0, 4);
  spec.interval = number(prng, 1, 4);
  spec.ratio = prng->chance(1, 8) ? kWhole : prng->range(0, kWhole);
  spec.kv_entries = spec.sinks + spec.window + number(prng, 1, 24);
  spec.sinks_free = prng->chance(1, 4);
  const bool groups = set.layout == "ragged";
  const bool chunks = compression_trigger == CompressionTrigger::kChunkEnd,
             decodes = compression_trigger == CompressionTrigger::kDecodeStep;
  set.budget = one_of({"ratio", "uniform"}, prng);
  if (groups && prng->chance(1, 2)) set.budget = chunks ? "reserved" : "pyramid";
  if (groups && prng->chance(1, 5)) set.budget = "head_masks";
  if (groups && !decodes && prng->chance(1, 3)) {
    set.budget = one_of({"ada", "top_per_layer", "top_across_layers", "released"}, prng);
    spec.uniform_depth = prng->chance(1, 3);
  }
  if (set.layout == "ring") set.budget = one_of({"uniform", "head_masks"}, prng);
  for (uint32_t head = 0; head < set.layout_spec.heads(); ++head) {
    spec.mu.push_back(prng->range(0, kWhole));
    spec.sigma.push_back(prng->range(0, kWhole / 4));
    spec.keeps_all.push_back(prng->chance(1, 2));
  }
  if (prng->chance(1, 3)) spec.inflation = prng->range(0, kWhole);
  spec.relative = prng->chance(1, 3);
  spec.decode_reserve = number(prng, 0, 20);
}

// Draws a policy set that drops KV entries. Returns its scorer's compression trigger.
CompressionTrigger draw_retention(CoreConfig* config, Prng* prng) {
  PolicySet& set = config->policies;
  LayoutSpec& layout = set.layout_spec;
  layout.layers = number(prng, 1, 3);
  layout.kv_heads = one_of({1u, 2u, 4u}, prng);
  layout.heads_per_group = one_of({0u, 1u, layout.kv_heads, layout.heads()}, prng);
  layout.clustering = one_of({Clustering::kAdjacent, Clustering::kPerLayer, Clustering::kAcrossLayers}, prng);
  if (layout.heads_per_group == layout.heads()) layout.clustering = Clustering::kAcrossLayers;
  set.layout = one_of({"ragged", "ragged", "ragged", "compact", "compact_rerotate", "slot_mask", "page_mask",
                       "page_mask", "ring"},
                      prng);
  const bool dropped_slots = set.layout == "slot_mask" || set.layout == "page_mask";
  CompressionTrigger compression_trigger = one_of(
      {CompressionTrigger::kChunkEnd, CompressionTrigger::kPromptEnd, CompressionTrigger::kDecodeStep}, prng);
  if (set.layout == "slot_mask") config->page_tokens = config->unit_tokens = 1;
  config->prefix_cache = dropped_slots && prng->chance(5, 6);
  if (dropped_slots && compression_trigger == CompressionTrigger::kChunkEnd) {
    compression_trigger =
        config->prefix_cache ? CompressionTrigger::kTurnStart : CompressionTrigger::kPromptEnd;
  }
  set.identity = one_of({"session", "session_memory", "none"}, prng);
  set.placement = "gpu";
  set.retrieval = "all";
  config->pages_host = config->offload_pages_target = 0;
  if (set.layout == "slot_mask" || prng->chance(2, 3)) {
    config->pages_gpu *= number(prng, 1, set.layout == "slot_mask" ? 16 : layout.heads());
  }
  draw_budget(config, compression_trigger, prng);
  return compression_trigger;
}

// Chunks that are compressed must fit into a step.
void draw_chunk(CoreConfig* config, Prng* prng) {
  uint32_t room = config->step_tokens_max;
  if (config->batch_order == BatchOrder::kMixed && room == 1) config->batch_order = BatchOrder::kDecodeFirst;
  if (config->batch_order == BatchOrder::kMixed) room /= 2;
  if (config->chunk_tokens_max > 0) room = std::min(room, config->chunk_tokens_max);
  config->policies.budget_spec.chunk_tokens = number(prng, 1, room);
}

// Formats by tag. Pages have 32 tokens, because keys of an int2 page share scales.
void draw_formats(CoreConfig* config, Prng* prng) {
  config->page_tokens = 32;
  config->unit_tokens = one_of({1u, 2u, 8u, 32u, 32u}, prng);
  config->page_order = PageOrder::kLowestFirst;
  PolicySet& set = config->policies;
  set.precision = "triaxial";
  set.placement = "gpu";
  set.retrieval = "all";
  config->pages_host = config->offload_pages_target = 0;
  PrecisionSpec& spec = set.precision_spec;
  spec.four_bit_tags =
      prng->chance(1, 6) ? (prng->chance(1, 2) ? 0 : kAllTags) : draw({prng->range(0, 1 << 20)});
  if (prng->chance(1, 3)) spec.four_bit_tags |= draw({prng->range(0, 1 << 20)});
  spec.four_bit_tags &= kAllTags;
  if (set.identity == "shared" && !bits_are_prefix_closed(spec))
    spec.ageing = Ageing::kForecast;
  else if (config->prefix_cache && prng->chance(1, 2))
    spec.ageing = Ageing::kRequantise;
  config->pages_gpu = number(prng, 2, prng->chance(1, 2) ? 12 : 60);
  config->pages_int2 = number(prng, 0, config->pages_gpu - 1);
  config->watermark_pages = std::min(config->watermark_pages, config->pages_gpu - config->pages_int2 - 1);
}

// Engines that differ; some prefill, the others decode.
void draw_cluster(const CoreConfig& common, Prng* prng, RunOptions* out) {
  out->routing = one_of({RoutingKind::kRoundRobin, RoutingKind::kLeastLoaded, RoutingKind::kSessionAffine,
                         RoutingKind::kPrefixAware, RoutingKind::kPrefixAware, RoutingKind::kHintAware},
                        prng);
  const uint32_t engines = number(prng, 2, 5);
  if (prng->chance(4, 5)) out->prefill_engines = number(prng, 1, engines - 1);
  for (uint16_t i = 0; i < engines; ++i) {
    CoreConfig config = common;
    config.capture_sizes.clear();
    config.chunk_tokens_max = config.watermark_pages = 0;
    draw_scheduling(&config, prng);
    config.steps_in_flight_max = common.steps_in_flight_max;
    config.context_tokens_max = common.context_tokens_max;
    config.pages_gpu = number(prng, 2, prng->chance(1, 3) ? 8 : 64);
    config.watermark_pages = std::min(config.watermark_pages, config.pages_gpu / 2);
    config.offload_pages_target = std::min(config.offload_pages_target, config.pages_gpu);
    config.engine = EngineId{i};
    config.prefill_only = i < out->prefill_engines;
    KVT_CHECK(!validate_core_config(config).has_value());
    out->engines.push_back(config);
  }
}

// Compressed prefixes: whole chunks, of any number of units.
CompressionTrigger draw_prefix_checkpoints(CoreConfig* config, Prng* prng) {
  PolicySet& set = config->policies;
  do {
    draw_retention(config, prng);
  } while (set.layout != "ragged" && set.layout != "compact");
  draw_budget(config, CompressionTrigger::kChunkEnd, prng);
  config->prefix_cache = true;
  config->page_order = PageOrder::kLowestFirst;
  set.identity = one_of({"shared", "shared", "session"}, prng);
  config->step_tokens_max = std::max(config->step_tokens_max, 8u);
  config->chunk_tokens_max = 0;
  draw_chunk(config, prng);
  uint32_t& chunk = set.budget_spec.chunk_tokens;
  const bool known = make_axes(set).budget->known_at_admission();
  if (!known) {
    set.budget_spec.sinks = std::min(set.budget_spec.sinks, 1u);
    set.budget_spec.window = std::min(set.budget_spec.window, 1u);
    chunk = std::max(chunk, 3u);
  }
  if (!known && config->admission == AdmissionKind::kFullReservation) {
    config->admission = AdmissionKind::kFullPrompt;
  }
  if (prng->chance(2, 3)) chunk = std::min(chunk, number(prng, 3, 24));
  if (known || set.budget_spec.uniform_depth) set.budget_spec.uniform_depth = !known;
  // A chunk is a whole number of units, and a page too.
  config->unit_tokens = std::gcd(config->page_tokens, chunk);
  if (config->pages_gpu > 1)
    config->watermark_pages = std::min(config->watermark_pages, config->pages_gpu / 4);
  return CompressionTrigger::kChunkEnd;
}

// Pages for few requests, and a host tier of any size.
void draw_swap(CoreConfig* config, Prng* prng) {
  PolicySet& set = config->policies;
  set.retrieval = "all";
  set.placement = "host";
  config->preemption = PreemptionKind::kSwap;
  config->pages_host = number(prng, 1, prng->chance(1, 2) ? 8 : 120);
  if (!config->prefix_cache) config->offload_pages_target = 0;
  if (config->admission == AdmissionKind::kFullReservation) config->admission = AdmissionKind::kWatermark;
  config->pages_gpu = number(prng, 2, prng->chance(1, 2) ? 10 : 40);
  config->watermark_pages = prng->chance(1, 2) ? 0 : config->pages_gpu / 8;
}

// Page tables of a request.
uint32_t tables_of(const CoreConfig& config) {
  const LayoutTraits layout = layout_traits(config.policies.layout);
  const bool by_group =
      layout.slot_retention == SlotRetention::kMove || layout.slot_retention == SlotRetention::kRing;
  return by_group ? make_groups(config.policies).groups() : 1;
}

// The same with policies that drop KV entries.
CompressionTrigger draw_retention_swap(CoreConfig* config, Prng* prng) {
  if (prng->chance(1, 4)) {
    const CompressionTrigger compression_trigger = draw_prefix_checkpoints(config, prng);
    draw_swap(config, prng);
    config->offload_pages_target = 0;
    return compression_trigger;
  }
  CompressionTrigger compression_trigger = draw_retention(config, prng);
  config->prefix_cache = false;
  if (compression_trigger == CompressionTrigger::kTurnStart)
    compression_trigger = CompressionTrigger::kPromptEnd;  // without a prefix there is nothing at the start
  draw_swap(config, prng);
  draw_chunk(config, prng);
  return compression_trigger;
}

// Many requests, and GPU pages for one to two of the largest.
void draw_shortage(Setting* setting, Prng* prng) {
  ScriptClientOptions& client = setting->client;
  client.sessions = number(prng, 3, 12);
  client.prompt_tokens_max = number(prng, 1, 60);
  client.output_tokens_max = number(prng, 1, 60);
  for (CoreConfig& config : setting->run.engines) {
    const uint32_t tables = tables_of(config);
    const uint32_t fit = div_ceil(client.prompt_tokens_max + client.output_tokens_max, config.page_tokens);
    config.pages_gpu = tables * number(prng, fit, 2 * fit);
    config.pages_host = tables * number(prng, 1, prng->chance(1, 3) ? fit : 8 * fit);
    config.watermark_pages = prng->chance(2, 3) ? 0 : std::min(tables, config.pages_gpu - 1);
  }
}

// Resident pages, with prefixes on the host, or of the retained part of a compressed prompt. Returns whether
// prompts are compressed.
bool draw_residents(CoreConfig* config, Prng* prng) {
  config->prefix_cache = true;
  config->offload_pages_target = 0;
  draw_resident(config, prng);
  if (prng->chance(1, 2)) config->pages_host += config->pages_gpu;
  if (prng->chance(2, 3)) return false;
  PolicySet& set = config->policies;
  config->prefix_cache = false;
  set.layout = "compact";
  set.identity = one_of({"session", "none"}, prng);
  set.layout_spec.kv_heads = number(prng, 1, 3);
  draw_budget(config, CompressionTrigger::kPromptEnd, prng);
  set.retrieval = one_of({"freekv", "arkvale"}, prng);
  set.retrieval_spec.speculation = set.retrieval == "freekv";
  return true;
}

// A host tier that is usually small, and a disk of any size.
void draw_disk(CoreConfig* config, Prng* prng) {
  PolicySet& set = config->policies;
  set.retrieval = "all";
  set.placement = "host";
  if (set.identity == "none") set.identity = "shared";
  config->prefix_cache = true;
  config->pages_gpu = number(prng, 2, prng->chance(1, 2) ? 12 : 40);
  config->pages_host = number(prng, 1, prng->chance(2, 3) ? 8 : 80);
  config->pages_disk = prng->chance(1, 8) ? 1 : number(prng, 2, prng->chance(1, 2) ? 12 : 200);
  config->offload_pages_target = number(prng, 1, config->pages_gpu);
  config->offload_batch_pages = number(prng, 1, 8);
  config->spill_pages_target = number(prng, prng->chance(1, 8) ? 0 : 1, config->pages_host);
  config->watermark_pages = std::min(config->watermark_pages, config->pages_gpu / 4);
  if (prng->chance(1, 3) && config->admission != AdmissionKind::kFullReservation) {
    config->preemption = PreemptionKind::kSwap;
  }
}

void draw_client(const CoreConfig& config, bool disk, Prng* prng, ScriptClientOptions* client) {
  const uint32_t room = config.pages_gpu * config.page_tokens;
  client->sessions = number(prng, 1, 8);
  client->requests_per_session = number(prng, 1, 6);
  client->unit_tokens = config.unit_tokens;
  client->prompt_tokens_max = std::min(number(prng, 1, room / (prng->chance(1, 3) ? 1 : 4) + 1), 300u);
  if (disk) {  // many prefixes that return, few prompts that never fit
    client->prompt_tokens_max = std::min(number(prng, 1, room / 2 + 1), 300u);
    client->requests_per_session = number(prng, 2, 10);
  }
  client->output_tokens_max = prng->chance(1, 8) ? 250 : number(prng, 1, 40);
  client->gap_ns_max = one_of({int64_t{0}, int64_t{10}, int64_t{1'000}, int64_t{50'000}}, prng);
  client->cancels_per_100 = prng->chance(1, 2) ? 0 : number(prng, 1, 60);
  client->spawns_per_100 = prng->chance(1, 2) ? 0 : number(prng, 1, 100);
}

void draw_backend(Prng* prng, ScriptBackendOptions* backend) {
  backend->step_ns_max = one_of({int64_t{0}, int64_t{1}, int64_t{10}, int64_t{1'000}}, prng);
  backend->step_zero_per_100 = prng->chance(1, 2) ? 0 : number(prng, 1, 60);
  backend->transfer_ns_max = one_of({int64_t{0}, int64_t{10}, int64_t{1'000}, int64_t{30'000}}, prng);
  backend->transfer_fails_per_100 = prng->chance(1, 2) ? 0 : number(prng, 1, 100);
  backend->eos_per_1000 = prng->chance(2, 3) ? 0 : number(prng, 1, 100);
}

}  // namespace

Setting draw_family(uint64_t seed) {
  Prng prng(draw({seed, 0x5a4}));
  Setting setting;
  CoreConfig config;
  draw_memory(&config, &prng);
  draw_scheduling(&config, &prng);
  const bool disk = seed >= kDiskSeeds;
  const bool resident_caches = seed >= kResidentSeeds && !disk;
  const bool swap_out = seed >= kSwapSeeds && seed < kRetentionSwapSeeds;
  const bool retention_swap = seed >= kRetentionSwapSeeds && seed < kResidentSeeds;
  const bool cluster = seed >= kClusterSeeds && seed < kSwapSeeds;
  if (cluster && config.policies.placement == "resident") {
    config.policies = PolicySet{};
    config.pages_host = 0;
  }
  const bool formats = seed >= kFormatSeeds && seed < kPrefixCheckpointSeeds;
  if (formats) {
    draw_formats(&config, &prng);
    const auto problem = validate_core_config(config);
    if (problem.has_value()) fmt::print(stderr, "{}\n", *problem);
    KVT_CHECK(!problem.has_value());
  } else if (retention_swap || (seed >= kRetentionSeeds && seed < kClusterSeeds)) {
    const bool prefix_checkpoints = seed >= kPrefixCheckpointSeeds && !retention_swap;
    const CompressionTrigger compression_trigger = retention_swap ? draw_retention_swap(&config, &prng)
                                                   : prefix_checkpoints
                                                       ? draw_prefix_checkpoints(&config, &prng)
                                                       : draw_retention(&config, &prng);
    if (!prefix_checkpoints && !retention_swap) draw_chunk(&config, &prng);
    setting.run.make_axes = [compression_trigger](const CoreConfig& c) {
      return axes_with_scorer(c, compression_trigger);
    };
    const auto problem = validate_axes(setting.run.make_axes(config), config.policies, config);
    if (problem.has_value()) fmt::print(stderr, "{}\n", *problem);
    KVT_CHECK(!problem.has_value());
  } else {
    if (swap_out) draw_swap(&config, &prng);
    if (disk) draw_disk(&config, &prng);
    if (resident_caches && draw_residents(&config, &prng)) {
      setting.run.make_axes = [](const CoreConfig& c) {
        return axes_with_scorer(c, CompressionTrigger::kPromptEnd);
      };
    }
    // No decision depends on the bytes of a page.
    if (retrieval_traits(config.policies.retrieval).kind == RetrievalKind::kRecallsPages &&
        budget_traits(config.policies.budget).keeps_all && config.pages_host % 2 == 0)
      config.policies.precision = "int4";
    const auto problem = setting.run.make_axes
                             ? validate_axes(setting.run.make_axes(config), config.policies, config)
                             : validate_core_config(config);
    if (problem.has_value()) fmt::print(stderr, "{}\n", *problem);
    KVT_CHECK(!problem.has_value());
  }
  setting.run.routing =
      one_of({RoutingKind::kRoundRobin, RoutingKind::kLeastLoaded, RoutingKind::kSessionAffine}, &prng);
  setting.run.check_invariants = true;
  const uint32_t engines = prng.chance(2, 3) ? 1 : number(&prng, 2, 3);
  if (cluster) draw_cluster(config, &prng, &setting.run);
  for (uint16_t i = 0; i < engines && !cluster; ++i) {
    config.engine = EngineId{i};
    setting.run.engines.push_back(config);
  }
  setting.client.seed = setting.backend.seed = seed;
  setting.client.late_rejects = setting.run.prefill_engines > 0;
  setting.client.roles = formats;
  draw_client(config, disk, &prng, &setting.client);
  if (retention_swap) draw_shortage(&setting, &prng);
  draw_backend(&prng, &setting.backend);
  setting.client.early_ends = setting.backend.eos_per_1000 > 0;
  return setting;
}

}  // namespace kvtwin::testing
