#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <filesystem>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/base/plural.h"
#include "models/files/textproto.h"
#include "scenarios/cli/cli.h"
#include "scenarios/load/shipped.h"
#include "scenarios/output/metric_names.h"
#include "scenarios/sweep/folder.h"
#include "scenarios/sweep/halving.h"
#include "scenarios/sweep/index.h"
#include "scenarios/sweep/pool.h"
#include "scenarios/sweep/slurm.h"
#include "scenarios/sweep/sweep.h"
#include "traces/proto/sweep.pb.h"

namespace kvtwin {
namespace {

struct SweepArguments {
  std::string scenario, out, format = "table", shard = "0/1", sampler;
  std::string columns;
  std::vector<std::string> sets, vary;
  std::string halve, rungs, launcher = "local";
  std::vector<std::string> sbatch;
  uint32_t samples = 0, jobs = 0, keep_one_of = 0, tasks = 0;
  uint64_t seed = 0;
  bool quiet = false, dry = false, force = false;
};

// True for the path of a sweep file, or its name among the shipped scenarios.
bool is_sweep_file(const std::string& scenario) {
  return scenario.ends_with(".sweep.textproto") || scenario.ends_with(".sweep");
}

// Replaces a sweep file by the arguments that it holds. The command line adds to them and takes precedence.
Result<void> read_sweep_file(SweepArguments* arguments) {
  if (!is_sweep_file(arguments->scenario)) {
    if (arguments->vary.empty())
      return make_error("kvtwin sweep", "--vary is missing",
                        "as in --vary=limits.requests_max=4..64*2, or a FILE.sweep.textproto");
    return {};
  }
  const Result<std::string> found = find_scenario(arguments->scenario);
  if (!found) return tl::unexpected<Error>(found.error());
  const std::string path = *found;
  const Result<std::string> text = read_text_file(path);
  if (!text) return tl::unexpected<Error>(text.error());
  v1::Sweep file;
  if (Result<void> ok = parse_textproto(*text, path, &file); !ok) return ok;
  if (file.scenario().empty())
    return make_error(path, "scenario is missing",
                      "write, for example, scenario: \"coding_agents_small.textproto\"");
  const auto before = [](const auto& in, std::vector<std::string>* out) {
    out->insert(out->begin(), in.begin(), in.end());
  };
  before(file.vary(), &arguments->vary);
  before(file.set(), &arguments->sets);
  if (arguments->vary.empty())
    return make_error(path, "nothing varies", "write, for example, vary: \"limits.requests_max=4..64*2\"");
  arguments->scenario =
      (std::filesystem::path(path).parent_path() / file.scenario()).lexically_normal().string();
  const auto take = [](const std::string& in, std::string* out) {
    if (out->empty()) *out = in;
  };
  take(file.sampler() == "grid" ? "" : file.sampler(), &arguments->sampler);
  take(file.halve(), &arguments->halve);
  take(file.rungs(), &arguments->rungs);
  if (arguments->samples == 0) arguments->samples = file.samples();
  if (arguments->seed == 0) arguments->seed = file.seed();
  if (arguments->keep_one_of == 0) arguments->keep_one_of = file.keep_one_of();
  if (arguments->columns.empty()) arguments->columns = fmt::format("{}", fmt::join(file.columns(), ","));
  return {};
}

SweepWords words_of(const SweepArguments& arguments) {
  return {arguments.scenario, arguments.vary, arguments.sets};
}

// Sets the arguments that neither the command line nor a sweep file gives.
void take_defaults(SweepArguments* arguments) {
  if (arguments->out.empty())
    arguments->out = fmt::format("out/sweep-{:016x}", sweep_fingerprint(words_of(*arguments)));
  if (arguments->columns.empty())
    arguments->columns = "requests_per_s,output_tokens_per_s,ttft_p99_ms,tpot_p95_ms,preemptions";
  if (arguments->seed == 0) arguments->seed = 1;
  if (arguments->keep_one_of == 0) arguments->keep_one_of = 3;
}

// "120 of 1,000 points, 3 failed, about 340 s left": one rewritten line on a terminal, a line per 10 %
// elsewhere.
class SweepProgress {
 public:
  SweepProgress(bool quiet, size_t all) : quiet_(quiet), terminal_(isatty(STDERR_FILENO) == 1), all_(all) {}

