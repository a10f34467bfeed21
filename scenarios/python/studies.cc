#include "scenarios/python/studies.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <thread>
#include <utility>

#include "scenarios/app/compose.h"
#include "scenarios/output/metric_names.h"
#include "scenarios/output/result_folder.h"
#include "scenarios/plan/plan.h"
#include "scenarios/sweep/folder.h"
#ifdef KVTWIN_HAVE_SQLITE
#include "scenarios/sweep/index.h"
#endif

namespace kvtwin {
namespace {

uint32_t processes(uint32_t jobs) {
  return jobs > 0 ? jobs : std::max(1u, std::thread::hardware_concurrency());
}

Result<std::vector<Axis>> axes_of(const std::vector<std::string>& vary) {
  std::vector<Axis> axes;
  for (const std::string& one : vary) {
    Result<Axis> axis = parse_axis(one);
    if (!axis) return tl::unexpected<Error>(axis.error());
    axes.push_back(std::move(*axis));
  }
  return axes;
}

Result<SweepSpec> spec_of(const SweepRequest& request) {
  SweepSpec spec;
  spec.scenario = request.scenario;
  spec.sets = request.sets;
  Result<std::vector<Axis>> axes = axes_of(request.vary);
  if (!axes) return tl::unexpected<Error>(axes.error());
  spec.axes = std::move(*axes);
  if (spec.axes.empty())
    return make_error("kvtwin.sweep", "vary is empty", R"(as in vary={"limits.requests_max": [4, 8, 16]})");
  spec.sampling = {Sampler::kGrid, request.samples, request.seed};
  if (request.sampler.empty() && request.samples == 0) return spec;
  if (!request.sampler.empty() && request.sampler != "sobol" && request.sampler != "random")
    return make_error("sampler", fmt::format("there is no sampler \"{}\"", request.sampler),
                      "sobol or random");
  spec.sampling.sampler = request.sampler == "random" ? Sampler::kRandom : Sampler::kSobol;
  return spec;
}

Result<std::vector<std::string>> columns_of(const std::vector<std::string>& words) {
  std::vector<std::string> out;
  for (const std::string& word : words) {
    out.push_back(metric_name(word));
    if (out.back().empty())
      return make_error("columns", fmt::format("there is no metric \"{}\"", word), metric_hint(word));
  }
  return out;
}

// The command that makes the same plan.
std::string command_of(const PlanRequest& request) {
  std::string out = "kvtwin plan " + request.scenario;
  const auto add = [&](const char* option, const std::vector<std::string>& values) {
    for (const std::string& value : values) out += fmt::format(" '--{}={}'", option, value);
  };
  add("slo", request.slos);
  out += fmt::format(" --load={} --need={}", request.load, request.need);
  add("vary", request.vary);
  add("set", request.sets);
  add("loss", request.losses);
  if (request.seeds != PlanRequest().seeds) out += fmt::format(" --seeds={}", request.seeds);
  return out + (request.allow_roofline ? " --allow-roofline" : "");
}

// Runs the points that are missing. Shards write no index: two writers on a network file system could damage
// it.
Result<void> run_rows(const SweepRequest& request, const SweepSpec& spec, const std::string& out,
                      const Shard& shard, const Warn& warn, const std::function<void()>& ended,
                      std::vector<SweepRow>* rows) {
  Result<void> indexed;
#ifdef KVTWIN_HAVE_SQLITE
  std::unique_ptr<SweepIndex> index;
  if (shard.count == 1) {
    Result<std::unique_ptr<SweepIndex>> made = SweepIndex::open(out + "/index.sqlite", spec, *rows, warn);
    if (!made) return tl::unexpected<Error>(made.error());
    index = std::move(*made);
  }
#else
  static_cast<void>(warn);
#endif
  const SweepRun how{shard, processes(request.jobs), request.program};
  const Result<void> ran = run_sweep(spec, out, how, rows, [&]([[maybe_unused]] const SweepRow& row) {
#ifdef KVTWIN_HAVE_SQLITE
    if (index && indexed) indexed = index->put(row);
#endif
    ended();
  });
  return ran ? indexed : ran;
}

}  // namespace

Result<StudyText> sweep_in_folder(const SweepRequest& request, const Warn& warn,
                                  const std::function<void()>& ended) {
  const Result<std::vector<std::string>> columns = columns_of(request.columns);
  if (!columns) return tl::unexpected<Error>(columns.error());
  const Result<Shard> shard = parse_shard(request.shard);
  if (!shard) return tl::unexpected<Error>(shard.error());
  const Result<SweepSpec> spec = spec_of(request);
  if (!spec) return tl::unexpected<Error>(spec.error());
  const SweepWords words{request.scenario, request.vary, request.sets};
  const std::string out =
      request.out.empty() ? fmt::format("out/sweep-{:016x}", sweep_fingerprint(words)) : request.out;
  Result<std::vector<SweepRow>> rows = plan_sweep(*spec, out, warn);
  if (!rows) return tl::unexpected<Error>(rows.error());
  if (!request.force) {
    if (const Result<void> ok = check_same_sweep(out, words); !ok) return tl::unexpected<Error>(ok.error());
  }
  if (const Result<void> ok = note_sweep(out, words); !ok) return tl::unexpected<Error>(ok.error());
  if (const Result<void> ok = run_rows(request, *spec, out, *shard, warn, ended, &*rows); !ok)
    return tl::unexpected<Error>(ok.error());
  if (shard->count == 1) {
    for (const std::string& field : axes_without_effect(*spec, *rows))
      warn(fmt::format("vary {}: all its values gave equal runs", field));
  }
  return StudyText{format_sweep(*spec, *rows, OutputFormat::kJson, {}),
                   format_sweep(*spec, *rows, OutputFormat::kTable, *columns), out};
}

Result<StudyText> plan_in_folder(const PlanRequest& request, const Warn& warn,
                                 const std::function<void()>& ended) {
  PlanSpec spec;
  spec.sweep.scenario = request.scenario;
  spec.sweep.sets = request.sets;
  Result<std::vector<Axis>> axes = axes_of(request.vary);
  if (!axes) return tl::unexpected<Error>(axes.error());
  spec.sweep.axes = std::move(*axes);
  Result<LoadAxis> load = parse_load(request.load);
  if (!load) return tl::unexpected<Error>(load.error());
  spec.load = std::move(*load);
  Result<std::vector<Slo>> slos = parse_slos(request.slos);
  if (!slos) return tl::unexpected<Error>(slos.error());
  spec.slos = std::move(*slos);
  for (const std::string& text : request.losses) {
    Result<KnownLoss> loss = parse_loss(text);
    if (!loss) return tl::unexpected<Error>(loss.error());
    spec.losses.push_back(std::move(*loss));
  }
  if (request.seeds == 0) return make_error("seeds", "is 0", "1 at least");
  if (!can_simulate())
    return make_error(request.scenario, "this build has no simulated backend",
                      "install libsimgrid-dev and configure again");
  spec.need = request.need;
  spec.seeds = request.seeds;
  spec.allow_roofline = request.allow_roofline;
  PlanRun how;
  how.dir = request.out;
  how.program = request.program;
  how.at_once = processes(request.jobs);
  how.warn = warn;
  how.progress = [&](uint64_t) { ended(); };
  const Result<Plan> plan = make_plan(spec, how);
  if (!plan) return tl::unexpected<Error>(plan.error());
  if (const Result<void> ok =
          write_files(request.out, {{"plan.json", plan_file(spec, *plan, command_of(request))}});
      !ok)
    return tl::unexpected<Error>(ok.error());
  return StudyText{format_plan(spec, *plan, OutputFormat::kJson),
                   format_plan(spec, *plan, OutputFormat::kTable), request.out};
}

}  // namespace kvtwin
