#include "scenarios/app/compose.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

#include "engine/base/check.h"
#include "engine/base/plural.h"
#include "engine/kv/managers/request_fit.h"
#include "engine/methods/registry.h"
#include "engine/methods/retention.h"
#include "engine/methods/traits.h"
#include "engine/scheduler/core.h"
#include "models/catalog/catalog.h"
#include "scenarios/app/compose_parts.h"
#include "scenarios/app/compose_values.h"
#include "scenarios/app/compression_work.h"
#include "scenarios/app/formats.h"
#include "scenarios/load/names.h"
#include "scenarios/load/retrieval_options.h"
#include "scenarios/load/scorer_options.h"

namespace kvtwin {
namespace {

TensorFormat format_named(const std::string& name) {
  if (name == "fp8") return {NumberFormat::kFp8};
  if (name == "int8") return {NumberFormat::kInt8};
  // Group sizes of common checkpoints: AWQ and GPTQ use 128 with fp16 scales, OCP MX 32 with 8-bit scales.
  if (name == "int4") return {NumberFormat::kInt4, 128, 16, 4};
  if (name == "mxfp4") return {NumberFormat::kMxfp4, 32, 8, 0};
  return {NumberFormat::kBf16};
}

// A scenario may use more GPUs than the catalog's node has: such a machine has memory for each of them. One
// that uses fewer leaves the others' memory to them that it uses.
void set_host_memory(const v1::Hardware& hardware, NodeSpec* node) {
  Figure& memory = node->host_memory_bytes;
  if (hardware.host_memory_bytes() > 0) {
    memory.value = static_cast<double>(hardware.host_memory_bytes());
  } else if (node->gpus > 0 && hardware.gpus() > node->gpus) {
    memory.value *= static_cast<double>(hardware.gpus()) / node->gpus;
  }
}

void load_models(const Scenario& scenario, Composed* out, Errors* errors) {
  const Catalog catalog;
  const auto named = [&](const std::string& name) {
    return is_catalog_path(name) ? scenario.file(name) : name;
  };
  if (Result<LlmSpec> llm = catalog.llm(named(scenario.values.model().name()))) {
    out->llm = std::move(*llm);
  } else {
    add_error(errors, scenario.where("model.name"), llm.error());
  }
  if (Result<NodeSpec> node = catalog.node(named(scenario.values.hardware().node()))) {
    out->node = std::move(*node);
    if (Result<DeviceSpec> device = catalog.device(out->node.device)) {
      out->device = std::move(*device);
    } else {
      add_error(errors, scenario.where("hardware.node"), device.error());
    }
  } else {
    add_error(errors, scenario.where("hardware.node"), node.error());
  }
  const v1::ModelChoice& model = scenario.values.model();
  if (!model.weights().empty()) out->llm.weights = out->llm.expert_weights = format_named(model.weights());
  if (model.context_window() > 0) {
    out->window_of_model = out->llm.context_window;
    out->llm.context_window = model.context_window();
  }
  apply_precision(scenario, &out->llm);
  out->gpus = scenario.values.hardware().gpus() > 0 ? scenario.values.hardware().gpus() : out->node.gpus;
  set_host_memory(scenario.values.hardware(), &out->node);
}

// Places the engines on nodes: all GPUs of an engine are in one node.
void place_engines(const Scenario& scenario, Composed* out, Errors* errors) {
  const v1::Engines& engines = scenario.values.engines();
  const uint32_t tp = engines.tensor_parallel();
  if (tp > out->gpus) {
    return errors->push_back(
        {scenario.where("engines.tensor_parallel"),
         fmt::format("an engine of {} GPUs does not fit into one node: {} has {}", tp, out->node.name,
                     out->gpus),
         fmt::format("--set=hardware.gpus={}, or another node (kvtwin list nodes)", tp)});
  }
  const uint32_t per_node = out->gpus / tp;
  const uint32_t needed = div_ceil(engines.count(), per_node);
  const uint32_t nodes = scenario.values.hardware().nodes();
  if (nodes > 0 && needed > nodes) {
    const uint64_t gpus = uint64_t{engines.count()} * tp;
    errors->push_back(
        {scenario.where("engines.count"),
         nodes == 1 ? fmt::format("{} engines of {} {} need {} GPUs, {} has {}", engines.count(), tp,
                                  plural(tp, "GPU"), gpus, out->node.name, out->gpus)
                    : fmt::format("{} engines of {} {} need {} nodes, there are {} of {} {}", engines.count(),
                                  tp, plural(tp, "GPU"), needed, nodes, out->gpus, plural(out->gpus, "GPU")),
         nodes == 1
             ? fmt::format(
                   "--set=hardware.gpus={}, --set=hardware.nodes={}, or another node (kvtwin list nodes)",
                   gpus, needed)
             : fmt::format("--set=hardware.nodes={}", needed)});
  }
  EngineKind& kind = out->kinds.emplace_back();
  kind.device = out->device;
  kind.node = out->node;
  kind.node_gpus = out->gpus;
  kind.nodes = nodes > 0 ? nodes : needed;
  kind.engines = engines.count();
  kind.gpus_each = tp;
}

// The smallest change that makes the model fit, in the order in which a user would try: more GPUs per engine,
// then smaller weights.
std::string what_would_fit(MemorySpec spec, uint32_t gpus) {
  const uint32_t tp_was = spec.tp;
  for (spec.tp *= 2; spec.tp <= gpus; spec.tp *= 2) {
    if (check_tp(spec.llm, spec.tp, "") && plan_memory(spec)) {
      return fmt::format("smallest change that fits: --set=engines.tensor_parallel={}", spec.tp);
    }
  }
  for (const char* weights : {"fp8", "int4"}) {
    for (spec.tp = tp_was; spec.tp <= gpus; spec.tp *= 2) {
      spec.llm.weights = spec.llm.expert_weights = format_named(weights);
      if (!check_tp(spec.llm, spec.tp, "") || !plan_memory(spec)) continue;
      return fmt::format("smallest change that fits: --set=model.weights={}{}", weights,
                         spec.tp == tp_was ? "" : fmt::format(" --set=engines.tensor_parallel={}", spec.tp));
    }
  }
  return "no number of its GPUs holds this model; choose another node (kvtwin list nodes)";
}

void plan(const Scenario& scenario, const PolicySet& policies, Composed* out, Errors* errors) {
  const v1::Scenario& values = scenario.values;
  MemorySpec spec;
  spec.llm = out->llm;
  spec.device = out->device;
  spec.tp = values.engines().tensor_parallel();
  spec.rule = kCapacityRules.value(values.memory().capacity());
  spec.utilization = values.memory().gpu_fraction();
  spec.page_tokens = values.memory().page_tokens();
  spec.step_tokens_max = values.limits().step_tokens_max();
  spec.requests_max = values.limits().requests_max();
  spec.capture_sizes = static_cast<uint32_t>(values.limits().capture_sizes_size());
  spec.staging_bytes =
      exact_entries_bytes(scenario, spec.llm, spec.tp) + staging_bytes(scenario, out->llm, policies);
  if (const Result<void> ok = check_tp(spec.llm, spec.tp, ""); !ok) {
    return add_error(errors, scenario.where("engines.tensor_parallel"), ok.error());
  }
  if (spec.rule == CapacityRule::kSglang && !scenario.places.contains("memory.gpu_fraction")) {
    spec.utilization = sglang_fraction(spec);
    if (values.memory().gpu_pages() == 0)
      out->notes.push_back(fmt::format("mem_fraction_static is SGLang's default, {}", spec.utilization));
  }
  out->memory_given = values.memory().gpu_pages() > 0;
  Result<MemoryPlan> planned = plan_memory(spec);
  if (planned) {
    out->memory = std::move(*planned);
    // A page holds one of `groups` head groups, so it is smaller by that factor.
    const int64_t groups = page_groups(policies);
    out->memory.page_bytes /= static_cast<uint64_t>(groups);
    out->memory.pages = static_cast<uint32_t>(std::min<int64_t>(
        out->memory.kv_bytes / static_cast<int64_t>(out->memory.page_bytes), UINT32_MAX - 1));
    if (precision_traits(policies.precision).by_tag) {
      const MixedPrecisionPoolSize size =
          mixed_precision_pool_pages(out->llm, spec.tp, spec.page_tokens,
                                     static_cast<uint64_t>(out->memory.kv_bytes), policies.precision_spec);
      out->memory.pages = size.pages_2 + size.pages_4;
    }
    if (out->memory_given) {
      const uint32_t given = values.memory().gpu_pages();
      out->notes.push_back(fmt::format("{} gpu pages are given; the memory model gives {} ({:+.1f} %)", given,
                                       out->memory.pages, 100.0 * out->memory.pages / given - 100.0));
    }
  } else if (!out->memory_given) {
    Error problem = planned.error();
    problem.hint = what_would_fit(spec, out->gpus);
    add_error(errors, scenario.where("model.name"), problem);
  }
}

// A chunk that is scored as a whole never fits a step that decodes too, if the step is no longer than the
// chunk.
void note_whole_chunks(const CoreConfig& config, std::vector<std::string>* notes) {
  const PolicyAxes axes = make_axes(config.policies);
  const uint32_t chunk = Retention(config, axes).whole_chunk_tokens();
  if (chunk == 0 || config.step_tokens_max > chunk) return;
  notes->push_back(fmt::format(
      "prompts are computed in whole chunks of {} tokens, for which a step of {} has no room beside "
      "a decode: requests run one after another (--set=limits.step_tokens_max={})",
      chunk, config.step_tokens_max, 2 * chunk));
}

void configure(const Scenario& scenario, const PolicySet& policies, Composed* out, Errors* errors) {
  const v1::Scenario& values = scenario.values;
  const v1::Limits& limits = values.limits();
  const uint64_t page_bytes = out->llm.kv_bytes_per_token(values.engines().tensor_parallel()) *
                              values.memory().page_tokens() * values.engines().tensor_parallel() /
                              page_groups(policies);
  const uint32_t pages = out->memory_given ? values.memory().gpu_pages() : out->memory.pages;
  const uint32_t reserved = values.memory().reserved_pages();
  CoreConfig config;
  config.page_tokens = config.unit_tokens = values.memory().page_tokens();
  config.pages_gpu = pages > reserved ? pages - reserved : 0;
  if (precision_traits(policies.precision).by_tag)
    config.pages_int2 = pages_int2(pages, policies.precision_spec);
  config.pages_host = pages_on_host(scenario, page_bytes, pages, *out, errors);
  config.pages_disk = pages_on_disk(scenario, page_bytes, *out, errors);
  config.requests_max = limits.requests_max();
  config.step_tokens_max = limits.step_tokens_max();
  config.chunk_tokens_max = limits.chunk_tokens_max();
  config.context_tokens_max = out->llm.context_window;
  config.steps_in_flight_max = limits.steps_in_flight_max();
  config.repeat_max = values.simulation().coalesce() ? config.repeat_max : 1;
  config.batch_order = kBatchOrders.value(limits.batch_order());
  config.admission = kAdmissions.value(limits.admission());
  config.watermark_pages = limits.watermark_pages();
  config.preemption = limits.preemption() == "swap" ? PreemptionKind::kSwap : PreemptionKind::kRecompute;
  config.page_order = kPageOrders.value(limits.page_order());
  config.prefix_cache = limits.prefix_cache();
  config.prefix_eviction = values.policies().prefix_eviction();
  configure_eviction(*out, values.engines().tensor_parallel(), &config);
  config.evict_batch_pages = limits.evict_batch_pages();
  if (config.pages_host > 0 && !placement_traits(values.policies().placement()).uses_resident) {
    config.offload_pages_target =
        limits.offload_pages_target() > 0 ? limits.offload_pages_target() : config.pages_gpu / 4;
  }
  if (limits.offload_batch_pages() > 0) {
    config.offload_batch_pages = limits.offload_batch_pages();
  } else if (config.pages_disk == 0) {  // a large spill would drop pages to make room for itself
    config.offload_batch_pages = std::max(config.offload_batch_pages, config.offload_pages_target);
  }
  if (config.pages_disk > 0) {
    config.spill_pages_target =
        limits.spill_pages_target() > 0 ? limits.spill_pages_target() : std::max(1u, config.pages_host / 8);
  }
  config.capture_sizes.assign(limits.capture_sizes().begin(), limits.capture_sizes().end());
  if (limits.preset() == "vllm_v1") {
    // vLLM captures no graph larger than two tokens per running request (its max_cudagraph_capture_size).
    std::erase_if(config.capture_sizes, [&](uint32_t size) { return size > 2 * limits.requests_max(); });
  }
  config.policies = policies;
  if (!errors->empty()) return;  // later findings would only follow from these
  if (const std::optional<std::string> problem = validate_core_config(config)) {
    errors->push_back({scenario.path, *problem, {}});
    return;
  }
  // resolve_routing decides "auto", which depends on the trace.
  if (values.engines().routing() != "auto")
    out->options.routing = kRoutings.value(values.engines().routing());
  note_whole_chunks(config, &out->notes);
  for (uint32_t i = 0; i < values.engines().count(); ++i) {
    config.engine = EngineId{static_cast<uint16_t>(i)};
    out->options.engines.push_back(config);
    out->facts.push_back({config.page_tokens, page_bytes, config.pages_gpu, config.steps_in_flight_max,
                          group_slack(config.policies), config.pages_int2, front_end_of(values.cost())});
  }
}

// Counts the requests that can never run, and the most tokens that any request needs.
struct Oversized {
  uint64_t requests = 0;
  uint64_t tokens = 0;
  PagesNeeded pages;
};

// `tagger` may be null.
Oversized find_oversized(const ReplayTable& table, const RequestFit& fit, PromptTagger* tagger) {
  Oversized out;
  const auto add = [&](const TableNode& node, uint32_t session, uint32_t index) {
    RequestReady request;
    request.prompt_tokens = node.prompt_tokens;
    request.output_tokens = node.output_tokens;
    request.roles = {table.roles.data() + node.role_first, node.role_count};
    request.turn = node.turn;
    PromptTags tags;
    if (tagger != nullptr) {
      tags = tagger->tags(session, index);
      request.roles = tags.roles, request.turn = tags.turn;
    }
    const PagesNeeded pages = fit.needed(request);
    out.requests += fit.misfit(request).has_value();
    out.tokens = std::max(out.tokens, uint64_t{node.prompt_tokens} + node.output_tokens);
    out.pages.gpu = std::max(out.pages.gpu, pages.gpu);
    out.pages.host = std::max(out.pages.host, pages.host);
  };
  for (uint32_t s = 0; s < table.sessions.size(); ++s) {
    for (uint32_t n = 0; n < table.sessions[s].node_count; ++n) {
      const TableNode& node = table.nodes[table.sessions[s].node_first + n];
      if (node.kind == NodeKind::kRequest) add(node, s, n);
    }
  }
  return out;
}

// The fewest GPU pages with which requests may hold `held` pages.
uint64_t gpu_pages_for(uint64_t held, const Scenario& scenario, const CoreConfig& config) {
  const uint64_t free = uint64_t{scenario.values.memory().reserved_pages()} + config.watermark_pages;
  if (config.pages_int2 == 0) return held + free;
  uint64_t pages = 0, int4 = 0;
  while (pages < UINT32_MAX && int4 < held + free) {
    pages += held + free - int4;  // each page adds at most one int4 page, so this does not overshoot
    int4 = pages - pages_int2(static_cast<uint32_t>(pages), config.policies.precision_spec);
  }
  return pages;
}

void check_fit(const Scenario& scenario, size_t engine, Composed* out, Errors* errors) {
  const CoreConfig& config = out->options.engines[engine];
  const PolicyAxes axes = make_axes(config.policies);
  const Retention retention(config, axes);
  const RequestFit fit(config, axes, retention);
  const Oversized found = find_oversized(out->client->table(), fit, out->tagger.get());
  if (found.requests == 0) return;
  out->oversized_requests = std::max(out->oversized_requests, static_cast<uint32_t>(found.requests));
  if (scenario.values.replay().oversized() == "reject") return;
  const bool window = config.context_tokens_max > 0 && found.tokens > config.context_tokens_max;
  std::string what = fmt::format("{} {} can never run: the longest has {} tokens", found.requests,
                                 plural(found.requests, "request"), found.tokens);
  std::string change;
  if (window) {
    what += fmt::format(", the model's window is {}", config.context_tokens_max);
    change = fmt::format("--set=model.context_window={}", found.tokens);
  }
  const bool pool = found.pages.gpu > fit.room().gpu;
  if (pool) {
    what += fmt::format("{} an engine's pool holds {}", window ? " and" : ",",
                        fit.room().gpu * config.page_tokens);
    change += fmt::format("{}--set=memory.gpu_pages={}", change.empty() ? "" : " ",
                          gpu_pages_for(found.pages.gpu, scenario, config));
  }
  if (found.pages.host > fit.room().host) {
    what += fmt::format("{} its host tier holds {}", window || pool ? " and" : ",",
                        fit.room().host * config.page_tokens);
    change += fmt::format("{}--set=memory.host_bytes={}", change.empty() ? "" : " ",
                          found.pages.host * out->facts[engine].page_bytes);
  }
  errors->push_back({scenario.where(window ? "model.context_window" : "memory.gpu_pages"), what,
                     fmt::format("smallest change that fits: {}; or reject and list these requests: "
                                 "--set=replay.oversized=reject",
                                 change)});
}

// Round robin spreads the requests of a session over the engines, where each finds its prefix on one of them
// only.
void resolve_routing(const Scenario& scenario, Composed* out) {
  if (scenario.values.engines().routing() != "auto" || out->options.engines.size() < 2) return;
  const ReplayTable& table = out->client->table();
  const bool sessions =
      std::any_of(table.sessions.begin(), table.sessions.end(), [&](const TableSession& session) {
        const auto first = table.nodes.begin() + session.node_first;
        return std::count_if(first, first + session.node_count,
                             [](const TableNode& node) { return node.kind == NodeKind::kRequest; }) > 1;
      });
  const bool prefix_aware = sessions && scenario.values.limits().prefix_cache();
  out->options.routing = prefix_aware ? RoutingKind::kPrefixAware : RoutingKind::kRoundRobin;
  out->notes.push_back(prefix_aware
                           ? "requests go to the engine that holds most of their prefix "
                             "(engines.routing is prefix_aware, as sessions have several requests)"
                           : "requests go to the engines in turn (engines.routing is round_robin, as no "
                             "session would find its prefix again)");
}

}  // namespace

tl::expected<Composed, Errors> compose_engines(const Scenario& scenario) {
  Composed out;
  Errors errors;
  load_models(scenario, &out, &errors);
  if (errors.empty()) place_engines(scenario, &out, &errors);
  PolicySet policies;
  if (errors.empty()) policies = policy_set(scenario, out.llm, &errors);
  if (errors.empty()) plan(scenario, policies, &out, &errors);
  if (errors.empty()) configure(scenario, policies, &out, &errors);
  if (errors.empty()) out.kinds.front().memory = out.memory;
  if (errors.empty()) compose_cluster(scenario, &out, &errors);
  if (!errors.empty()) return tl::unexpected(std::move(errors));
  return out;
}

tl::expected<Composed, Errors> compose(const Scenario& scenario, const std::function<void()>& on_session) {
  tl::expected<Composed, Errors> out = compose_engines(scenario);
  if (!out) return out;
  Errors errors;
  for (size_t i = 0; i < out->kinds.size(); ++i) {
    std::unique_ptr<CostModel> cost = make_cost(scenario, i, &*out, &errors);
    (i == 0 ? out->cost : out->kinds[i].cost) = std::move(cost);
  }
  load_trace(scenario, on_session, &*out, &errors);
  for (size_t i = 0, engine = 0; errors.empty() && i < out->kinds.size(); engine += out->kinds[i++].engines) {
    check_fit(scenario, engine, &*out, &errors);
  }
  if (out->tagger) out->tagger->reset_cost();  // only requests that are sent count
  if (!errors.empty()) return tl::unexpected(std::move(errors));
  resolve_routing(scenario, &*out);
  note_beyond_window(&*out);
  return out;
}

}  // namespace kvtwin
