// kvtwin calibrate server: fits step times to a real server's log, and writes the profile, a trace of the log
// and a scenario of both.

#include <fmt/format.h>
#include <google/protobuf/text_format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "models/files/textproto.h"
#include "scenarios/app/compose.h"
#include "scenarios/calibrate/calibrate_server.h"
#include "scenarios/cli/cli.h"
#include "scenarios/load/short_textproto.h"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

constexpr size_t kRequestsLogBytesMax = size_t{1} << 30;

struct ServerArguments {
  std::string run, out, model, gpu, scenario, trace, trace_format = "auto";
  std::vector<std::string> sets;
  uint32_t tp = 1;
  uint64_t kv_tokens = 0;
  std::optional<size_t> first;
  std::optional<double> fraction;
};

// The files that are written beside the profile.
struct Outputs {
  fs::path profile, scenario, trace;
};

Outputs outputs_of(const std::string& out) {
  const fs::path profile(out);
  const std::string stem = profile.stem().string();
  return {profile, profile.parent_path() / (stem + "_scenario.textproto"),
          profile.parent_path() / (stem + "_trace.jsonl")};
}

Result<void> check_arguments(const ServerArguments& arguments) {
  const bool described = !arguments.model.empty() && !arguments.gpu.empty();
  if (arguments.scenario.empty() != described)
    return make_error("calibrate server", "needs to know how the server was run",
                      "--model=NAME and --gpu=NODE (kvtwin list models, kvtwin list nodes), or "
                      "--scenario=SCENARIO in their place");
  if (!arguments.out.ends_with(".textproto"))
    return make_error("--out=" + arguments.out, "does not end with .textproto",
                      "as in --out=server.textproto");
  if (arguments.first && arguments.fraction)
    return make_error("--fraction", "and --first exclude each other", "one of them");
  if (arguments.fraction && !(*arguments.fraction > 0 && *arguments.fraction < 1))
    return make_error("--fraction", fmt::format("is {}", *arguments.fraction), "more than 0, less than 1");
  if (arguments.tp < 1) return make_error("--tp", "is 0", "1 or more GPUs");
  return {};
}

// Requests to fit to: 30, or half of a shorter log.
size_t first_of(const ServerArguments& arguments, size_t requests) {
  if (arguments.first) return *arguments.first;
  if (arguments.fraction)
    return static_cast<size_t>(std::llround(*arguments.fraction * static_cast<double>(requests)));
  return requests > 60 ? 30 : requests / 2;
}

std::string described_scenario(const ServerArguments& arguments, const std::string& trace) {
  v1::Scenario out;
  out.mutable_model()->set_name(arguments.model);
  out.mutable_hardware()->set_node(arguments.gpu);
  if (arguments.tp > 1) {
    out.mutable_hardware()->set_gpus(arguments.tp);
    out.mutable_engines()->set_tensor_parallel(arguments.tp);
  }
  out.mutable_limits()->set_preset("vllm_v1");
  out.mutable_trace()->set_path(trace);
  out.mutable_trace()->set_format(arguments.trace.empty() ? "mooncake" : arguments.trace_format);
  out.mutable_replay()->set_mode("open_loop");
  std::string text;
  google::protobuf::TextFormat::PrintToString(out, &text);
  return text;
}

// A scenario that has a server's profile is calibrated anew, from the profile's base model.
Result<void> take_base(Scenario* scenario) {
  const std::string path = scenario->file(scenario->values.cost().profile());
  if (!path.ends_with(".textproto")) return {};
  const Result<std::string> text = read_text_file(path);
  if (!text || !is_server_profile(*text)) return {};  // compose() reports a file that cannot be read
  const Result<ServerProfile> profile = parse_server_profile(*text, path);
  if (!profile) return tl::unexpected<Error>(profile.error());
  const fs::path folder = fs::absolute(path).parent_path();
  scenario->values.mutable_cost()->set_profile(profile->base.empty() ? ""
                                                                     : (folder / profile->base).string());
  return {};
}

// How the server was run. Host times are what is fitted, so those of the scenario do not count.
tl::expected<Scenario, Errors> server_scenario(const ServerArguments& arguments, const Outputs& outputs) {
  const std::string trace =
      fs::absolute(arguments.trace.empty() ? outputs.trace : fs::path(arguments.trace)).string();
  tl::expected<Scenario, Errors> scenario =
      arguments.scenario.empty()
          ? parse_scenario(described_scenario(arguments, trace), outputs.scenario.string(), arguments.sets)
          : load_scenario(arguments.scenario, arguments.sets);
  if (!scenario) return scenario;
  if (Result<void> ok = take_base(&*scenario); !ok) return tl::unexpected<Errors>(Errors{ok.error()});
  v1::Cost& cost = *scenario->values.mutable_cost();
  cost.set_host_ns_per_step(0), cost.clear_host_piecewise_ns(), cost.clear_host_eager_ns();
  cost.set_first_step_host_ns(0);
  // A log's times count from the queue of the engine, or contain the front end of a client's.
  cost.set_front_end_request_ns(0), cost.set_front_end_token_ns(0);
  if (arguments.kv_tokens > 0) {
    v1::Memory& memory = *scenario->values.mutable_memory();
    memory.set_gpu_pages(static_cast<uint32_t>(arguments.kv_tokens / memory.page_tokens()));
  }
  if (scenario->values.engines().further_size() > 0)
    return tl::unexpected<Errors>(Errors{{scenario->where("engines.further"), "has engines of other hardware",
                                          "calibrate servers of one kind of GPU"}});
  return scenario;
}

