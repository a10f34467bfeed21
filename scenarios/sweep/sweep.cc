#include "scenarios/sweep/sweep.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include "scenarios/app/results.h"
#include "scenarios/load/inputs.h"
#include "scenarios/load/scenario.h"
#include "scenarios/load/unread_fields.h"
#include "scenarios/output/result_folder.h"
#include "scenarios/sweep/pool.h"

namespace kvtwin {
namespace fs = std::filesystem;
namespace {

constexpr int kEnvironment = 3;  // exit status of kvtwin run

fs::path point_dir(const std::string& dir, const std::string& key) { return fs::path(dir) / "points" / key; }
fs::path error_file(const std::string& dir, const std::string& key) {
  return fs::path(dir) / "points" / (key + ".err");
}

std::vector<std::string> sets_of(const SweepSpec& spec, const SweepPoint& values) {
  std::vector<std::string> sets = spec.sets;
  for (size_t a = 0; a < spec.axes.size(); ++a) sets.push_back(spec.axes[a].field + "=" + values[a]);
  return sets;
}

std::string one_line(std::string text) {
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ' ');
  constexpr size_t kLengthMax = 2000;
  if (text.size() > kLengthMax) text = "..." + text.substr(text.size() - kLengthMax);
  return text;
}

std::string first_of(const Errors& errors) { return errors.empty() ? "" : one_line(errors.front().text()); }

// A lock on the folder, held until destruction; the kernel releases it when the process dies.
class Lock {
 public:
  explicit Lock(const fs::path& path)
      : file_(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644)),
        held_(file_ >= 0 && flock(file_, LOCK_EX | LOCK_NB) == 0) {}
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  ~Lock() {
    if (file_ >= 0) close(file_);
  }
  bool held() const { return held_; }

 private:
  const int file_;
  const bool held_;
};

Job job_of(const SweepSpec& spec, const std::string& dir, const SweepRow& row) {
  Job job;
  job.words = {"run", spec.scenario};
  for (const std::string& set : sets_of(spec, row.values)) job.words.push_back("--set=" + set);
  job.words.push_back("--out=" + point_dir(dir, row.key).string());
  job.words.push_back("--allow-unread");  // check_fields_read() found a point that reads each field
  job.words.push_back("--force");         // a damaged result is made again
  job.words.push_back("--quiet");
  job.errors = error_file(dir, row.key).string();
  return job;
}

// Reads the result of a point whose process exited with `status`.
void take_end(const std::string& dir, int status, SweepRow* row) {
  std::string complaint;
  if (status == 0) look_up(dir, row, &complaint);
  std::error_code ignored;
  if (row->state == PointState::kDone) {
    fs::remove(error_file(dir, row->key), ignored);
    return;
  }
  std::ostringstream text;
  text << std::ifstream(error_file(dir, row->key)).rdbuf();
  row->state = PointState::kFailed;
  row->error = one_line(text.str());
  if (!complaint.empty()) row->error += complaint;
  if (status > 128) row->error += fmt::format(" (ended by signal {})", status - 128);
  if (row->error.empty()) row->error = fmt::format("ended with status {} without a message", status);
}

}  // namespace

const char* name_of(PointState state) {
  constexpr const char* kNames[] = {"missing", "done", "failed"};
  return kNames[static_cast<size_t>(state)];
}

Result<void> check_fields_read(const SweepSpec& spec, const std::vector<SweepPoint>& points) {
  std::map<std::string, std::string> given;  // field to the argument that sets it
  for (const std::string& set : spec.sets) given[set.substr(0, set.find('='))] = "--set=" + set;
  for (const Axis& axis : spec.axes) given[axis.field] = "--vary=" + axis.field;
  std::map<std::string, Error> unread;
  for (size_t i = 0; i < points.size() && !given.empty(); ++i) {
    const tl::expected<Scenario, Errors> scenario = load_scenario(spec.scenario, sets_of(spec, points[i]));
    if (!scenario) continue;  // a failed row
    std::erase_if(given, [&](const auto& one) {
      const std::optional<Error> why = why_unread(scenario->values, one.first, one.second);
      if (why) unread.try_emplace(one.first, *why);
      return !why;
    });
    std::erase_if(unread, [&](const auto& one) { return !given.contains(one.first); });
  }
  if (!unread.empty()) return tl::unexpected<Error>(unread.begin()->second);
  return {};
}

