#include "engine/methods/registry.h"

#include <doctest/doctest.h>

#include <functional>
#include <set>
#include <string>

#include "engine/methods/combinations.h"
#include "tests/support/retrieval_names.h"

using namespace kvtwin;
using kvtwin::testing::kQuest;

namespace {

// Returns the error of a valid configuration after `spoil` has changed it.
std::string complaint(const std::function<void(CoreConfig*)>& spoil) {
  CoreConfig config;
  config.pages_gpu = 100;
  spoil(&config);
  return validate_core_config(config).value_or("");
}

bool message(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("registry: the defaults are valid, and every listed policy can be chosen") {
  CHECK(complaint([](CoreConfig*) {}) == "");
  std::set<std::string> axes;
  for (const PolicyInfo& policy : all_policies()) {
    CAPTURE(policy.axis);
    CAPTURE(policy.name);
    CHECK(!policy.description.empty());
    axes.insert(std::string(policy.axis));
  }
  CHECK(axes.size() == 9);  // the eight of docs/design/scheduler-and-kv-managers.md#axes, and prefix_eviction
  for (const char* name : {"lru", "lfu", "session_aware", "cost_aware", "tool_ttl"}) {
    CHECK(complaint([&](CoreConfig* c) { c->prefix_eviction = name; }) == "");
    CoreConfig config;
    config.prefix_eviction = name;
    CHECK(make_prefix_eviction(config, 16) != nullptr);
  }
}

TEST_CASE("registry: the first policy of each axis is its default") {
  const PolicySet set;
  std::set<std::string> seen;
  for (const PolicyInfo& policy : all_policies()) {
    if (!seen.insert(std::string(policy.axis)).second) continue;
    const std::string name(policy.name);
    if (policy.axis == "scorer") CHECK(name == set.scorer);
    if (policy.axis == "budget") CHECK(name == set.budget);
    if (policy.axis == "layout") CHECK(name == set.layout);
    if (policy.axis == "precision") CHECK(name == set.precision);
    if (policy.axis == "placement") CHECK(name == set.placement);
    if (policy.axis == "retrieval") CHECK(name == set.retrieval);
    if (policy.axis == "partition") CHECK(name == set.partition);
    if (policy.axis == "identity") CHECK(name == set.identity);
    if (policy.axis == "prefix_eviction") CHECK(name == CoreConfig().prefix_eviction);
  }
}

TEST_CASE("registry: an unknown name is answered with the known ones") {
  const std::string text = complaint([](CoreConfig* c) { c->policies.identity = "shard"; });
  CHECK(message(text, "shard"));
  CHECK(message(text, "shared"));
  CHECK(message(text, "session"));
  CHECK(message(complaint([](CoreConfig* c) { c->prefix_eviction = "mru"; }), "lfu"));
}

TEST_CASE("registry: an invalid setting is refused with its value") {
  CHECK(message(complaint([](CoreConfig* c) { c->pages_gpu = 0; }), "page"));
  CHECK(message(complaint([](CoreConfig* c) { c->page_tokens = 0; }), "page_tokens is 0"));
  CHECK(message(complaint([](CoreConfig* c) { c->page_tokens = 5'000; }), "page_tokens is 5000"));
  CHECK(message(complaint([](CoreConfig* c) { c->unit_tokens = 5; }), "unit_tokens is 5"));
  CHECK(message(complaint([](CoreConfig* c) { c->unit_tokens = 0; }), "unit_tokens is 0"));
  CHECK(message(complaint([](CoreConfig* c) { c->watermark_pages = 100; }), "watermark_pages is 100"));
  CHECK(message(complaint([](CoreConfig* c) { c->requests_max = 0; }), "requests_max"));
  CHECK(message(complaint([](CoreConfig* c) { c->step_tokens_max = 0; }), "step_tokens_max"));
  CHECK(message(complaint([](CoreConfig* c) { c->steps_in_flight_max = 3; }), "steps_in_flight_max is 3"));
  CHECK(message(complaint([](CoreConfig* c) { c->steps_in_flight_max = 0; }), "steps_in_flight_max is 0"));
  CHECK(message(complaint([](CoreConfig* c) { c->repeat_max = 0; }), "repeat_max"));
  CHECK(message(complaint([](CoreConfig* c) { c->evict_batch_pages = 0; }), "evict_batch_pages"));
  CHECK(message(complaint([](CoreConfig* c) { c->offload_batch_pages = 0; }), "offload_batch_pages"));
  CHECK(message(complaint([](CoreConfig* c) { c->capture_sizes = {4, 2}; }), "capture_sizes"));
  CHECK(message(complaint([](CoreConfig* c) { c->pages_gpu = UINT32_MAX; }), "32-bit"));
}

TEST_CASE("registry: every precision and partition can be made, with its traits") {
  for (const PolicyInfo& policy : all_policies()) {
    PolicySet set;
    if (policy.axis == "precision") set.precision = policy.name;
    if (policy.axis == "partition") set.partition = policy.name;
    if (policy.axis != "precision" && policy.axis != "partition") continue;
    CAPTURE(policy.name);
    const PolicyAxes axes = make_axes(set);
    CHECK(axes.precision.by_tag == (set.precision == "triaxial"));
    CHECK(exact_tokens_max(axes.precision, set.precision_spec) == (set.precision == "kivi_int2"  ? 128
                                                                   : set.precision == "triaxial" ? 31
                                                                                                 : 0));
  }
}

TEST_CASE("registry: unusable formats are refused with a remedy") {
  const auto with = [](const char* precision, uint32_t page_tokens, uint32_t group) {
    return complaint([&](CoreConfig* c) {
      c->policies.precision = precision;
      c->page_tokens = c->unit_tokens = page_tokens;
      c->policies.precision_spec.group = group;
    });
  };
  CHECK(with("int4", 16, 32) == "");
  CHECK(with("triaxial", 32, 32) == "");
  CHECK(message(with("triaxial", 16, 32), "set page_tokens to a multiple of 32"));
  CHECK(message(with("kivi_int2", 64, 128), "multiple of 128"));
  CHECK(message(with("int4", 16, 48), "group is 48"));
  CHECK(message(complaint([](CoreConfig* c) {
                  c->policies.precision = "kivi_int2";
                  c->page_tokens = c->unit_tokens = 32;
                  c->policies.precision_spec.residual_tokens = 100;
                }),
                "residual_tokens is 100"));
}

TEST_CASE(
    "registry: mixed precision is refused where pages move, KV entries are dropped or pages are selected") {
  const auto with = [](const std::function<void(CoreConfig*)>& change) {
    return complaint([&](CoreConfig* c) {
      c->policies.precision = "triaxial";
      c->page_tokens = c->unit_tokens = 32;
      change(c);
    });
  };
  CHECK(with([](CoreConfig*) {}) == "");
  for (const char* retrieval : {"quest", "freekv", "infinigen"}) {
    const std::string problem = with([&](CoreConfig* c) {
      c->policies.retrieval = retrieval;
      c->policies.retrieval_spec = retrieval_defaults(kQuest);
    });
    CAPTURE(problem);
    // FreeKV and InfiniGen recall, so their resident pages are refused first.
    if (std::string(retrieval) == "quest") {
      CHECK(message(problem,
                    "which retrieval quest cannot choose among; set retrieval: all, or precision: int4"));
    } else {
      CHECK(problem != "");
    }
  }
  CHECK(message(with([](CoreConfig* c) { c->page_order = PageOrder::kOldestFirst; }), "LOWEST_FIRST"));
  const auto host = [&](PreemptionKind preemption, uint32_t pages_disk) {
    return with([=](CoreConfig* c) {
      c->pages_host = 10;
      c->policies.placement = "host";
      c->preemption = preemption;
      c->pages_disk = pages_disk;
    });
  };
  CHECK(host(PreemptionKind::kRecompute, 0) == "");
  CHECK(host(PreemptionKind::kSwap, 0) == "");
  CHECK(message(host(PreemptionKind::kRecompute, 10), "set 0 pages, or precision: int4"));
  // docs/design/methods/composition.md#pairs: dropping per head leaves heads with different counts of each
  // format; dropping for all heads frees no page, because a page holds tokens from far apart; packed entries
  // are not moved.
  const auto dropping = [&](const char* scorer, const char* layout, CompressionTrigger compression_trigger) {
    return with([&](CoreConfig* c) {
      PolicySet& set = c->policies;
      set.scorer = scorer, set.budget = "ratio", set.layout = layout, set.identity = "session";
      set.scorer_spec.compression_trigger = compression_trigger;
      c->prefix_cache = false;
      set.budget_spec.ratio = kWhole / 2, set.budget_spec.chunk_tokens = 64;
    });
  };
  const std::string way_out =
      "set budget: all and layout: paged, or precision: int4, which packs what is left";
  CHECK(
      message(dropping("knorm", "compact", CompressionTrigger::kChunkEnd), "other numbers of either format"));
  CHECK(message(dropping("knorm", "compact", CompressionTrigger::kChunkEnd), way_out.c_str()));
  CHECK(message(dropping("intent_rule", "page_mask", CompressionTrigger::kPromptEnd),
                "holds tokens from far apart"));
  CHECK(message(dropping("intent_rule", "page_mask", CompressionTrigger::kPromptEnd), way_out.c_str()));
  CHECK(message(dropping("snapkv", "compact", CompressionTrigger::kPromptEnd), "would quantise them twice"));
}

TEST_CASE("registry: contradictory combinations are refused with a remedy") {
  const auto host = [](uint32_t pages, const char* placement) {
    return complaint([&](CoreConfig* c) {
      c->pages_host = pages;
      c->policies.placement = placement;
    });
  };
  CHECK(host(10, "host") == "");
  CHECK(message(host(0, "host"), "placement gpu"));
  CHECK(message(host(10, "gpu"), "placement host"));
  const auto disk = [](uint32_t pages_host, const char* placement, bool prefix_cache) {
    return complaint([&](CoreConfig* c) {
      c->pages_host = pages_host;
      c->pages_disk = 7;
      c->policies.placement = placement;
      c->prefix_cache = prefix_cache;
    });
  };
  CHECK(disk(10, "host", true) == "");
  CHECK(message(disk(0, "gpu", true), "7 pages behind a host tier that placement gpu does not keep"));
  CHECK(message(disk(0, "gpu", true), "set placement: host, or 0 pages"));
  CHECK(message(disk(10, "host", false), "set prefix_cache: true, or 0 pages"));
  CHECK(message(complaint([](CoreConfig* c) {
                  c->pages_host = 10, c->policies.placement = "host", c->pages_disk = UINT32_MAX - 10;
                }),
                "do not fit 32-bit page numbers"));
  const auto swap_out = [](uint32_t pages, const char* placement, const char* precision) {
    return complaint([&](CoreConfig* c) {
      c->preemption = PreemptionKind::kSwap;
      c->pages_host = pages;
      c->policies.placement = placement;
      c->policies.precision = precision;
      if (std::string(precision) == "kivi_int2") c->page_tokens = c->unit_tokens = 128;
    });
  };
  CHECK(swap_out(10, "host", "int4") == "");
  CHECK(message(swap_out(0, "gpu", "bf16"), "set placement: host"));
  CHECK(message(swap_out(10, "host", "kivi_int2"), "preemption: recompute"));
  CHECK(message(complaint([](CoreConfig* c) {
                  c->page_order = PageOrder::kOldestFirst;
                  c->prefix_eviction = "lfu";
                }),
                "set prefix_eviction: lru"));
}

TEST_CASE("registry: swap and a host tier with layouts that drop KV entries; the remedies are accepted") {
  constexpr auto kSwap = PreemptionKind::kSwap, kRecompute = PreemptionKind::kRecompute;
  constexpr auto kSim = Computes::kSim, kCpu = Computes::kCpu, kCuda = Computes::kCuda;
  const struct {
    const char* placement;
    PreemptionKind preemption;
    bool prefix_cache;
    Computes where;
    const char* problem;
  } cases[] = {
      {"host", kSwap, false, kSim, ""},
      {"host", kSwap, false, kCpu, ""},
      {"host", kSwap, false, kCuda, ""},
      {"host", kRecompute, false, kCuda, ""},
      {"gpu", kRecompute, true, kSim, ""},
      {"gpu", kSwap, false, kSim, "set placement: host, or preemption: recompute"},
  };
  for (const char* layout : {"compact", "ragged", "page_mask"}) {
    for (const auto& c : cases) {
      CAPTURE(layout);
      CAPTURE(c.problem);
      CoreConfig config;
      PolicySet& set = config.policies;
      const bool chunks = std::string(layout) != "page_mask";  // what is left of a chunk can be cached
      set.scorer = chunks ? "knorm" : "snapkv", set.budget = "ratio", set.layout = layout;
      set.identity = "session", set.placement = c.placement;
      set.scorer_spec.compression_trigger =
          chunks ? CompressionTrigger::kChunkEnd : CompressionTrigger::kPromptEnd;
      config.prefix_cache = c.prefix_cache;
      config.preemption = c.preemption;
      const std::string problem = cannot_combine(config, c.where).value_or("");
      CHECK_MESSAGE(problem.empty() == (c.problem[0] == '\0'), problem);
      CHECK_MESSAGE(message(problem, c.problem), problem);
      config.prefix_cache = true, set.placement = "host";
      // Prefix checkpoints have copies on the host; prefixes in which slots were dropped do not.
      for (const PreemptionKind preemption : {kSwap, kRecompute}) {
        config.preemption = preemption;
        const std::string cached = cannot_combine(config, kCuda).value_or("");
        CHECK_MESSAGE(message(cached, chunks ? "" : "set prefix_cache: false, layout: compact or ragged"),
                      cached);
        CHECK(cached.empty() == chunks);
      }
    }
  }
}

TEST_CASE("registry: the name of a policy set in device files") {
  PolicySet set;
  CHECK(method_name(set) == "none/all/paged");
  set.precision = "triaxial";
  CHECK(method_name(set) == "triaxial");
  set = {};
  set.scorer = "snapkv", set.budget = "uniform", set.layout = "compact";
  CHECK(method_name(set) == "snapkv/uniform/compact");
  set.retrieval = "freekv";
  CHECK(method_name(set) == "freekv");
}