// `path` as written into a file of `folder`.
std::string beside(const std::string& path, const fs::path& folder) {
  if (path.empty() || path.starts_with("$")) return path;
  return fs::proximate(fs::absolute(path), fs::absolute(folder.empty() ? "." : folder)).string();
}

int write_results(const ServerArguments& arguments, const Outputs& outputs, const Scenario& scenario,
                  ServerCalibration* found) {
  const fs::path folder = outputs.profile.parent_path();
  ServerProfile& profile = found->profile;
  profile.name = fs::path(arguments.out).stem().string();
  profile.source = fmt::format("{}, the first {} requests", arguments.run, found->fitted_to);
  const tl::expected<Composed, Errors> engines = compose_engines(scenario);
  if (!engines) return complain(engines.error());
  profile.model = engines->llm.name, profile.device = engines->device.name;
  profile.tensor_parallel = scenario.values.engines().tensor_parallel();
  const std::string& tables = scenario.values.cost().profile();
  profile.base = tables.empty() ? "" : beside(scenario.file(tables), folder);
  Scenario written = scenario;
  written.values.mutable_cost()->set_profile(outputs.profile.filename().string());
  written.values.mutable_trace()->set_path(beside(scenario.file(scenario.values.trace().path()), folder));
  written.values.set_name(outputs.scenario.stem().string());
  const std::string text = fmt::format(
      "# proto-file: traces/proto/scenario.proto\n# proto-message: kvtwin.v1.Scenario\n"
      "# Written by kvtwin calibrate server from {}.\n{}",
      arguments.run, short_textproto(written));
  for (const auto& [path, content] :
       {std::pair{outputs.profile, server_profile_textproto(profile)}, std::pair{outputs.scenario, text}}) {
    if (Result<void> ok = write_text(path.string(), content); !ok)
      return complain(ok.error(), kExitEnvironment);
  }
  fmt::print("{}\nwritten: {}\n  kvtwin run {}\n", server_calibration_text(*found), outputs.profile.string(),
             outputs.scenario.string());
  return found->worse_than_nothing() ? kExitNo : kExitDone;
}

int calibrate(const ServerArguments& arguments) {
  if (Result<void> ok = check_arguments(arguments); !ok) return complain(ok.error());
  if (!can_simulate())
    return complain({"calibrate server", "this build has no simulated backend",
                     "install libsimgrid-dev and configure again"},
                    kExitNoBackend);
  std::error_code ignored;
  const std::string path = fs::is_directory(arguments.run, ignored)
                               ? (fs::path(arguments.run) / "requests.jsonl").string()
                               : arguments.run;
  const Result<std::string> text = read_text_file(path, kRequestsLogBytesMax);
  if (!text) return complain(text.error());
  Result<std::vector<Request>> log = parse_requests(*text, path);
  if (!log) {
    Error error = log.error();
    error.hint += std::string(error.hint.empty() ? "" : "; ") +
                  "a benchmark's result is imported first: kvtwin import " + arguments.run + " --out=DIR";
    return complain(error);
  }
  std::stable_sort(log->begin(), log->end(),
                   [](const Request& a, const Request& b) { return a.queued_s < b.queued_s; });
  const Outputs outputs = outputs_of(arguments.out);
  const bool own_trace = arguments.trace.empty() && arguments.scenario.empty();
  if (own_trace) {
    if (Result<void> ok = write_text(outputs.trace.string(), trace_of_log(*log)); !ok)
      return complain(ok.error(), kExitEnvironment);
  }
  const tl::expected<Scenario, Errors> scenario = server_scenario(arguments, outputs);
  if (!scenario) return complain(scenario.error());
  ServerCalibrationInput input{*scenario, *log, path, first_of(arguments, log->size())};
  Result<ServerCalibration> found = calibrate_server(std::move(input));
  if (!found) return complain(found.error());
  return write_results(arguments, outputs, *scenario, &*found);
}

}  // namespace

void add_calibrate_server_command(CLI::App* calibrate_app, int* status) {
  CLI::App* const command = calibrate_app->add_subcommand("server");
  const auto arguments = std::make_shared<ServerArguments>();
  command->add_option("RUN", arguments->run)->required();
  command->add_option("--out", arguments->out)->required();
  command->add_option("--model", arguments->model);
  command->add_option("--gpu", arguments->gpu);
  command->add_option("--tp", arguments->tp);
  command->add_option("--kv-tokens", arguments->kv_tokens);
  command->add_option("--trace", arguments->trace);
  command->add_option("--trace-format", arguments->trace_format);
  command->add_option("--scenario", arguments->scenario);
  command->add_option("--first", arguments->first);
  command->add_option("--fraction", arguments->fraction);
  add_repeated(command, "--set", &arguments->sets);
  command->callback([arguments, status] { *status = calibrate(*arguments); });
}

}  // namespace kvtwin
