#include "scenarios/serve/serve.h"

#include <fmt/format.h>
#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <optional>
#include <vector>

#include "engine/base/plural.h"
#include "engine/methods/scorer_traits.h"
#include "engine/methods/traits.h"
#include "scenarios/app/compose_parts.h"
#include "scenarios/serve/kv_events.h"
#include "scenarios/serve/server_metrics.h"

namespace kvtwin::serve {
namespace {

// Where the model has no window. Triggers are counted up to here.
constexpr uint32_t kOutputTokensMax = 1'000'000;

double unix_seconds() {
  const std::chrono::duration<double> since = std::chrono::system_clock::now().time_since_epoch();
  return since.count();
}

struct EventParts {
  KvEventSockets sockets;
  std::optional<KvEvents> events;
};

// Null if no events are asked for.
Result<std::unique_ptr<EventParts>> make_events(const ServeOptions& options, const RunOptions& run,
                                                const LiveClient& client) {
  if (options.kv_events.empty()) return nullptr;
  const auto& configs = run.engines;
  auto parts = std::make_unique<EventParts>();
  if (Result<void> ok = parts->sockets.bind(options.kv_events, options.kv_events_topic, configs.size()); !ok)
    return tl::unexpected<Error>(ok.error());
  KvEventSockets* const sockets = &parts->sockets;
  parts->events.emplace(configs, client,
                        [sockets, tokens = configs.front().page_tokens, layout = options.kv_events_layout](
                            EngineId engine, const KvEventBatch& batch) {
                          sockets->publish(engine,
                                           pack_batch(batch, unix_seconds(), tokens, raw(engine), layout));
                        });
  return parts;
}

void print_start(const Composed& composed, const ServeOptions& options, const ServerOptions& server,
                 uint16_t port, const EventParts* events) {
  const size_t engines = composed.options.engines.size();
  const std::string host = server.host.find(':') == std::string::npos ? server.host : "[" + server.host + "]";
  fmt::print("http://{}:{}/v1 serves {}: {} {} on {}, {} simulated {} a second\n", host, port, server.model,
             engines, plural(engines, "engine"), composed.device.name, options.speed,
             options.speed == 1 ? "second" : "seconds");
  if (events != nullptr) {
    for (const std::string& endpoint : events->sockets.endpoints())
      fmt::print("{} publishes KV events\n", endpoint);
  }
  std::fflush(stdout);
}

void print_counts(const ServerCounts& counts) {
  const uint64_t requests = counts.answered + counts.cancelled + counts.cut + counts.refused;
  fmt::print("{} {}: {} answered, {} cancelled by clients, {} cut by the stop, {} refused; {} {} sent\n",
             requests, plural(requests, "request"), counts.answered, counts.cancelled, counts.cut,
             counts.refused, counts.tokens, plural(counts.tokens, "token"));
}

}  // namespace

Result<void> check_serve(const Scenario& scenario, const Composed& composed, const ServeOptions& options) {
  if (Result<void> ok = check_host(options.server.host); !ok) return ok;
  if (options.kv_events.empty()) return {};
  const RunOptions& run = composed.options;
  const bool described = std::all_of(run.engines.begin(), run.engines.end(), [](CoreConfig config) {
    config.unit_tokens = config.page_tokens;
    return KvEvents::describes(config);
  });
  if (!described || run.prefill_engines > 0)
    return make_error("--kv-events",
                      fmt::format("{} has no prefix cache of whole pages on one GPU", scenario.path),
                      "serve it without events, or with policies that keep every entry in bf16 pages");
  return KvEventSockets::check(options.kv_events, run.engines.size());
}

Result<void> serve(const Scenario& scenario, Composed* composed, const ServeOptions& options) {
  ServerOptions server_options = options.server;
  if (server_options.model.empty()) server_options.model = composed->llm.name;
  // Prompts are identified by the page; the trace's hash blocks do not matter here.
  for (CoreConfig& config : composed->options.engines) config.unit_tokens = config.page_tokens;
  const CoreConfig& config = composed->options.engines.front();
  server_options.unit_tokens = config.unit_tokens;
  server_options.context_tokens_max = config.context_tokens_max;
  TraceReplies replies;
  if (Result<void> ok = read_trace(scenario, nullptr, &replies); !ok) return ok;

  const WallClock clock(options.speed);
  HttpServer server(server_options, clock, &replies);
  LiveClient client(
      clock,
      {.roles = precision_traits(config.policies.precision).by_tag,
       .spans = scorer_traits(config.policies.scorer).reads_roles,
       .output_tokens_max = config.context_tokens_max > 0 ? config.context_tokens_max : kOutputTokensMax,
       .front_end = composed->facts.front().front_end},
      [&server] { server.notify(); });
  ServerMetrics metrics(server_options.model, composed->options.engines.size(), client);
  if (Result<void> ok = server.listen(); !ok) return ok;
  const auto events = make_events(options, composed->options, client);
  if (!events) return tl::unexpected<Error>(events.error());

  std::vector<Observer*> observers = {&client, &metrics};
  if (*events) observers.push_back(&*(*events)->events);
  server.start(&client, [&metrics] { return metrics.text(); });
  print_start(*composed, options, server_options, server.port(), events->get());
  prctl(PR_SET_TIMERSLACK, 1);
  const Result<SimulatedEnd> end = simulate(scenario, composed, &client, observers);
  if (!end) server.stop();
  server.join();
  if (!end) return tl::unexpected<Error>(end.error());
  if (*events) (*events)->events->clear();
  print_counts(server.counts());
  return {};
}

}  // namespace kvtwin::serve
