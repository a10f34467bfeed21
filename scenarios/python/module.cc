// kvtwin._core: what the package kvtwin (scenarios/python/kvtwin) is made from. Texts and bytes go in and
// out; the package makes objects of them. Errors are raised as kvtwin.Error.

#include <pybind11/functional.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/files/data_folder.h"
#include "models/files/textproto.h"
#include "scenarios/load/field_list.h"
#include "scenarios/load/in_process_scorers.h"
#include "scenarios/load/shipped.h"
#include "scenarios/output/compare.h"
#include "scenarios/output/compare_runs.h"
#include "scenarios/output/metric_names.h"
#include "scenarios/python/evaluation.h"
#include "scenarios/python/python_scorer.h"
#include "scenarios/python/run_scenario.h"
#include "scenarios/python/simulation_thread.h"
#include "scenarios/python/studies.h"

namespace kvtwin {
namespace {

namespace py = pybind11;

[[noreturn]] void raise(const Errors& errors) {
  py::list all;
  for (const Error& one : errors) all.append(py::make_tuple(one.where, one.what, one.hint));
  const py::object type = py::module_::import("kvtwin._errors").attr("Error");
  PyErr_SetObject(type.ptr(), type(all).ptr());
  throw py::error_already_set();
}
[[noreturn]] void raise(const Error& error) { raise(Errors{error}); }

template <typename T>
T take(Result<T> result) {
  if (!result) raise(result.error());
  return std::move(*result);
}
void take(const Result<void>& result) {
  if (!result) raise(result.error());
}

// Raises KeyboardInterrupt if the user pressed Ctrl-C. Called without the GIL.
void check_signals() {
  const py::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw py::error_already_set();
}

// Passes a sentence to warnings.warn. Called without the GIL.
void warn(const std::string& text) {
  const py::gil_scoped_acquire gil;
  if (PyErr_WarnEx(PyExc_UserWarning, text.c_str(), 2) != 0) throw py::error_already_set();
}

// The scorer's name is in the settings: policies.scorer_options.command.
struct FunctionScorer {
  std::string name;
  std::optional<py::function> function;
};

// Runs `work`, which must own what it uses, in the simulation thread; returns or throws what it does. After
// Ctrl-C it goes on without its caller. `function` is for messages.
template <typename T>
T in_simulation_thread(const char* function, std::function<T()> work) {
  SimulationThread& thread = SimulationThread::get();
  if (!thread.usable())
    raise(Error{function, "this process was forked from one that had already run something",
                "start workers with multiprocessing.get_context(\"spawn\")"});
  if (thread.is_this_thread())
    raise(Error{function, "this is called by a scorer of a run that is not over", "run it before or after"});
  struct Outcome {
    std::optional<T> value;
    std::exception_ptr failed;
  };
  const auto outcome = std::make_shared<Outcome>();
  {
    const py::gil_scoped_release no_gil;
    thread.run(
        [outcome, work = std::move(work)] {
          try {
            outcome->value = work();
          } catch (...) {
            outcome->failed = std::current_exception();
          }
        },
        check_signals);
  }
  if (outcome->failed) std::rethrow_exception(outcome->failed);
  return std::move(*outcome->value);
}

FinishedRun run(const RunRequest& request, const FunctionScorer& scorer) {
  using Finished = tl::expected<FinishedRun, Errors>;
  std::shared_ptr<kernels::ExternalScorer> scores;
  if (scorer.function) scores = python_scorer(*scorer.function, scorer.name);
  Finished finished =
      in_simulation_thread<Finished>("kvtwin.run", [request, scores, name = scorer.name]() -> Finished {
        std::optional<InProcessScorer> there;
        if (scores) there.emplace(name, scores);
        return run_in_process(request);
      });
  if (!finished) raise(finished.error());
  return std::move(*finished);
}

// `scorers`: functions by name.
py::tuple evaluate(const EvaluateRequest& policies, const std::string& base, const py::dict& scorers,
                   const std::string& temporary, const std::string& paired) {
  EvaluationRequest request{policies, {}, base, temporary, paired};
  for (const auto& [name, function] : scorers) {
    const auto text = name.cast<std::string>();
    request.scorers.push_back({text, python_scorer(function.cast<py::function>(), text)});
  }
  const EvaluationText text = take(in_simulation_thread<Result<EvaluationText>>(
      "kvtwin.evaluate", [request] { return evaluate_in_process(request); }));
  return py::make_tuple(text.csv, text.table);
}

void save(const FinishedRun& run, const std::string& dir, bool force) {
  take(check_replaceable(dir, run.result.inputs(), force));
  take(replace_run(dir, run.files));
}

// The files of a run's folder that exist. run.binpb is enough for a summary.
FinishedRun open_folder(const std::string& dir) {
  FinishedRun run;
  run.result = take(read_result(dir));
  constexpr size_t kBytesMax = size_t{1} << 30;
  std::error_code failed;
  for (const char* name :
       {"scenario.resolved.textproto", "requests.csv", "tools.csv", "heads.json", "requests.jsonl",
        "operations.csv", "timeline.json", "timeline.perfetto-trace", "run.binpb"}) {
    const std::string path = dir + "/" + name;
    if (!std::filesystem::exists(path, failed)) continue;
    run.files.push_back({name, take(read_text_file(path, kBytesMax))});
  }
  return run;
}

py::tuple compare_logs(const std::string& real_text, const std::string& real_name,
                       const std::string& ours_text, const std::string& ours_name, size_t skip,
                       const std::vector<std::string>& limits) {
  const std::vector<Request> ours = take(parse_requests(ours_text, ours_name));
  const std::vector<Request> real = take(parse_requests(real_text, real_name));
  const Comparison compared = take(compare(real, ours, skip));
  const std::vector<std::string> broken = take(broken_limits(compared, limits));
  py::list rows;
  for (const ComparedRow& row : compared.rows)
    rows.append(
        py::make_tuple(row.metric, row.statistic, row.real_ms, row.ours_ms, row.difference_percent()));
  return py::make_tuple(rows, compared.requests, compared.skipped, compared.matched_by, broken,
                        format_comparison(compared, OutputFormat::kTable));
}

ComparedRun compared_run(const FinishedRun& run, const std::string& name) {
  ComparedRun out{name, run.result, {}};
  // A server's aggregates have no single requests.
  if (const std::string& log = run.file("requests.jsonl"); !log.empty()) {
    if (Result<std::vector<Request>> requests = parse_requests(log, name))
      out.requests = std::move(*requests);
  }
  return out;
}

// The comparison as JSON and as a table, and a sentence per broken limit.
py::tuple compare_two_runs(const FinishedRun& first, const std::string& first_name, const FinishedRun& second,
                           const std::string& second_name, const std::vector<std::string>& limits) {
  const RunsComparison compared =
      compare_runs(compared_run(first, first_name), compared_run(second, second_name));
  return py::make_tuple(format_runs(compared, OutputFormat::kJson),
                        format_runs(compared, OutputFormat::kTable), take(broken_limits(compared, limits)));
}

template <typename Request>
StudyText study(Result<StudyText> (*make)(const Request&, const Warn&, const std::function<void()>&),
                const Request& request) {
  std::optional<Result<StudyText>> made;
  {
    const py::gil_scoped_release no_gil;
    made = make(request, warn, check_signals);
  }
  return take(std::move(*made));
}

void add_runs(py::module_& module) {
  py::class_<FinishedRun>(module, "Run")
      .def_property_readonly(
          "summary",
          [](const FinishedRun& run) { return format_summary(run.result, OutputFormat::kJsonl, {}); })
      .def_property_readonly(
          "table",
          [](const FinishedRun& run) { return format_summary(run.result, OutputFormat::kTable, {}); })
      .def_readonly("wall_s", &FinishedRun::wall_s)
      .def_property_readonly("notes",
                             [](const FinishedRun& run) {
                               return std::vector<std::string>(run.result.notes().begin(),
                                                               run.result.notes().end());
                             })
      .def("file", [](const FinishedRun& run, const std::string& name) { return py::bytes(run.file(name)); })
      .def("save", &save);
  module.def("run", [](std::string scenario, std::optional<std::string> text, std::vector<std::string> sets,
                       std::string timeline, bool allow_unread, std::string scorer_name,
                       std::optional<py::function> scorer) {
    return run({std::move(scenario), std::move(text), std::move(sets), std::move(timeline), allow_unread,
                scorer.has_value()},
               {std::move(scorer_name), std::move(scorer)});
  });
  module.def("in_process_command", [](const std::string& name) { return in_process_command(name); });
  module.def("open", &open_folder);
  module.def("compare", &compare_logs);
  module.def("compare_runs", &compare_two_runs);
}

void add_studies(py::module_& module) {
  py::class_<StudyText>(module, "Study")
      .def_readonly("json", &StudyText::json)
      .def_readonly("table", &StudyText::table)
      .def_readonly("out", &StudyText::out);
  py::class_<SweepRequest>(module, "SweepRequest")
      .def(py::init<>())
      .def_readwrite("scenario", &SweepRequest::scenario)
      .def_readwrite("out", &SweepRequest::out)
      .def_readwrite("vary", &SweepRequest::vary)
      .def_readwrite("sets", &SweepRequest::sets)
      .def_readwrite("sampler", &SweepRequest::sampler)
      .def_readwrite("samples", &SweepRequest::samples)
      .def_readwrite("seed", &SweepRequest::seed)
      .def_readwrite("shard", &SweepRequest::shard)
      .def_readwrite("jobs", &SweepRequest::jobs)
      .def_readwrite("program", &SweepRequest::program)
      .def_readwrite("force", &SweepRequest::force)
      .def_readwrite("columns", &SweepRequest::columns);
  py::class_<PlanRequest>(module, "PlanRequest")
      .def(py::init<>())
      .def_readwrite("scenario", &PlanRequest::scenario)
      .def_readwrite("out", &PlanRequest::out)
      .def_readwrite("load", &PlanRequest::load)
      .def_readwrite("slos", &PlanRequest::slos)
      .def_readwrite("vary", &PlanRequest::vary)
      .def_readwrite("sets", &PlanRequest::sets)
      .def_readwrite("losses", &PlanRequest::losses)
      .def_readwrite("need", &PlanRequest::need)
      .def_readwrite("seeds", &PlanRequest::seeds)
      .def_readwrite("jobs", &PlanRequest::jobs)
      .def_readwrite("program", &PlanRequest::program)
      .def_readwrite("allow_roofline", &PlanRequest::allow_roofline);
  module.def("sweep", [](const SweepRequest& request) { return study(sweep_in_folder, request); });
  module.def("plan", [](const PlanRequest& request) { return study(plan_in_folder, request); });
}

void add_evaluation(py::module_& module) {
  py::class_<EvaluateRequest>(module, "EvaluateRequest")
      .def(py::init<>())
      .def_readwrite("scenarios", &EvaluateRequest::scenarios)
      .def_readwrite("tasks", &EvaluateRequest::tasks)
      .def_readwrite("budgets", &EvaluateRequest::budgets)
      .def_readwrite("sets", &EvaluateRequest::sets)
      .def_readwrite("questions", &EvaluateRequest::questions)
      .def_readwrite("tokens", &EvaluateRequest::tokens)
      .def_readwrite("per_session", &EvaluateRequest::per_session)
      .def_readwrite("seed", &EvaluateRequest::seed)
      .def_readwrite("backends", &EvaluateRequest::backends)
      .def_readwrite("out", &EvaluateRequest::out);
  module.def("evaluate", &evaluate);
}

void add_lists(py::module_& module) {
  module.def("set_program_path", &set_program_path);
  module.def("data_folder", [](const std::string& name) { return data_folder(name); });
  module.def("shipped", &shipped_scenarios);
  module.def("metric_name", [](const std::string& word) { return metric_name(word); });
  module.def("metric_hint", [](const std::string& word) { return metric_hint(word); });
  module.def("metrics", [] {
    py::list all;
    for (const MetricName& one : metric_names())
      all.append(py::make_tuple(one.name, one.unit, one.definition));
    return all;
  });
  module.def("is_list", [](const std::string& path) {
    for (const FieldLine& line : scenario_fields()) {
      if (line.path == path) return line.kind.starts_with("list of ");
    }
    return true;  // no such field: the settings' own error names it
  });
  module.def("fields", [] {
    py::list all;
    for (const FieldLine& line : scenario_fields())
      all.append(py::make_tuple(line.path, line.kind, line.value, line.comment));
    return all;
  });
  module.attr("version") = KVTWIN_VERSION;
}

}  // namespace
}  // namespace kvtwin

PYBIND11_MODULE(_core, module) {
  kvtwin::add_runs(module);
  kvtwin::add_studies(module);
  kvtwin::add_evaluation(module);
  kvtwin::add_lists(module);
}
