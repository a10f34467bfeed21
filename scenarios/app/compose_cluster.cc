// Several kinds of engines in one run, and separate engines for prefill and decode.

#include <fmt/format.h>

#include <tuple>
#include <utility>

#include "engine/methods/traits.h"
#include "scenarios/app/compose.h"
#include "scenarios/app/compose_parts.h"

namespace kvtwin {
namespace {

// A copy of the scenario in which all engines are of this kind.
Scenario only(const Scenario& scenario, const v1::EngineKind& kind) {
  Scenario out = scenario;
  v1::Scenario& values = out.values;
  values.mutable_engines()->set_count(kind.count());
  values.mutable_engines()->set_tensor_parallel(kind.tensor_parallel());
  values.mutable_engines()->set_prefill(0);
  values.mutable_engines()->clear_further();
  values.mutable_hardware()->set_node(kind.node());
  values.mutable_hardware()->set_gpus(0);
  values.mutable_hardware()->set_nodes(0);
  values.mutable_memory()->set_gpu_pages(kind.gpu_pages());
  for (const char* field : {"hardware.node", "engines.count", "engines.tensor_parallel"}) {
    out.places[field] = scenario.where("engines.further");
  }
  return out;
}

void join(Composed&& more, Composed* out) {
  for (CoreConfig& config : more.options.engines) {
    config.engine = EngineId{static_cast<uint16_t>(out->options.engines.size())};
    out->options.engines.push_back(std::move(config));
  }
  out->facts.insert(out->facts.end(), more.facts.begin(), more.facts.end());
  out->kinds.push_back(std::move(more.kinds.front()));
  out->notes.insert(out->notes.end(), more.notes.begin(), more.notes.end());
}

// The setting that prevents engines from differing or handing requests over; "" if none does.
std::string not_plain(const Scenario& scenario, const PolicySet& set) {
  if (scenario.values.backend() != "sim") return fmt::format("backend \"{}\"", scenario.values.backend());
  const PolicySet plain_set;
  for (const auto& [axis, value, plain] : {std::tuple("scorer", &set.scorer, &plain_set.scorer),
                                           std::tuple("budget", &set.budget, &plain_set.budget),
                                           std::tuple("layout", &set.layout, &plain_set.layout),
                                           std::tuple("retrieval", &set.retrieval, &plain_set.retrieval),
                                           std::tuple("partition", &set.partition, &plain_set.partition)}) {
    if (*value != *plain) return fmt::format("{} \"{}\"", axis, *value);
  }
  // Formats that keep the newest KV entries exact outside the pages, or choose the page format by token.
  if (precision_traits(set.precision).exact != ExactTokens::kNone)
    return fmt::format("precision \"{}\"", set.precision);
  return "";
}

void check_prefill(const Scenario& scenario, Composed* out, Errors* errors) {
  const uint32_t prefill = scenario.values.engines().prefill();
  if (prefill == 0) return;
  out->options.prefill_engines = prefill;
  for (uint32_t i = 0; i < prefill; ++i) out->options.engines[i].prefill_only = true;
  for (size_t i = 1; i < out->facts.size(); ++i) {
    if (out->facts[i].page_bytes == out->facts.front().page_bytes) continue;
    errors->push_back({scenario.where("engines.prefill"),
                       fmt::format("a page has {} bytes on engine 0 and {} on engine {}: KV heads are copied "
                                   "to more GPUs than there are heads",
                                   out->facts.front().page_bytes, out->facts[i].page_bytes, i),
                       "pages are handed over whole: take fewer GPUs for an engine"});
    return;
  }
}

}  // namespace

void compose_cluster(const Scenario& scenario, Composed* out, Errors* errors) {
  const v1::Engines& engines = scenario.values.engines();
  const std::string off = not_plain(scenario, out->options.engines.front().policies);
  if (!off.empty() && (engines.prefill() > 0 || engines.further_size() > 0)) {
    const bool parted = engines.prefill() > 0;
    errors->push_back(
        {scenario.where(parted ? "engines.prefill" : "engines.further"),
         fmt::format("{} cannot be combined with {}", off,
                     parted ? "handing KV over to decode engines" : "engines of several kinds"),
         parted ? "--set=engines.prefill=0" : "engines of one kind, or that axis' first choice"});
    return;
  }
  for (const v1::EngineKind& kind : engines.further()) {
    tl::expected<Composed, Errors> more = compose_engines(only(scenario, kind));
    if (!more) {
      errors->insert(errors->end(), more.error().begin(), more.error().end());
      continue;
    }
    join(std::move(*more), out);
  }
  if (errors->empty()) check_prefill(scenario, out, errors);
}

}  // namespace kvtwin
