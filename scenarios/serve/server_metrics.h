// ServerMetrics counts what vLLM's /metrics reports, under vLLM's names
// (https://docs.vllm.ai/en/stable/usage/metrics/), from the simulation's events. All times are simulated
// ones: with --speed=10 a second of the wall clock has ten of them.

#ifndef KVTWIN_SCENARIOS_SERVE_SERVER_METRICS_H_
#define KVTWIN_SCENARIOS_SERVE_SERVER_METRICS_H_

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "engine/runtime/driver.h"
#include "scenarios/serve/live_client.h"

namespace kvtwin::serve {

// Of Prometheus: cumulative buckets, sum and count.
class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds) : bounds_(bounds), counts_(bounds.size() + 1) {}
  void add(double value);
  void write(const std::string& name, const std::string& labels, std::string* out) const;

 private:
  std::span<const double> bounds_;
  std::vector<uint64_t> counts_;  // by bucket, not cumulated; the last is +Inf
  double sum_ = 0;
};

class ServerMetrics final : public Observer {
 public:
  // `client` must outlive this.
  ServerMetrics(std::string model, size_t engines, const LiveClient& client);

  void saw_event(Instant now, EngineId engine, const Event& event) override;
  void saw_command(Instant now, const Command& command) override;
  void saw_state(Instant now, EngineId engine, const Core& core) override;

  // Prometheus' text format. By any thread.
  std::string text() const;

 private:
  struct Live {
    EngineId engine{};
    Instant arrived{}, queued{}, admitted{}, first{}, last{};
    uint32_t prompt_tokens = 0, tokens = 0;
    bool started = false, stops = false;
  };
  struct Engine {
    CoreGauges gauges;
    uint64_t prompt_tokens = 0, generation_tokens = 0, queries = 0, hits = 0, preemptions = 0;
    std::array<uint64_t, 3> ended{};  // stop, length, abort
    Histogram ttft, itl, tpot, e2e, queue, prefill, decode, inference, prompt, generation, iteration;
    Engine();
  };

  void launched(Instant now, const LaunchStep& launch);
  void emitted(Instant now, const TokensEmitted& emitted);
  void finished(Instant now, const FinishRequest& finished);
  void write_gauges(std::string* out) const;
  void write_counters(std::string* out) const;
  void write_histograms(std::string* out) const;
  std::string labels(size_t engine) const;

  const std::string model_;
  const LiveClient& client_;
  mutable std::mutex mutex_;
  std::vector<Engine> engines_;
  std::unordered_map<uint32_t, Live> live_;  // by request
};

}  // namespace kvtwin::serve

#endif  // KVTWIN_SCENARIOS_SERVE_SERVER_METRICS_H_
