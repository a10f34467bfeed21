#include "scenarios/validate/recordings.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "engine/base/plural.h"
#include "models/files/textproto.h"
#include "scenarios/app/compose.h"
#include "scenarios/app/compose_values.h"
#include "scenarios/app/results.h"
#include "scenarios/load/gpu_at_hand.h"
#include "scenarios/load/unread_fields.h"
#include "scenarios/sweep/pool.h"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

constexpr size_t kLogBytesMax = size_t{1} << 30;
constexpr char kOutcomes[] = "/outcomes.binpb";

// Leaves out what log and scenario already determine, and paths of this machine.
Result<void> keep_recording(const std::string& from, const std::string& to) {
  Result<v1::RunResult> result = read_result(from);
  if (!result) return tl::unexpected<Error>(result.error());
  result->clear_scenario_text();
  result->clear_series();
  const Result<std::string> log = read_text_file(from + "/log.binpb", kLogBytesMax);
  if (!log) return tl::unexpected<Error>(log.error());
  std::vector<RunFile> files = {{"log.binpb", *log}, {"run.binpb", result->SerializeAsString()}};
  // The log has the counts of retained KV entries; only outcomes.binpb has recalls.
  if (result->has_retrieval()) {
    const Result<std::string> outcomes = read_text_file(from + kOutcomes, kLogBytesMax);
    if (!outcomes) return tl::unexpected<Error>(outcomes.error());
    files.push_back({"outcomes.binpb", *outcomes});
  }
  return replace_run(to, files);
}

}  // namespace

Result<void> run_apart(const std::string& scenario, const std::vector<std::string>& sets,
                       const std::vector<std::string>& words, const std::string& errors,
                       const std::string& out) {
  Job job;
  job.words = {"run", scenario, "--quiet", "--force", "--allow-unread", "--out=" + out};
  for (const std::string& set : sets) job.words.push_back("--set=" + set);
  job.words.insert(job.words.end(), words.begin(), words.end());
  job.errors = errors;
  int status = 0;
  if (auto ok =
          run_jobs(own_program(), {job}, {1}, [&](const JobEnd& end) { return (status = end.status) == 0; });
      !ok)
    return ok;
  if (status == 0) return {};
  const Result<std::string> said = read_text_file(job.errors);
  return make_error(scenario, fmt::format("a run ended with status {}: {}", status,
                                          said && !said->empty() ? said->substr(0, 1000) : "no message"));
}

Result<void> check_sets_read(const std::vector<std::string>& scenarios, const std::vector<std::string>& sets,
                             const std::string& backend, const std::string& clock) {
  std::vector<std::string> real = sets;
  real.push_back("backend=" + backend);
  real.push_back("clock=" + clock);
  std::vector<v1::Scenario> all;
  for (const std::string& path : scenarios) {
    for (const std::vector<std::string>& one : {sets, real}) {
      if (const auto scenario = load_scenario(path, one)) all.push_back(scenario->values);
    }
  }
  const Errors unread = unread_sets(all, sets);
  if (!unread.empty()) return tl::unexpected<Error>(unread.front());
  return {};
}

Result<std::vector<std::string>> sets_that_fit(const std::string& scenario,
                                               const std::vector<std::string>& sets,
                                               const std::function<void(const std::string&)>& progress) {
  const tl::expected<Scenario, Errors> loaded = load_scenario(scenario, sets);
  if (!loaded) return tl::unexpected<Error>(loaded.error().front());
  const tl::expected<Composed, Errors> composed = compose(*loaded);
  if (!composed) return tl::unexpected<Error>(composed.error().front());
  const uint32_t given = loaded->values.memory().gpu_pages(), most = composed->memory.pages;
  if (!composed->memory_given || most == 0 || given <= most) return sets;
  if (progress)
    progress(fmt::format("{}: {} GPU pages instead of {}: a {} holds no more", loaded->values.name(), most,
                         given, composed->device.title));
  std::vector<std::string> out = sets;
  out.push_back(fmt::format("memory.gpu_pages={}", most));
  return out;
}