  void ended(const SweepRow& row) {
    ++done_;
    failed_ += row.state == PointState::kFailed ? 1 : 0;
    const double seconds = std::chrono::duration<double>(Clock::now() - start_).count();
    if (quiet_ || (seconds < 1 && done_ < all_)) return;
    if (!terminal_ && done_ * 10 / all_ == tenths_) return;
    tenths_ = done_ * 10 / all_;
    const double left = seconds / static_cast<double>(done_) * static_cast<double>(all_ - done_);
    fmt::print(stderr, "{}sweep: {} of {} points, {} failed, about {:.0f} s left{}",
               terminal_ ? "\r\033[K" : "", done_, all_, failed_, left, terminal_ ? "" : "\n");
    shown_ = terminal_;
  }
  void finish() const {
    if (shown_) fmt::print(stderr, "\r\033[K");
  }

 private:
  using Clock = std::chrono::steady_clock;
  const bool quiet_, terminal_;
  const size_t all_;
  const Clock::time_point start_ = Clock::now();
  size_t done_ = 0, failed_ = 0, tenths_ = 0;
  bool shown_ = false;
};

// The table and the index cover this command's points. Results of other points in the same folder (of other
// values, or from before --force) stay, but appear in neither.
void warn_of_others(const std::string& dir, const std::vector<SweepRow>& rows) {
  std::set<std::string> own;
  for (const SweepRow& row : rows) own.insert(row.key);
  size_t others = 0;
  std::error_code failed;
  const std::filesystem::path points = std::filesystem::path(dir) / "points";
  for (std::filesystem::directory_iterator at(points, failed), end; !failed && at != end;
       at.increment(failed))
    others += at->is_directory(failed) && !own.contains(at->path().filename().string()) ? 1 : 0;
  if (others == 0) return;
  fmt::print(stderr,
             "{}: holds {} {} of other points, which the table and index.sqlite leave out; another --out "
             "keeps them apart\n",
             dir, others, plural(others, "result"));
}

// Reports damaged results, which are made again.
void warn(const std::string& text) { fmt::print(stderr, "{}\n", text); }

Result<SweepSpec> spec_of(const SweepArguments& arguments) {
  SweepSpec spec;
  spec.scenario = arguments.scenario;
  spec.sets = arguments.sets;
  Result<std::vector<Axis>> axes = parse_axes(arguments.vary);
  if (!axes) return tl::unexpected<Error>(axes.error());
  spec.axes = std::move(*axes);
  const Result<Sampling> sampling = parse_sampling(arguments.sampler, arguments.samples, arguments.seed);
  if (!sampling) return tl::unexpected<Error>(sampling.error());
  spec.sampling = *sampling;
  return spec;
}

size_t points_to_run(const std::vector<SweepRow>& rows, const Shard& shard) {
  std::vector<std::string> keys;
  for (const SweepRow& row : rows) {
    if (!row.key.empty() && row.state != PointState::kDone && shard.has(row.point)) keys.push_back(row.key);
  }
  std::sort(keys.begin(), keys.end());
  return static_cast<size_t>(std::unique(keys.begin(), keys.end()) - keys.begin());
}

int say_rows(const SweepArguments& arguments, const SweepSpec& spec, const std::vector<SweepRow>& rows,
             OutputFormat format) {
  const std::vector<std::string> columns = *metric_columns(split_list(arguments.columns));
  for (const std::string& column : unknown_columns(rows, columns))
    fmt::print(stderr, "--columns: {} is empty: it applies to none of these points\n", column);
  for (const std::string& field : axes_without_effect(spec, rows))
    fmt::print(stderr, "--vary={}: all its values gave equal runs{}\n", field,
               field == "seed" ? ": this scenario draws nothing" : "");
  fmt::print("{}", format_sweep(spec, rows, format, columns));
  size_t counts[3] = {};
  for (const SweepRow& row : rows) ++counts[static_cast<size_t>(row.state)];
  if (!arguments.quiet)
    fmt::print(stderr, "{} {}: {} done, {} failed, {} missing; in {}\n", rows.size(),
               plural(rows.size(), "point"), counts[1], counts[2], counts[0], arguments.out);
  return counts[2] > 0 ? kExitNo : kExitDone;
}

// Runs the points of `rows` that have no result. Returns the exit status.
int run_rows(const SweepArguments& arguments, const SweepSpec& spec, const Shard& shard,
             std::vector<SweepRow>* rows) {
  std::error_code failed;
  std::filesystem::create_directories(arguments.out, failed);
  SweepProgress progress(arguments.quiet, points_to_run(*rows, shard));
  SweepRun how{shard, arguments.jobs, own_program()};
  if (how.at_once == 0) how.at_once = std::max(1u, std::thread::hardware_concurrency());
  const Result<void> ran = run_indexed_sweep(spec, arguments.out, how, rows, warn,
                                             [&](const SweepRow& row) { progress.ended(row); });
  progress.finish();
  return ran ? kExitDone : complain(ran.error(), kExitEnvironment);
}

// The command that repeats the sweep; one line.
std::string command_of(const SweepArguments& arguments) {
  std::string out = "kvtwin sweep " + arguments.scenario;
  const auto add = [&](const char* option, const std::string& value) {
    if (!value.empty()) out += fmt::format(" '--{}={}'", option, value);
  };
  for (const std::string& vary : arguments.vary) add("vary", vary);
  for (const std::string& set : arguments.sets) add("set", set);
  if (arguments.samples > 0) add("samples", std::to_string(arguments.samples));
  add("sampler", arguments.sampler);
  if (arguments.samples > 0) add("seed", std::to_string(arguments.seed));
  add("halve", arguments.halve);
  add("rungs", arguments.rungs);
  if (!arguments.halve.empty()) add("keep-one-of", std::to_string(arguments.keep_one_of));
  out += " --out=" + arguments.out;
  std::replace(out.begin(), out.end(), '\n', ' ');
  return out;
}

// Returns the exit status.
int take_folder(const SweepArguments& arguments) {
  const SweepWords words = words_of(arguments);
  if (!arguments.force) {
    if (const Result<void> ok = check_same_sweep(arguments.out, words); !ok) return complain(ok.error());
  }
  const Result<void> ok = note_sweep(arguments.out, words, command_of(arguments));
  return ok ? kExitDone : complain(ok.error(), kExitEnvironment);
}

// Successive halving: runs all points at the first rung and the better ones at the next. The rows of the last
// rung are the answer.
int halve(const SweepArguments& arguments, SweepSpec spec, OutputFormat format) {
  const Result<Halving> halving = parse_halving(arguments.halve, arguments.rungs, arguments.keep_one_of);
  if (!halving) return complain(halving.error());
  Result<std::vector<SweepPoint>> points = sweep_points(spec.axes, spec.sampling);
  if (!points) return complain(points.error());
  spec.sets.emplace_back(fmt::format("{}={}", halving->field, halving->rungs.front()));
  if (const Result<void> ok = check_fields_read(spec, *points); !ok) return complain(ok.error());
  if (const int status = take_folder(arguments); status != kExitDone) return status;
  for (const std::string& rung : halving->rungs) {
    spec.sets.back() = fmt::format("{}={}", halving->field, rung);
    Result<std::vector<SweepRow>> rows = plan_points(spec, *points, arguments.out, warn);
    if (!rows) return complain(rows.error());
    if (const int status = run_rows(arguments, spec, {}, &*rows); status != kExitDone) return status;
    if (rung == halving->rungs.back()) return say_rows(arguments, spec, *rows, format);
    const Result<std::vector<size_t>> better = better_points(*halving, *rows);
    if (!better) return complain(better.error());
    std::vector<SweepPoint> next;
    for (const size_t row : *better) next.push_back((*rows)[row].values);
    if (!arguments.quiet)
      fmt::print(stderr, "{}: {} of {} points continue\n", spec.sets.back(), next.size(), rows->size());
    *points = std::move(next);
  }
  return kExitDone;
}

// The arguments that repeat this sweep's plan in its shards.
std::vector<std::string> plan_words(const SweepArguments& arguments, const std::string& dir) {
  std::error_code failed;
  const bool is_file = std::filesystem::exists(arguments.scenario, failed);
  std::vector<std::string> words = {
      "sweep", is_file ? std::filesystem::absolute(arguments.scenario).string() : arguments.scenario};
  for (const std::string& vary : arguments.vary) words.push_back("--vary=" + vary);
  for (const std::string& set : arguments.sets) words.push_back("--set=" + set);
  if (arguments.samples > 0) words.push_back(fmt::format("--samples={}", arguments.samples));
  if (!arguments.sampler.empty()) words.push_back("--sampler=" + arguments.sampler);
  words.push_back(fmt::format("--seed={}", arguments.seed));
  words.push_back("--out=" + dir);
  return words;
}

int sweep_on_slurm(const SweepArguments& arguments, const SweepSpec& spec, OutputFormat format) {
  if (arguments.tasks == 0)
    return complain(
        Error{"--tasks", "the array job needs a size", "for example --launcher=slurm --tasks=16"});
  const std::string dir = std::filesystem::absolute(arguments.out).string();
  const SlurmJob job{own_program(),   plan_words(arguments, dir),   dir,
                     arguments.tasks, std::max(1u, arguments.jobs), arguments.sbatch};
  if (const int status = take_folder(arguments); status != kExitDone) return status;
  if (Result<void> ok = run_on_slurm(job); !ok) return complain(ok.error(), kExitEnvironment);
  Result<std::vector<SweepRow>> rows = plan_sweep(spec, arguments.out, warn);
  if (!rows) return complain(rows.error());
  Result<std::unique_ptr<SweepIndex>> index = SweepIndex::open(dir + "/index.sqlite", spec, *rows, warn);
  if (!index) return complain(index.error(), kExitEnvironment);
  return say_rows(arguments, spec, *rows, format);
}

// A finished sweep in a folder that this user cannot write to: its table needs no index.
bool only_readable(const std::string& dir, const std::vector<SweepRow>& rows) {
  const bool done = std::all_of(rows.begin(), rows.end(),
                                [](const SweepRow& row) { return row.state == PointState::kDone; });
  return done && !rows.empty() && access(dir.c_str(), W_OK) != 0;
}

int sweep(SweepArguments arguments) {
  if (const Result<void> ok = read_sweep_file(&arguments); !ok) return complain(ok.error());
  take_defaults(&arguments);
  const Result<OutputFormat> format = parse_format(arguments.format);
  if (!format) return complain(format.error());
  if (const auto columns = metric_columns(split_list(arguments.columns)); !columns)
    return complain(columns.error());
  const Result<Shard> shard = parse_shard(arguments.shard);
  if (!shard) return complain(shard.error());
  const Result<SweepSpec> spec = spec_of(arguments);
  if (!spec) return complain(spec.error());
  if (arguments.launcher != "local" && arguments.launcher != "slurm")
    return complain(Error{"--launcher", fmt::format("there is no launcher \"{}\"", arguments.launcher),
                          "local or slurm; --shard for other schedulers"});
  const bool slurm = arguments.launcher == "slurm";
  if (!arguments.halve.empty() || !arguments.rungs.empty()) {
    if (shard->count > 1 || arguments.dry || slurm)
      return complain(Error{"--halve", "halving must wait for all points of a rung",
                            "leave out --shard, --launcher and --dry-run"});
    return halve(arguments, *spec, *format);
  }
  if (slurm && !arguments.dry) return sweep_on_slurm(arguments, *spec, *format);
  Result<std::vector<SweepRow>> rows = plan_sweep(*spec, arguments.out, warn);
  if (!rows) return complain(rows.error());
  if (arguments.dry || only_readable(arguments.out, *rows)) return say_rows(arguments, *spec, *rows, *format);
  if (const int status = take_folder(arguments); status != kExitDone) return status;
  if (!arguments.quiet && shard->count == 1) warn_of_others(arguments.out, *rows);
  if (const int status = run_rows(arguments, *spec, *shard, &*rows); status != kExitDone) return status;
  return say_rows(arguments, *spec, *rows, *format);
}

}  // namespace

void add_sweep_command(CLI::App& app, int* status) {
  CLI::App* const command = app.add_subcommand("sweep");
  const auto arguments = std::make_shared<SweepArguments>();
  command->add_option("SCENARIO", arguments->scenario)->required();
  add_repeated(command, "--vary", &arguments->vary);
  add_repeated(command, "--set", &arguments->sets);
  command->add_option("--out", arguments->out);
  command->add_option("--samples", arguments->samples);
  command->add_option("--sampler", arguments->sampler);
  command->add_option("--seed", arguments->seed);
  command->add_option("--halve", arguments->halve);
  command->add_option("--rungs", arguments->rungs);
  command->add_option("--keep-one-of", arguments->keep_one_of);
  command->add_option("--jobs", arguments->jobs);
  command->add_option("--shard", arguments->shard);
  command->add_option("--launcher", arguments->launcher);
  command->add_option("--tasks", arguments->tasks);
  add_repeated(command, "--sbatch", &arguments->sbatch);
  command->add_option("--format", arguments->format);
  command->add_option("--columns", arguments->columns);
  command->add_flag("--dry-run", arguments->dry);
  command->add_flag("--force", arguments->force);
  command->add_flag("--quiet", arguments->quiet);
  command->callback([arguments, status] { *status = sweep(*arguments); });
}

}  // namespace kvtwin
