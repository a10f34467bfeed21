#include "scenarios/serve/server_metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>

namespace kvtwin::serve {
namespace {

// vLLM's buckets (vllm/v1/metrics/loggers.py).
constexpr std::array kTtft = {0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,  0.25,  0.5,   0.75,
                              1.0,   2.5,   5.0,  7.5,  10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0};
constexpr std::array kTpot = {0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2,  0.3,  0.4, 0.5,
                              0.75, 1.0,   2.5,  5.0,   7.5, 10.0, 20.0, 40.0, 80.0};
constexpr std::array kLatency = {0.3,  0.5,  0.8,  1.0,  1.5,   2.0,   2.5,   5.0,   10.0,   15.0,  20.0,
                                 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0};
constexpr std::array kTokens = {1.0,   2.0,    5.0,    10.0,   20.0,    50.0,    100.0,   200.0,
                                500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0, 50000.0, 100000.0};
constexpr std::array kIteration = {1.0,   8.0,    16.0,   32.0,   64.0,   128.0,  256.0,
                                   512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0};

double seconds(Instant from, Instant to) { return static_cast<double>((to - from).ns) / 1e9; }

void head(const char* name, const char* type, const char* help, std::string* out) {
  fmt::format_to(std::back_inserter(*out), "# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

}  // namespace

void Histogram::add(double value) {
  const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
  ++counts_[static_cast<size_t>(bucket)];
  sum_ += value;
}

void Histogram::write(const std::string& name, const std::string& labels, std::string* out) const {
  uint64_t below = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    below += counts_[i];
    std::string bound = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    if (i < bounds_.size() && bound.find('.') == std::string::npos) bound += ".0";  // as Python writes it
    fmt::format_to(std::back_inserter(*out), "{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, bound, below);
  }
  fmt::format_to(std::back_inserter(*out), "{0}_sum{{{1}}} {2}\n{0}_count{{{1}}} {3}\n", name, labels, sum_,
                 below);
}

ServerMetrics::Engine::Engine()
    : ttft(kTtft),
      itl(kTpot),
      tpot(kTpot),
      e2e(kLatency),
      queue(kLatency),
      prefill(kLatency),
      decode(kLatency),
      inference(kLatency),
      prompt(kTokens),
      generation(kTokens),
      iteration(kIteration) {}

ServerMetrics::ServerMetrics(std::string model, size_t engines, const LiveClient& client)
    : model_(escaped(model)), client_(client), engines_(engines) {}

void ServerMetrics::saw_event(Instant now, EngineId engine, const Event& event) {
  const auto* const ready = std::get_if<RequestReady>(&event);
  if (ready == nullptr) return;
  const std::lock_guard lock(mutex_);
  Live& live = live_[raw(ready->request)];
  live.engine = engine;  // after a handover, the decoding one
  if (ready->emitted > 0) return;
  const LiveRequest* const request = client_.find(ready->request);
  live.queued = now;
  live.arrived = request == nullptr ? now : std::min(request->arrived, now);
  live.stops = request != nullptr && request->stops;
  live.prompt_tokens = ready->prompt_tokens;
}

void ServerMetrics::saw_command(Instant now, const Command& command) {
  const std::lock_guard lock(mutex_);
  if (const auto* const launch = std::get_if<LaunchStep>(&command)) return launched(now, *launch);
  if (const auto* const tokens = std::get_if<TokensEmitted>(&command)) return emitted(now, *tokens);
  if (const auto* const finish = std::get_if<FinishRequest>(&command)) return finished(now, *finish);
  if (const auto* const reject = std::get_if<RejectRequest>(&command)) live_.erase(raw(reject->request));
  if (const auto* const drop = std::get_if<DropRequestState>(&command);
      drop != nullptr && drop->reason == DropRequestState::Reason::kPreempted)
    ++engines_[raw(drop->engine)].preemptions;
}

void ServerMetrics::launched(Instant now, const LaunchStep& launch) {
  Engine& engine = engines_[raw(launch.engine)];
  for (uint32_t i = 0; i < launch.repeat; ++i) engine.iteration.add(launch.tokens);
  for (const PlanEntry& entry : launch.entries) {
    if (!entry.first) continue;
    const auto found = live_.find(raw(entry.request));
    if (found == live_.end() || found->second.started) continue;
    Live& live = found->second;
    live.started = true;
    live.admitted = now;
    engine.queries += live.prompt_tokens;
    engine.hits += std::min(entry.context, live.prompt_tokens);
    engine.queue.add(seconds(live.queued, now));
  }
}

void ServerMetrics::emitted(Instant now, const TokensEmitted& tokens) {
  const auto found = live_.find(raw(tokens.request));
  if (found == live_.end()) return;
  Live& live = found->second;
  Engine& engine = engines_[raw(live.engine)];
  if (live.tokens == 0) {
    live.first = live.last = now;
    engine.prompt_tokens += live.prompt_tokens;
    engine.ttft.add(seconds(live.arrived, now));
    live.tokens = 1;
    ++engine.generation_tokens;
  }
  if (tokens.tokens <= live.tokens) return;
  engine.itl.add(seconds(live.last, now));
  engine.generation_tokens += tokens.tokens - live.tokens;
  live.tokens = tokens.tokens;
  live.last = now;
}

void ServerMetrics::finished(Instant now, const FinishRequest& finish) {
  const auto found = live_.find(raw(finish.request));
  if (found == live_.end()) return;
  if (!finish.cancelled) emitted(now, {finish.engine, finish.request, finish.tokens});
  const Live live = found->second;
  live_.erase(found);
  Engine& engine = engines_[raw(live.engine)];
  ++engine.ended[finish.cancelled ? 2 : live.stops ? 0 : 1];
  if (finish.cancelled) return;
  engine.e2e.add(seconds(live.arrived, now));
  engine.prefill.add(seconds(live.admitted, live.first));
  engine.decode.add(seconds(live.first, now));
  engine.inference.add(seconds(live.admitted, now));
  engine.prompt.add(live.prompt_tokens);
  engine.generation.add(live.tokens);
  if (live.tokens > 1) engine.tpot.add(seconds(live.first, live.last) / (live.tokens - 1));
}

void ServerMetrics::saw_state(Instant, EngineId engine, const Core& core) {
  const CoreGauges gauges = core.gauges();
  const std::lock_guard lock(mutex_);
  engines_[raw(engine)].gauges = gauges;
}

std::string ServerMetrics::labels(size_t engine) const {
  return fmt::format("engine=\"{}\",model_name=\"{}\"", engine, model_);
}

std::string ServerMetrics::text() const {
  std::string out;
  const double lag = static_cast<double>(client_.lag().ns) / 1e9;
  const std::lock_guard lock(mutex_);
  write_gauges(&out);
  write_counters(&out);
  write_histograms(&out);
  head("kvtwin:simulation_lag_seconds", "gauge", "How far the simulation is behind the wall clock.", &out);
  fmt::format_to(std::back_inserter(out), "kvtwin:simulation_lag_seconds {}\n", lag);
  return out;
}

void ServerMetrics::write_gauges(std::string* out) const {
  struct Row {
    const char *name, *help;
    std::function<double(const CoreGauges&)> value;
  };
  const Row rows[] = {
      {"vllm:num_requests_running", "Number of requests in model execution batches.",
       [](const CoreGauges& g) { return double(g.requests_running); }},
      {"vllm:num_requests_waiting", "Number of requests waiting to be processed.",
       [](const CoreGauges& g) { return double(g.requests_waiting); }},
      {"vllm:kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", [](const CoreGauges& g) {
         return g.pages_gpu_total == 0 ? 0 : double(g.pages_gpu_held) / g.pages_gpu_total;
       }}};
  for (const Row& row : rows) {
    head(row.name, "gauge", row.help, out);
    for (size_t i = 0; i < engines_.size(); ++i)
      fmt::format_to(std::back_inserter(*out), "{}{{{}}} {}\n", row.name, labels(i),
                     row.value(engines_[i].gauges));
  }
}

void ServerMetrics::write_counters(std::string* out) const {
  struct Row {
    const char *name, *help;
    uint64_t Engine::*value;
  };
  const Row rows[] = {
      {"vllm:prefix_cache_queries_total", "Prefix cache queries, in terms of number of queried tokens.",
       &Engine::queries},
      {"vllm:prefix_cache_hits_total", "Prefix cache hits, in terms of number of cached tokens.",
       &Engine::hits},
      {"vllm:num_preemptions_total", "Cumulative number of preemption from the engine.",
       &Engine::preemptions},
      {"vllm:prompt_tokens_total", "Number of prefill tokens processed.", &Engine::prompt_tokens},
      {"vllm:generation_tokens_total", "Number of generation tokens processed.", &Engine::generation_tokens}};
  for (const Row& row : rows) {
    head(row.name, "counter", row.help, out);
    for (size_t i = 0; i < engines_.size(); ++i)
      fmt::format_to(std::back_inserter(*out), "{}{{{}}} {}\n", row.name, labels(i), engines_[i].*row.value);
  }
  head("vllm:request_success_total", "counter", "Count of successfully processed requests.", out);
  const std::array reasons = {"stop", "length", "abort"};
  for (size_t i = 0; i < engines_.size(); ++i) {
    for (size_t reason = 0; reason < reasons.size(); ++reason)
      fmt::format_to(std::back_inserter(*out), "vllm:request_success_total{{{},finished_reason=\"{}\"}} {}\n",
                     labels(i), reasons[reason], engines_[i].ended[reason]);
  }
}

void ServerMetrics::write_histograms(std::string* out) const {
  struct Row {
    const char *name, *help;
    Histogram Engine::*value;
  };
  const Row rows[] = {
      {"vllm:iteration_tokens_total", "Histogram of number of tokens per engine_step.", &Engine::iteration},
      {"vllm:time_to_first_token_seconds", "Histogram of time to first token in seconds.", &Engine::ttft},
      {"vllm:inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", &Engine::itl},
      // The name of the same before vLLM 0.11.
      {"vllm:time_per_output_token_seconds", "Histogram of time per output token in seconds.", &Engine::itl},
      {"vllm:request_time_per_output_token_seconds",
       "Histogram of time per output token of a request in seconds.", &Engine::tpot},
      {"vllm:e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", &Engine::e2e},
      {"vllm:request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.",
       &Engine::queue},
      {"vllm:request_inference_time_seconds", "Histogram of time spent in RUNNING phase for request.",
       &Engine::inference},
      {"vllm:request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.",
       &Engine::prefill},
      {"vllm:request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.",
       &Engine::decode},
      {"vllm:request_prompt_tokens", "Number of prefill tokens processed.", &Engine::prompt},
      {"vllm:request_generation_tokens", "Number of generation tokens processed.", &Engine::generation}};
  for (const Row& row : rows) {
    head(row.name, "histogram", row.help, out);
    for (size_t i = 0; i < engines_.size(); ++i) (engines_[i].*row.value).write(row.name, labels(i), out);
  }
}

}  // namespace kvtwin::serve
