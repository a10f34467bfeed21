#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "scenarios/cli/cli.h"

#if KVTWIN_HAVE_SERVE
#include <cmath>
#include <cstdlib>

#include "scenarios/serve/serve.h"
#endif

namespace kvtwin {
namespace {

struct ServeArguments {
  std::string scenario, host = "127.0.0.1", model_name, api_key_env, token_log, kv_events, kv_events_topic;
  std::string kv_events_layout = "maps";
  double speed = 1, grace_s = 10, stall_s = 120, max_body_mb = 64;
  uint32_t port = 8000, output_tokens = 256, max_streams = 4096;
  std::vector<std::string> sets;
};

#if KVTWIN_HAVE_SERVE

Result<void> check_range(const char* flag, double value, double low, double high) {
  if (value >= low && value <= high) return {};
  return make_error(flag, fmt::format("{}", value), fmt::format("from {} to {}", low, high));
}

Result<void> check(const ServeArguments& arguments) {
  for (const Result<void>& ok :
       {check_range("--port", arguments.port, 0, 65535), check_range("--speed", arguments.speed, 0.001, 1000),
        check_range("--grace", arguments.grace_s, 0, 86400),
        check_range("--stall", arguments.stall_s, 1, 86400),
        check_range("--max-body", arguments.max_body_mb, 0.001, 1024),
        check_range("--max-streams", arguments.max_streams, 1, 1000000),
        check_range("--output-tokens", arguments.output_tokens, 1, 1000000)}) {
    if (!ok) return ok;
  }
  if (arguments.kv_events_layout != "maps" && arguments.kv_events_layout != "arrays")
    return make_error("--kv-events-layout", fmt::format("'{}'", arguments.kv_events_layout),
                      "maps, as vLLM 0.24 and later publish, or arrays, as earlier ones");
  for (const char c : arguments.model_name) {
    if (static_cast<unsigned char>(c) <= ' ' || c == '"' || c == '\\')
      return make_error("--model-name",
                        fmt::format("'{}' has a space, a quote or a control character", arguments.model_name),
                        "a name like meta-llama/Llama-3.1-8B");
  }
  if (!arguments.api_key_env.empty() && std::getenv(arguments.api_key_env.c_str()) == nullptr)
    return make_error("--api-key-env=" + arguments.api_key_env, "this variable is not set",
                      "export " + arguments.api_key_env + "=...");
  return {};
}

serve::ServeOptions options_of(const ServeArguments& arguments) {
  serve::ServeOptions options;
  options.server.host = arguments.host;
  options.server.port = static_cast<uint16_t>(arguments.port);
  if (!arguments.api_key_env.empty()) options.server.api_key = std::getenv(arguments.api_key_env.c_str());
  options.server.model = arguments.model_name;
  options.server.body_bytes_max = static_cast<uint64_t>(arguments.max_body_mb * 1048576);
  options.server.streams_max = arguments.max_streams;
  options.server.stall = {std::llround(arguments.stall_s * 1e9)};
  options.server.grace = {std::llround(arguments.grace_s * 1e9)};
  options.server.output_tokens_default = arguments.output_tokens;
  options.server.token_log = arguments.token_log;
  options.speed = arguments.speed;
  options.kv_events = arguments.kv_events;
  options.kv_events_topic = arguments.kv_events_topic;
  if (arguments.kv_events_layout == "arrays") options.kv_events_layout = serve::KvEventLayout::kArrays;
  return options;
}

int run_serve(const ServeArguments& arguments) {
  if (const Result<void> ok = check(arguments); !ok) return complain(ok.error());
  const serve::ServeOptions options = options_of(arguments);
  tl::expected<Scenario, Errors> scenario = load_scenario(arguments.scenario, arguments.sets);
  if (!scenario) return complain(scenario.error());
  if (scenario->values.backend() != "sim")
    return complain(
        Error{scenario->where("backend"), "a server's times are simulated ones", "--set=backend=sim"});
  if (!can_simulate())
    return complain(Error{arguments.scenario, "this build has no simulated backend",
                          "install libsimgrid-dev and configure again"},
                    kExitNoBackend);
  // The trace is not run: a request of it that fits no engine matters only if a client sends it.
  scenario->values.mutable_replay()->set_oversized("reject");
  tl::expected<Composed, Errors> composed = compose(*scenario);
  if (!composed) return complain(composed.error());
  if (const Result<void> ok = serve::check_serve(*scenario, *composed, options); !ok)
    return complain(ok.error());
  const Result<void> served = serve::serve(*scenario, &*composed, options);
  return served ? kExitDone : complain(served.error(), kExitEnvironment);
}

#else

int run_serve(const ServeArguments&) {
  return complain(
      Error{"serve", "this build has no server",
            "install libboost-dev, libzmq3-dev and libmsgpack-dev, and configure and build again"},
      kExitNoBackend);
}

#endif

}  // namespace

void add_serve_command(CLI::App& app, int* status) {
  CLI::App* const command = app.add_subcommand("serve");
  const auto arguments = std::make_shared<ServeArguments>();
  command->add_option("SCENARIO", arguments->scenario)->required();
  command->add_option("--host", arguments->host);
  command->add_option("--port", arguments->port);
  command->add_option("--speed", arguments->speed);
  command->add_option("--model-name", arguments->model_name);
  command->add_option("--output-tokens", arguments->output_tokens);
  command->add_option("--api-key-env", arguments->api_key_env);
  command->add_option("--max-streams", arguments->max_streams);
  command->add_option("--max-body", arguments->max_body_mb);
  command->add_option("--stall", arguments->stall_s);
  command->add_option("--grace", arguments->grace_s);
  command->add_option("--kv-events", arguments->kv_events);
  command->add_option("--kv-events-topic", arguments->kv_events_topic);
  command->add_option("--kv-events-layout", arguments->kv_events_layout);
  command->add_option("--token-log", arguments->token_log);
  add_repeated(command, "--set", &arguments->sets);
  command->callback([arguments, status] { *status = run_serve(*arguments); });
}

}  // namespace kvtwin
