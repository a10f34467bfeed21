// Choices that cannot work together are refused, and the message names the remedy
// (docs/design/methods/composition.md#pairs).

#include <doctest/doctest.h>

#include <functional>
#include <span>
#include <string>

#include "tests/support/test_policies.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

struct Case {
  const char* name;
  CompressionTrigger compression_trigger;
  std::function<void(CoreConfig*)> spoil;
  const char* way_out;  // "": the configuration is valid
};

CoreConfig right() {
  CoreConfig config;
  config.pages_gpu = 100;
  config.prefix_cache = false;
  config.policies.identity = "none";
  config.policies.layout = "ragged";
  config.policies.layout_spec = {.layers = 2, .kv_heads = 4, .heads_per_group = 2};
  config.policies.budget = "reserved";
  config.policies.budget_spec.mu.assign(8, kWhole / 4);
  config.policies.budget_spec.sigma.assign(8, kWhole / 16);
  return config;
}

void check(std::span<const Case> cases) {
  for (const Case& c : cases) {
    CAPTURE(std::string(c.name));
    CoreConfig config = right();
    c.spoil(&config);
    const auto problem =
        validate_axes(axes_with_scorer(config, c.compression_trigger), config.policies, config);
    CHECK(problem.has_value() == (c.way_out[0] != '\0'));
    if (problem.has_value()) CHECK_MESSAGE(problem->find(c.way_out) != std::string::npos, *problem);
  }
}

}  // namespace

