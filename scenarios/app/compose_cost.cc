// The cost model's part of compose(): the profile if one is given, calibration results for the policies, and
// rooflines for the rest.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/methods/probe_passes.h"
#include "engine/methods/registry.h"
#include "engine/methods/retention.h"
#include "engine/methods/traits.h"
#include "kernels/scoring/score.h"
#include "models/catalog/catalog.h"
#include "models/cost/all_reduce.h"
#include "models/cost/pass_cost.h"
#include "models/cost/range_end_cost.h"
#include "models/cost_tables/cost_factory.h"
#include "models/cost_tables/derived_device.h"
#include "models/cost_tables/measured_device.h"
#include "models/cost_tables/operation_cost.h"
#include "models/cost_tables/other_operations.h"
#include "models/files/textproto.h"
#include "models/serving/server_cost.h"
#include "models/serving/server_profile.h"
#include "scenarios/app/compose.h"
#include "scenarios/app/compose_parts.h"
#include "scenarios/app/compose_values.h"
#include "scenarios/app/compression_work.h"
#include "scenarios/app/formats.h"
#include "scenarios/app/method_work.h"
#include "scenarios/load/retrieval_options.h"

namespace kvtwin {
namespace {

// Uses measured rates of page copies instead of the node's figures, which hold for large copies.
void take_measured_copies(const MeasuredDevice& device, uint64_t page_bytes, NodeSpec* node) {
  const std::optional<CopyRates> rates = copy_rates(device, page_bytes);
  if (!rates) return;
  const auto figure = [&](double value) {
    return rates->exact ? Figure{value, Basis::kMeasured, "kvtwin calibrate device"}
                        : Figure{value, Basis::kDerived, "kvtwin calibrate device, of pages of other sizes"};
  };
  node->pcie_bytes_per_s = figure(rates->in_bytes_per_s);
  node->pcie_out_bytes_per_s = figure(rates->out_bytes_per_s);
  node->copy_overhead_h2d_ns = figure(rates->in_overhead_ns);
  node->copy_overhead_d2h_ns = figure(rates->out_overhead_ns);
  if (rates->both_bytes_per_s > 0) node->pcie_both_bytes_per_s = figure(rates->both_bytes_per_s);
}

// What policy, client and driver take between the end of a step and the next one, as runs under the wall
// clock measured it.
HostPlanning measured_planning(const MeasuredDevice& device) {
  const auto ns = [&](const char* name) {
    const MeasuredFigure* const figure = device.figure(name);
    return figure == nullptr ? 0 : figure->value * 1e3;
  };
  return {ns("host between steps"), ns("host between steps, a request")};
}

// A profile's tables are of one device: engines of other kinds than the first have none.
bool one_device(const Scenario& scenario, size_t of, const Composed& composed, Errors* errors) {
  const std::string &device = composed.kinds[of].device.name, &first = composed.kinds.front().device.name;
  if (scenario.values.cost().profile().empty() || device == first) return true;
  errors->push_back(
      {scenario.where("cost.profile"),
       fmt::format("{} holds measurements of one kind of GPU, but engines run on {} and {}",
                   scenario.values.cost().profile(), first, device),
       "leave out the profile, so that the roofline prices all; or give all engines one device"});
  return false;
}

// True if the method adds work to steps besides attention over its format.
bool adds_to_steps(const CoreConfig& config) {
  return drops(config) || retrieval_traits(config.policies.retrieval).kind != RetrievalKind::kReadsAll;
}

// True if the profile has attention over KV in the scenario's format.
bool has_format(const Scenario& scenario, const CoreConfig& config, const MeasuredDevice& measured,
                Errors* errors) {
  const std::string& precision = config.policies.precision;
  if (!precision_traits(precision).packed()) return true;
  const auto problem = [&](const std::string& what, const std::string& way_out) {
    errors->push_back({scenario.where("policies.precision"), fmt::format("{} {}", precision, what),
                       way_out + "leave out cost.profile: the roofline prices formats by their bytes"});
    return false;
  };
  const MeasuredKv* const format = measured.format(precision);
  if (format == nullptr)
    return problem("has no measured kernels in the profile, which reads bf16 KV",
                   "kvtwin calibrate device --formats=PROFILE measures fp8, int4 and triaxial; or ");
  if (adds_to_steps(config))
    return problem("has measured kernels only for steps that retain and read all KV entries", "");
  const uint32_t page_tokens = config.page_tokens, group = config.policies.precision_spec.group;
  if (format->page_tokens == page_tokens && (format->group == 0 || format->group == group)) return true;
  return problem(
      fmt::format("was measured with pages of {} tokens and groups of {}, the scenario has {} and {}",
                  format->page_tokens, format->group, page_tokens, group),
      "set these; or ");
}

// How our CUDA engine replays decode steps (engine/cuda/kv_cache.h, padded_forms): not those of methods that
// capture every query token, nor of methods that choose on the host, nor where the host starts copies.
// Dropped KV entries that are recalled have two caches, whose common forms are not known before they come up.
DecodeGraphs decode_graphs(const CoreConfig& config, HostCopy copy) {
  const RetrievalKind kind = retrieval_traits(config.policies.retrieval).kind;
  if (kind == RetrievalKind::kRecallsValues || kind == RetrievalKind::kRecallsTokens)
    return DecodeGraphs::kNone;
  if (recalls(kind) && copy != HostCopy::kKernel) return DecodeGraphs::kNone;
  const kernels::ScorerDefinition* const scorer = kernels::find_scorer(config.policies.scorer);
  if (drops(config) && scorer != nullptr && scorer->watches_decodes) return DecodeGraphs::kNone;
  return drops(config) && kind != RetrievalKind::kReadsAll ? DecodeGraphs::kMet : DecodeGraphs::kPrepared;
}

// Passes of probe tokens belong to the model's own work.
void add_passes(PricedPasses priced, const PolicySet& set, std::unique_ptr<CostModel>* model) {
  if (probe_passes(set).any()) *model = std::make_unique<PassCost>(priced, std::move(*model));
}

// Wraps `model` with the prices of what the policies add. Null: they were not measured; `model` is unchanged
// and a note reports it.
std::unique_ptr<CostModel> with_operations(const MeasuredDevice& device, const CoreConfig& config,
                                           const std::string& profile, Composed* out,
                                           std::unique_ptr<CostModel>* model) {
  out->operations = device.operations;
  if (!device.operations) {
    const std::string folder = (std::filesystem::path(default_models_dir()) / "measured").string();
    const OtherOperations others = operations_of_others(folder, device);
    out->operations = others.operations;
    if (!others.operations && !adds_to_steps(config))
      return nullptr;  // the profile's tables alone price formats
    out->notes.push_back(fmt::format(
        "what methods add to steps was not measured in {}: {} prices it (kvtwin calibrate device)", profile,
        others.gpus.empty()       ? "the roofline"
        : others.gpus.size() == 1 ? fmt::format("another file of {}", others.gpus.front())
                                  : fmt::format("the mean of {}", fmt::join(others.gpus, " and "))));
  }
  if (!out->operations) return nullptr;
  add_passes(PricedPasses::kAll, config.policies, model);
  return std::make_unique<OperationCost>(*out->operations, method_work(config, out->llm), std::move(*model));
}

CostModelSpec spec_of(const Scenario& scenario, const EngineKind& kind, const Composed& composed) {
  const v1::Cost& cost = scenario.values.cost();
  const CoreConfig& config = composed.options.engines.front();
  CostModelSpec spec;
  spec.llm = composed.llm;
  spec.device = kind.device;
  spec.tp = kind.gpus_each;
  spec.host.full_graph_ns = cost.host_ns_per_step();
  spec.host.planning = plan_price(scenario, config.policies);
  spec.host.tables_ns = cost.group_ns() * page_groups(config.policies);
  spec.host.piecewise_ns = cost.has_host_piecewise_ns() ? cost.host_piecewise_ns() : spec.host.full_graph_ns;
  spec.host.eager_ns = cost.has_host_eager_ns() ? cost.host_eager_ns() : spec.host.piecewise_ns;
  spec.host.capture_tokens_max = cost.capture_tokens_max() > 0  ? cost.capture_tokens_max()
                                 : config.capture_sizes.empty() ? 512
                                                                : config.capture_sizes.back();
  if (!cost.profile().empty()) spec.profile = scenario.file(cost.profile());
  spec.graphs = decode_graphs(config, recall_copies(scenario.values).copy);
  return spec;
}

// If the profile is a ServerProfile, stores it in `out` and makes `spec` that of its base model. False: an
// error was added.
bool take_server_profile(const Scenario& scenario, size_t of, CostModelSpec* spec, Composed* out,
                         Errors* errors) {
  if (!spec->profile.ends_with(".textproto")) return true;
  const std::string where = scenario.where("cost.profile");
  const Result<std::string> text = read_text_file(spec->profile);
  if (!text || !is_server_profile(*text)) return true;  // its reader reports a file that cannot be read
  Result<ServerProfile> profile = parse_server_profile(*text, spec->profile);
  if (!profile) {
    add_error(errors, where, profile.error());
    return false;
  }
  const v1::Cost& cost = scenario.values.cost();
  if (cost.host_ns_per_step() != 0 || cost.has_host_piecewise_ns() || cost.has_host_eager_ns()) {
    errors->push_back({where, "a server's profile has the host time, and the scenario sets cost.host_* too",
                       "leave out cost.host_ns_per_step, cost.host_piecewise_ns and cost.host_eager_ns"});
    return false;
  }
  const std::filesystem::path folder = std::filesystem::path(spec->profile).parent_path();
  spec->profile = profile->base.empty() ? "" : (folder / profile->base).lexically_normal().string();
  if (of == 0) {
    const auto& seen = profile->seen;
    out->notes.push_back(
        fmt::format("step times are fitted to {} requests of a real server, {} at once, contexts of up to {} "
                    "tokens; beyond that they follow the {}",
                    seen.requests, seen.running_max, seen.context_tokens_max,
                    profile->base.empty() ? "roofline" : "kernel tables"));
    if (profile->device != out->device.name || profile->model != out->llm.name)
      out->notes.push_back(fmt::format("the server ran {} on {}: its factors are applied to {} on {}",
                                       profile->model, profile->device, out->llm.name, out->device.name));
  }
  out->server = std::move(*profile);
  return true;
}

// Makes a profile of another GPU or model that of `device` and the scenario's model, where it can be derived.
void fit_profile(const DeviceSpec& device, const CostModelSpec& spec, bool first, MeasuredDevice* measured,
                 Composed* out) {
  const bool same_gpu = measured->gpu == device.title, same_model = measured->model == out->llm.name;
  if (same_gpu && same_model) return;
  const std::string gpu = measured->gpu.empty() ? "an unnamed GPU" : measured->gpu, model = measured->model;
  const std::optional<ModelOnGpu> source = measured_on(*measured, Catalog());
  const ModelOnGpu target{out->llm, device};
  if (source && spec.tp == 1 && can_derive(*source, target)) {
    *measured = derive_device(*measured, *source, target);
    if (first)
      out->notes.push_back(fmt::format(
          "step times of {} on {} are derived from measurements of {} on {}, each operation by the "
          "ratio of its rooflines (docs/accuracy.md#other-gpus)",
          out->llm.name, device.title, model, gpu));
  } else if (first && !same_gpu) {
    out->notes.push_back(
        fmt::format("step times were measured on {}, and the node has {}", gpu, device.title));
  }
}

// Kernel profiles hold no all-reduces: every cost model takes the device's.
void note_all_reduce(const EngineKind& kind, uint32_t tp, std::vector<std::string>* notes) {
  const std::vector<AllReduceFigures>& rows = kind.device.all_reduce;
  if (tp <= 1 ||
      std::any_of(rows.begin(), rows.end(), [&](const AllReduceFigures& r) { return r.gpus == tp; }))
    return;
  const AllReduceRate rate = all_reduce_rate(kind.device, tp);
  notes->push_back(
      fmt::format("all-reduce of {} GPUs was not measured on {}: {} {:.1f} us and {:.0f} GB/s, two per layer",
                  tp, kind.device.name, rows.empty() ? "assumed" : "as with fewer GPUs,", rate.fixed_ns / 1e3,
                  rate.bytes_per_ns));
}

// The cost model of kernel tables, a calibration or the roofline.
std::unique_ptr<CostModel> make_base_cost(const Scenario& scenario, size_t of, CostModelSpec* spec,
                                          Composed* out, Errors* errors) {
  EngineKind& kind = out->kinds[of];
  Result<MeasuredDevice> measured;
  if (spec->profile.ends_with(".textproto")) {
    measured = load_measured_device(spec->profile);
    if (!measured) {
      add_error(errors, scenario.where("cost.profile"), measured.error());
      return nullptr;
    }
    fit_profile(kind.device, *spec, of == 0, &*measured, out);
    out->host_planning = measured_planning(*measured);
    // With two steps in flight the next step is launched already.
    if (out->options.engines.front().steps_in_flight_max == 1) spec->host.add(out->host_planning);
    spec->measured = &*measured;
    if (precision_traits(out->options.engines.front().policies.precision).packed())
      spec->precision = out->options.engines.front().policies.precision;
    if (!has_format(scenario, out->options.engines.front(), *measured, errors)) return nullptr;
  }
  if (of == 0) note_all_reduce(kind, spec->tp, &out->notes);
  Result<std::unique_ptr<CostModel>> made = make_cost_model(*spec, of == 0 ? &out->notes : nullptr);
  if (!made) {
    add_error(errors, scenario.where("cost.profile"), made.error());
    return nullptr;
  }
  if (spec->measured != nullptr) {
    take_measured_copies(*measured, out->facts.front().page_bytes, &kind.node);
    if (of == 0) out->node = kind.node;
  }
  const CoreConfig& config = out->options.engines.front();
  const auto work = compression_work(scenario, out->llm, config);
  if (of == 0) out->compression = work;
  if (spec->measured != nullptr && (adds_to_steps(config) || !spec->precision.empty())) {
    if (auto priced = with_operations(*measured, config, spec->profile, out, &*made)) return priced;
  }
  add_passes(work ? PricedPasses::kAll : PricedPasses::kNone, config.policies, &*made);
  if (!work) return std::move(*made);
  return std::make_unique<CompressionCost>(out->llm, kind.device, *work, std::move(*made));
}

// Steps at one end of their ranges, where the scenario asks for that. Null: an error was added.
std::unique_ptr<CostModel> at_range_end(const Scenario& scenario, bool measured,
                                        std::unique_ptr<CostModel> made, Errors* errors) {
  const std::string& wanted = scenario.values.cost().step_times();
  if (made == nullptr || wanted == "expected") return made;
  if (!measured) {
    errors->push_back({scenario.where("cost.step_times"),
                       fmt::format("{} is an end of a range, and the cost model has no ranges", wanted),
                       "\"expected\"; or a cost.profile of kvtwin calibrate device"});
    return nullptr;
  }
  return std::make_unique<RangeEndCost>(wanted == "low" ? RangeEnd::kLow : RangeEnd::kHigh, std::move(made));
}

}  // namespace

std::unique_ptr<CostModel> make_cost(const Scenario& scenario, size_t of, Composed* out, Errors* errors) {
  CostModelSpec spec = spec_of(scenario, out->kinds[of], *out);
  if (!one_device(scenario, of, *out, errors)) return nullptr;
  if (!take_server_profile(scenario, of, &spec, out, errors)) return nullptr;
  // A server's factors were fitted at the clock it runs at, so the roofline must not slow arithmetic down
  // again.
  if (out->server) spec.device.sustained_fraction = {};
  std::unique_ptr<CostModel> made = make_base_cost(scenario, of, &spec, out, errors);
  if (made != nullptr && out->server)
    made = std::make_unique<ServerCost>(out->server->times, std::move(made));
  const bool measured = spec.profile.ends_with(".textproto");
  return at_range_end(scenario, measured, std::move(made), errors);
}

}  // namespace kvtwin