Result<std::vector<SweepRow>> plan_sweep(const SweepSpec& spec, const std::string& dir, const Warn& warn) {
  const Result<std::vector<SweepPoint>> points = sweep_points(spec.axes, spec.sampling);
  if (!points) return tl::unexpected<Error>(points.error());
  if (Result<void> ok = check_fields_read(spec, *points); !ok) return tl::unexpected<Error>(ok.error());
  Result<std::vector<SweepRow>> rows = plan_points(spec, *points, dir, warn);
  // If the scenario is invalid at every point (an unknown field, say), nothing can run and nothing is
  // written.
  if (rows && !rows->empty() &&
      std::all_of(rows->begin(), rows->end(), [](const SweepRow& row) { return row.key.empty(); }))
    return make_error(spec.scenario, "the scenario is invalid at every point: " + rows->front().error,
                      "change the settings that all points have");
  return rows;
}

Result<std::vector<SweepRow>> plan_points(const SweepSpec& spec, const std::vector<SweepPoint>& points,
                                          const std::string& dir, const Warn& warn) {
  PathDigests read;
  std::vector<SweepRow> rows(points.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    SweepRow& row = rows[i];
    row.point = i;
    row.values = points[i];
    const tl::expected<Scenario, Errors> scenario = load_scenario(spec.scenario, sets_of(spec, row.values));
    if (!scenario) {
      row.state = PointState::kFailed;
      row.error = first_of(scenario.error());
      continue;
    }
    const Result<uint64_t> inputs = inputs_fingerprint(*scenario, &read);
    if (!inputs) return tl::unexpected<Error>(inputs.error());
    row.key = fmt::format("{:016x}", *inputs);
    std::string complaint;
    look_up(dir, &row, &complaint);
    if (!complaint.empty()) warn(complaint + "; it will run again");
  }
  return rows;
}

void look_up(const std::string& dir, SweepRow* row, std::string* complaint) {
  std::error_code ignored;
  const fs::path path = point_dir(dir, row->key);
  if (row->key.empty() || !fs::exists(path / "run.binpb", ignored)) return;
  const Result<v1::RunResult> result = read_result(path.string());
  if (!result) {
    *complaint = result.error().text();
    return;
  }
  const auto record = nlohmann::ordered_json::parse(format_summary(*result, OutputFormat::kJsonl, {}));
  row->state = PointState::kDone;
  row->error.clear();
  row->metrics.clear();
  for (const auto& [name, value] : record.items()) row->metrics.emplace_back(name, value.dump());
}

Result<void> run_sweep(const SweepSpec& spec, const std::string& dir, const SweepRun& how,
                       std::vector<SweepRow>* rows, const std::function<void(const SweepRow&)>& ended) {
  std::error_code failed;
  fs::create_directories(fs::path(dir) / "points", failed);
  if (failed) return make_error(dir, "cannot be made: " + failed.message(), "choose another --out");
  const Lock lock(fs::path(dir) / fmt::format(".lock-{}-of-{}", how.shard.index, how.shard.count));
  if (!lock.held())
    return make_error(dir, "another process runs a sweep in this folder",
                      "wait for it, or choose another --out");
  std::map<std::string, std::vector<size_t>> same;  // rows by key
  std::vector<Job> jobs;
  std::vector<std::string> keys;
  for (const SweepRow& row : *rows) {
    if (row.key.empty() || !how.shard.has(row.point)) continue;
    std::vector<size_t>& of_key = same[row.key];
    if (of_key.empty() && row.state != PointState::kDone) {
      jobs.push_back(job_of(spec, dir, row));
      keys.push_back(row.key);
    }
    of_key.push_back(row.point);
  }
  std::optional<Error> environment;
  Result<void> ran = run_jobs(how.program, jobs, {how.at_once}, [&](const JobEnd& end) {
    const std::vector<size_t>& of_key = same[keys[end.job]];
    SweepRow& first = (*rows)[of_key.front()];
    take_end(dir, end.status, &first);
    for (const size_t other : of_key) {
      SweepRow& row = (*rows)[other];
      row.state = first.state, row.error = first.error, row.metrics = first.metrics;
    }
    if (end.status == kEnvironment && !environment)
      environment = Error{fmt::format("point {}", first.point), first.error,
                          "fix it and repeat the command: finished points stay"};
    ended(first);
    return !environment;
  });
  if (!ran) return ran;
  // A killed sweep's workers may still have been ending when the points above were written.
  remove_stale_drafts((fs::path(dir) / "points").string(),
                      [&](std::string_view key) { return same.contains(std::string(key)); });
  if (environment) return tl::unexpected<Error>(*environment);
  return {};
}

}  // namespace kvtwin