TEST_CASE("validate: retention") {
  const Case cases[] = {
      {"right", CompressionTrigger::kChunkEnd, [](CoreConfig*) {}, ""},
      {"no scorer", CompressionTrigger::kAtNoTime, [](CoreConfig*) {}, "choose a scorer, or budget all"},
      {"reserved at prompt end", CompressionTrigger::kPromptEnd, [](CoreConfig*) {}, "or budget ratio"},
      {"chunk larger than a step", CompressionTrigger::kChunkEnd,
       [](CoreConfig* c) { c->policies.budget_spec.chunk_tokens = 4'096; }, "set chunk_tokens"},
      {"half a step under mixed batching", CompressionTrigger::kChunkEnd,
       [](CoreConfig* c) { c->batch_order = BatchOrder::kMixed; }, "set chunk_tokens"},
      {"paged drops nothing", CompressionTrigger::kChunkEnd,
       [](CoreConfig* c) { c->policies.layout = "paged"; }, "choose layout compact, ragged"},
      {"budget all with a layout", CompressionTrigger::kChunkEnd,
       [](CoreConfig* c) { c->policies.budget = "all"; }, "choose layout paged"},
      {"one table, different counts", CompressionTrigger::kChunkEnd,
       [](CoreConfig* c) { c->policies.layout = "compact"; }, "choose layout ragged"},
      {"slots of one token", CompressionTrigger::kPromptEnd,
       [](CoreConfig* c) {
         c->policies.layout = "slot_mask";
         c->policies.budget = "ratio";
       },
       "page_mask"},
      {"holes that others see", CompressionTrigger::kPromptEnd,
       [](CoreConfig* c) {
         c->policies.layout = "page_mask";
         c->policies.budget = "ratio";
         c->policies.identity = "shared";
       },
       "identity: session or none"},
      {"holes at chunk ends", CompressionTrigger::kChunkEnd,
       [](CoreConfig* c) {
         c->policies.layout = "page_mask";
         c->policies.budget = "ratio";
       },
       "choose layout compact or ragged"},
      {"ring of unknown size", CompressionTrigger::kChunkEnd,
       [](CoreConfig* c) { c->policies.layout = "ring"; }, "choose budget uniform or head_masks"},
      {"counts at decode steps", CompressionTrigger::kDecodeStep,
       [](CoreConfig* c) { c->policies.budget = "released"; }, "choose budget uniform"},
      {"even depth of what gives nothing back", CompressionTrigger::kChunkEnd,
       [](CoreConfig* c) { c->policies.budget_spec.uniform_depth = true; }, "choose budget released"},
      {"swapping", CompressionTrigger::kChunkEnd,
       [](CoreConfig* c) {
         c->policies.placement = "host";
         c->pages_host = 10;
         c->preemption = PreemptionKind::kSwap;
       },
       ""},
      {"suffix-dependent and shared", CompressionTrigger::kPromptEnd,
       [](CoreConfig* c) {
         c->policies.budget = "ratio";
         c->policies.identity = "shared";
       },
       "identity: session or none"},
  };
  check(cases);
}

TEST_CASE("validate: at the start of a turn") {
  const auto dropped_slots = [](CoreConfig* c) {
    c->policies.layout = "page_mask";
    c->policies.budget = "ratio";
    c->policies.identity = "session";
    c->prefix_cache = true;
  };
  const Case cases[] = {
      {"holes", CompressionTrigger::kTurnStart, dropped_slots, ""},
      {"KV entries that move", CompressionTrigger::kTurnStart,
       [](CoreConfig* c) {
         c->policies.budget = "ratio";
         c->policies.identity = "session";
       },
       "choose layout page_mask"},
      {"nothing to begin with", CompressionTrigger::kTurnStart,
       [&](CoreConfig* c) {
         dropped_slots(c);
         c->prefix_cache = false;
       },
       "prefix_cache is false"},
  };
  check(cases);
}

TEST_CASE("validate: compressed prefixes") {
  const Case cases[] = {
      {"compressed prefixes", CompressionTrigger::kChunkEnd, [](CoreConfig* c) { c->prefix_cache = true; },
       ""},
      {"prefixes of whole prompts", CompressionTrigger::kPromptEnd,
       [](CoreConfig* c) {
         c->policies.budget = "ratio";
         c->prefix_cache = true;
       },
       "a scorer that works at chunk ends"},
      {"prefixes that are rotated", CompressionTrigger::kChunkEnd,
       [](CoreConfig* c) {
         c->policies.budget = "ratio";
         c->policies.layout = "compact_rerotate";
         c->prefix_cache = true;
       },
       "layout: compact"},
      {"chunks of broken units", CompressionTrigger::kChunkEnd,
       [](CoreConfig* c) {
         c->prefix_cache = true;
         c->policies.budget_spec.chunk_tokens = c->unit_tokens + 1;
       },
       "chunk_tokens to a multiple"},
      {"prefixes in one queue with pages", CompressionTrigger::kChunkEnd,
       [](CoreConfig* c) {
         c->prefix_cache = true;
         c->page_order = PageOrder::kOldestFirst;
       },
       ""},
      {"prefixes whose counts the data decides, all reserved", CompressionTrigger::kChunkEnd,
       [](CoreConfig* c) {
         c->prefix_cache = true;
         c->policies.budget = "released";
         c->admission = AdmissionKind::kFullReservation;
       },
       ""},
      {"prefixes on a host tier", CompressionTrigger::kChunkEnd,
       [](CoreConfig* c) {
         c->policies.placement = "host";
         c->pages_host = 10;
         c->prefix_cache = true;
       },
       ""},
      {"prefixes with dropped slots on a host tier", CompressionTrigger::kPromptEnd,
       [](CoreConfig* c) {
         c->policies.layout = "page_mask";
         c->policies.budget = "ratio";
         c->policies.placement = "host";
         c->pages_host = 10;
         c->prefix_cache = true;
       },
       "layout: compact or ragged"},
      {"compressed prefixes on a disk", CompressionTrigger::kChunkEnd,
       [](CoreConfig* c) {
         c->policies.placement = "host";
         c->pages_host = c->pages_disk = 10;
         c->prefix_cache = true;
       },
       "or 0 pages"},
  };
  check(cases);
}
