#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "engine/base/plural.h"
#include "models/files/data_folder.h"
#include "scenarios/cli/cli.h"
#include "scenarios/output/result_folder.h"
#include "traces/importers/formats.h"

#if KVTWIN_HAVE_CURL
#include "scenarios/observe/observe.h"
#endif

namespace kvtwin {
namespace {

struct ObserveArguments {
  std::string url, trace, out, model, endpoint = "completions", api_key_env = "OPENAI_API_KEY";
  double arrival_scale = 1, speed = 1, think_cap_s = 0, timeout_s = 600;
  uint64_t seed = 1, sessions = 0;
  bool stop_at_eos = false, force = false, quiet = false;
};

#if KVTWIN_HAVE_CURL

// The first SIGINT or SIGTERM sets it; the second one ends the program.
volatile std::sig_atomic_t stop_requested = 0;

void stop_at_signals() {
  struct sigaction action {};
  action.sa_handler = [](int) { stop_requested = 1; };
  action.sa_flags = static_cast<int>(SA_RESETHAND);
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

// A file, or the name of a trace that kvtwin ships.
std::string trace_path(const std::string& given) {
  namespace fs = std::filesystem;
  std::error_code failed;
  if (fs::exists(given, failed)) return given;
  const fs::path shipped = fs::path(data_folder("traces")) / "data" / (given + ".kvtrace");
  return given.find('/') == std::string::npos && fs::exists(shipped, failed) ? shipped.string() : given;
}

// A line on stderr every five seconds; on a terminal one line, rewritten.
class ObserveProgressLine {
 public:
  ObserveProgressLine(bool quiet, const RecordedLoad& load, double speed)
      : quiet_(quiet), terminal_(isatty(STDERR_FILENO) != 0), load_(load), speed_(speed) {}

  void start(uint64_t sessions) const {
    if (quiet_) return;
    fmt::print(stderr,
               "{} {} of {} {}; the trace's recorded times take {:.1f} s{}, plus the time of answers\n",
               load_.requests, plural(load_.requests, "request"), sessions, plural(sessions, "session"),
               static_cast<double>(load_.span_ns) / 1e9 / speed_,
               speed_ == 1 ? "" : fmt::format(" at {} times their speed", speed_));
  }

  void show(uint64_t ended, uint64_t in_flight) {
    const auto now = Clock::now();
    if (quiet_ || now < next_) return;
    next_ = now + std::chrono::milliseconds(terminal_ ? 200 : 5000);
    fmt::print(stderr, "{}{} of {} requests done, {} running, {:.0f} s{}", terminal_ ? "\r\033[K" : "", ended,
               load_.requests, in_flight, std::chrono::duration<double>(now - begin_).count(),
               terminal_ ? "" : "\n");
    shown_ = true;
  }

  void finish() const {
    if (shown_ && terminal_) fmt::print(stderr, "\r\033[K");
  }

 private:
  using Clock = std::chrono::steady_clock;
  const bool quiet_, terminal_;
  const RecordedLoad load_;
  const double speed_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point next_ = begin_ + std::chrono::seconds(2);
  bool shown_ = false;
};

Result<void> check(const ObserveArguments& arguments) {
  if (Result<void> ok = check_server_url(arguments.url); !ok) return ok;
  if (arguments.endpoint != "completions" && arguments.endpoint != "chat")
    return make_error("--endpoint", fmt::format("'{}'", arguments.endpoint), "completions or chat");
  for (const auto& [flag, value] : {std::pair{"--arrival-scale", arguments.arrival_scale},
                                    {"--think-cap", arguments.think_cap_s},
                                    {"--timeout", arguments.timeout_s}}) {
    if (!(value >= 0) || value > 1e6) return make_error(flag, fmt::format("{}", value), "from 0 to 1000000");
  }
  if (!(arguments.speed >= 0.001) || arguments.speed > 1000)
    return make_error("--speed", fmt::format("{}", arguments.speed), "from 0.001 to 1000");
  return check_replaceable(arguments.out, kNoFingerprint, arguments.force);
}

Result<std::string> model_of(const ObserveArguments& arguments, const std::vector<std::string>& served) {
  if (arguments.model.empty()) {
    if (served.size() == 1) return served.front();
    return make_error("--model", fmt::format("is missing, and the server has {} models", served.size()),
                      fmt::format("one of {}", fmt::join(served, ", ")));
  }
  for (const std::string& name : served) {
    if (name == arguments.model) return name;
  }
  return make_error("--model", fmt::format("the server has no model \"{}\"", arguments.model),
                    fmt::format("one of {}", fmt::join(served, ", ")));
}

void add_notes(const ObserveArguments& arguments, const Observation& seen, v1::RunResult* result) {
  result->add_notes(fmt::format("observed at {} by {}", arguments.url, arguments.endpoint));
  for (const auto& [error, count] : seen.errors)
    result->add_notes(fmt::format("{} {}: {}", count, plural(count, "request"), error));
  if (seen.not_sent > 0)
    result->add_notes(fmt::format("{} {} not sent, because a request that they wait for failed",
                                  seen.not_sent, plural(seen.not_sent, "request")));
  if (seen.stopped)
    result->add_notes(
        fmt::format("incomplete: a signal stopped it; {} {} without a complete answer, {} not sent",
                    seen.dropped, plural(seen.dropped, "request"), seen.left_out));
  if (seen.prompts_off > 0)
    result->add_notes(fmt::format("the server counted other prompt tokens than the trace in {} {}",
                                  seen.prompts_off, plural(seen.prompts_off, "request")));
}

ObserveOptions options_of(const ObserveArguments& arguments, const std::string& model) {
  ObserveOptions options;
  options.model = model;
  options.chat = arguments.endpoint == "chat";
  options.ignore_eos = !arguments.stop_at_eos;
  options.seed = arguments.seed;
  options.sessions_max = arguments.sessions;
  options.arrival_scale = arguments.arrival_scale;
  options.speed = arguments.speed;
  if (arguments.think_cap_s > 0) options.think_cap_ns = std::llround(arguments.think_cap_s * 1e9);
  return options;
}

// Writes the result. Status 1: it is incomplete; 3: every request failed, or the files cannot be written.
int write_observation(const ObserveArguments& arguments, Observation seen) {
  const std::string model = seen.run.name;
  add_notes(arguments, seen, &seen.run.result);
  for (const std::string& note : seen.run.result.notes()) fmt::print(stderr, "{}\n", note);
  const uint64_t sent = seen.sent, failed = seen.failed;
  if (seen.stopped && seen.run.requests.empty()) {
    fmt::print(stderr, "no request has ended; nothing is written\n");
    return kExitNo;
  }
  const std::vector<RunFile> files = measured_files(std::move(seen.run));
  if (Result<void> ok = replace_run(arguments.out, files); !ok) return complain(ok.error(), kExitEnvironment);
  fmt::print(
      "{}: {}, {} {} sent, {} failed; to compare a run with it: kvtwin compare RUN {}/requests.jsonl\n",
      arguments.out, model, sent, plural(sent, "request"), failed, arguments.out);
  if (failed == sent && sent > 0) return kExitEnvironment;
  return seen.stopped ? kExitNo : kExitDone;
}

int run_observe(const ObserveArguments& arguments) {
  if (const Result<void> ok = check(arguments); !ok) return complain(ok.error());
  ObservedTrace trace;
  if (const auto good = import_trace("auto", trace_path(arguments.trace), {}, &trace); !good)
    return complain(good.error());
  const char* const key = std::getenv(arguments.api_key_env.c_str());
  HttpRequests http({.url = arguments.url,
                     .api_key = key == nullptr ? "" : key,
                     .timeout_ms = std::llround(arguments.timeout_s * 1e3)});
  const Result<std::vector<std::string>> served = http.models();
  if (!served) return complain(served.error(), kExitEnvironment);
  const Result<std::string> model = model_of(arguments, *served);
  if (!model) return complain(model.error());
  const ObserveOptions options = options_of(arguments, *model);
  ObserveProgressLine line(arguments.quiet, recorded_load(trace, options), options.speed);
  const uint64_t sessions = trace.sessions.size();
  line.start(options.sessions_max > 0 ? std::min(options.sessions_max, sessions) : sessions);
  stop_at_signals();
  Observation seen = observe(trace, options, &http, [&line](uint64_t ended, uint64_t in_flight) {
    line.show(ended, in_flight);
    return stop_requested == 0;
  });
  line.finish();
  return write_observation(arguments, std::move(seen));
}

#else

int run_observe(const ObserveArguments&) {
  return complain(
      Error{"observe", "this build has no libcurl", "install libcurl4-openssl-dev and build again"},
      kExitNoBackend);
}

#endif

}  // namespace

void add_observe_command(CLI::App& app, int* status) {
  CLI::App* const command = app.add_subcommand("observe");
  const auto arguments = std::make_shared<ObserveArguments>();
  command->add_option("URL", arguments->url)->required();
  command->add_option("--trace", arguments->trace)->required();
  command->add_option("--out", arguments->out)->required();
  command->add_option("--model", arguments->model);
  command->add_option("--endpoint", arguments->endpoint);
  command->add_option("--api-key-env", arguments->api_key_env);
  command->add_option("--sessions", arguments->sessions);
  command->add_option("--arrival-scale", arguments->arrival_scale);
  command->add_option("--speed", arguments->speed);
  command->add_option("--think-cap", arguments->think_cap_s);
  command->add_option("--timeout", arguments->timeout_s);
  command->add_option("--seed", arguments->seed);
  command->add_flag("--stop-at-eos", arguments->stop_at_eos);
  command->add_flag("--force", arguments->force);
  command->add_flag("--quiet", arguments->quiet);
  command->callback([arguments, status] { *status = run_observe(*arguments); });
}

}  // namespace kvtwin