Result<void> take_gpu_of(const std::string& dir, bool record) {
  const std::string path = dir + "/gpu.txt";
  std::error_code ignored;
  std::string made_on;
  if (fs::exists(path, ignored)) {
    const Result<std::string> text = read_text_file(path);
    if (!text) return tl::unexpected<Error>(text.error());
    made_on = text->substr(0, text->find('\n'));
  }
  if (!record) {
    setenv(kGpuVariable, made_on.empty() ? "none" : made_on.c_str(), 0);
    return {};
  }
  const std::string here = gpu_at_hand();
  if (here.empty() || here == made_on) return {};
  if (!made_on.empty())
    return make_error(dir, fmt::format("has runs of {}, and this is {}", made_on, here),
                      "give another folder");
  return write_files(dir, {{"gpu.txt", here + "\n"}});
}

Result<void> check_can_record(const std::string& command) {
  Scenario any;
  any.values.set_name(command);
  const Result<void> ok = check_cuda_backend(any);
  if (ok) return {};
  return make_error(command, ok.error().what, ok.error().hint);
}

Result<void> record(const RecordRequest& request, const std::string& name) {
  if (request.progress) request.progress(fmt::format("{}: real run {}", name, request.repeat));
  const std::string made = fmt::format("{}/{}.real", request.work, name);
  const Result<std::vector<std::string>> sets =
      sets_that_fit(request.scenario, request.sets, request.progress);
  if (!sets) return tl::unexpected<Error>(sets.error());
  if (Result<void> ok = run_apart(request.scenario, *sets,
                                  {"--backend=" + request.backend, "--clock=" + request.clock, "--record"},
                                  fmt::format("{}/{}.errors", request.work, name), made);
      !ok)
    return ok;
  if (Result<void> ok = keep_recording(made, fmt::format("{}/{}", request.to, request.repeat)); !ok)
    return ok;
  std::error_code ignored;
  fs::remove_all(made, ignored);
  return {};
}

Result<Recording> read_recording(const std::string& path, const std::string& repeat) {
  const Result<std::string> bytes = read_text_file(path + "/log.binpb", kLogBytesMax);
  if (!bytes) return tl::unexpected<Error>(bytes.error());
  Result<Log> log = read_log(path + "/log.binpb", *bytes);
  if (!log) return tl::unexpected<Error>(log.error());
  Result<v1::RunResult> result = read_result(path);
  if (!result) return tl::unexpected<Error>(result.error());
  Recording out{repeat, std::move(*log), std::move(*result)};
  std::error_code error;
  if (!fs::exists(path + kOutcomes, error)) return out;
  const Result<std::string> said = read_text_file(path + kOutcomes, kLogBytesMax);
  if (!said) return tl::unexpected<Error>(said.error());
  Result<RecordedOutcomes> outcomes = read_outcomes(
      path + kOutcomes, *said, [&]() -> Result<RequestNumbers> { return RequestNumbers(out.log); });
  if (!outcomes) return tl::unexpected<Error>(outcomes.error());
  if (outcomes->engines.size() != out.log.engines.size())
    return make_error(
        path + kOutcomes,
        fmt::format("is of {} {}", outcomes->engines.size(), plural(outcomes->engines.size(), "engine")),
        fmt::format("the log in its folder is of {}", out.log.engines.size()));
  out.outcomes = std::move(*outcomes);
  return out;
}

Result<std::vector<Recording>> read_recordings(const std::string& dir) {
  std::vector<std::string> repeats;
  std::error_code failed;
  for (fs::directory_iterator at(dir, failed), end; !failed && at != end; at.increment(failed)) {
    if (at->is_directory()) repeats.push_back(at->path().filename().string());
  }
  if (failed || repeats.empty())
    return make_error(dir, "holds no recording", "kvtwin validate SCENARIO --out=DIR records them, on a GPU");
  std::sort(repeats.begin(), repeats.end());
  std::vector<Recording> out;
  for (const std::string& repeat : repeats) {
    Result<Recording> one = read_recording(dir + "/" + repeat, repeat);
    if (!one) return tl::unexpected<Error>(one.error());
    out.push_back(std::move(*one));
  }
  return out;
}

}  // namespace kvtwin
