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

Result<SweepSpec> spec_of(const SweepRequest& request) {
  SweepSpec spec;
  spec.scenario = request.scenario;
  spec.sets = request.sets;
  Result<std::vector<Axis>> axes = parse_axes(request.vary);
  if (!axes) return tl::unexpected<Error>(axes.error());
  spec.axes = std::move(*axes);
  if (spec.axes.empty())
    return make_error("kvtwin.sweep", "vary is empty", R"(as in vary={"limits.requests_max": [4, 8, 16]})");
  const Result<Sampling> sampling = parse_sampling(request.sampler, request.samples, request.seed);
  if (!sampling) return tl::unexpected<Error>(sampling.error());
  spec.sampling = *sampling;
  return spec;
}

Result<void> run_rows(const SweepRequest& request, const SweepSpec& spec, const std::string& out,
                      const Shard& shard, [[maybe_unused]] const Warn& warn,
                      const std::function<void()>& ended, std::vector<SweepRow>* rows) {
  const SweepRun how{shard, processes(request.jobs), request.program};
  const auto row_ended = [&](const SweepRow&) { ended(); };
#ifdef KVTWIN_HAVE_SQLITE
  return run_indexed_sweep(spec, out, how, rows, warn, row_ended);
#else
  return run_sweep(spec, out, how, rows, row_ended);
#endif
}

}  // namespace

Result<StudyText> sweep_in_folder(const SweepRequest& request, const Warn& warn,
                                  const std::function<void()>& ended) {
  const Result<std::vector<std::string>> columns = metric_columns(request.columns);
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
  const Result<PlanSpec> spec = plan_spec(request);
  if (!spec) return tl::unexpected<Error>(spec.error());
  if (!can_simulate())
    return make_error(request.scenario, "this build has no simulated backend",
                      "install libsimgrid-dev and configure again");
  PlanRun how;
  how.dir = request.out;
  how.program = request.program;
  how.at_once = processes(request.jobs);
  how.warn = warn;
  how.progress = [&](uint64_t) { ended(); };
  const Result<Plan> plan = make_plan(*spec, how);
  if (!plan) return tl::unexpected<Error>(plan.error());
  if (const Result<void> ok =
          write_files(request.out, {{"plan.json", plan_file(*spec, *plan, plan_command(request))}});
      !ok)
    return tl::unexpected<Error>(ok.error());
  return StudyText{format_plan(*spec, *plan, OutputFormat::kJson),
                   format_plan(*spec, *plan, OutputFormat::kTable), request.out};
}

}  // namespace kvtwin
