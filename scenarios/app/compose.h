// compose() builds what a run needs from a scenario: the Client with its trace, one CoreConfig per engine,
// cost model, memory and node. It starts nothing. It reports every error that can be found without running.

#ifndef KVTWIN_SCENARIOS_APP_COMPOSE_H_
#define KVTWIN_SCENARIOS_APP_COMPOSE_H_

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/metrics/metrics.h"
#include "engine/recorder/recorder_outcomes.h"
#include "engine/runtime/driver.h"
#include "models/catalog/device.h"
#include "models/catalog/llm.h"
#include "models/catalog/memory_model.h"
#include "models/cost/compression_cost.h"
#include "models/cost/cost_model.h"
#include "models/cost/host_time.h"
#include "models/cost_tables/measured_device.h"
#include "models/serving/server_profile.h"
#include "scenarios/app/chat_prompts.h"
#include "scenarios/app/prompt_tagger.h"
#include "scenarios/load/scenario.h"
#include "scenarios/output/timeline.h"
#include "traces/format/trace_tokens.h"
#include "traces/replay/replay.h"

namespace kvtwin {

namespace sim {
class StepWatcher;
}

// Engines of equal hardware, and the nodes that they run on.
struct EngineKind {
  DeviceSpec device;
  NodeSpec node;
  uint32_t node_gpus = 0, nodes = 0;  // of one node and in all; unused ones included
  uint32_t engines = 0, gpus_each = 0;
  MemoryPlan memory;
  std::unique_ptr<CostModel> cost;  // null for the first kind, which uses Composed::cost
};

// Observes every token that value-computing engines sample, under either clock.
class SampleWatcher {
 public:
  virtual ~SampleWatcher() = default;
  // `token` is the argmax of `logits` ([vocab], valid during the call), which the query token at
  // `position - 1` produced.
  virtual void sampled(RequestId request, uint32_t position, uint32_t token,
                       std::span<const float> logits) = 0;
};

struct Composed {
  LlmSpec llm;
  DeviceSpec device;
  NodeSpec node;
  uint32_t gpus = 0;          // of one node, unused ones included
  MemoryPlan memory;          // of one GPU; it has no terms if it could not be planned
  bool memory_given = false;  // gpu_pages comes from the scenario, not from `memory`
  RunOptions options;
  std::vector<EngineFacts> facts;  // per engine
  std::unique_ptr<ReplayClient> client;
  std::unique_ptr<TraceTokens> tokens;         // null: no token ids of the model's vocabulary are known
  std::unique_ptr<ChatPrompts> chat;           // null: the scenario names no chat template
  std::unique_ptr<PromptTagger> tagger;        // null: no policy reads roles that token ids give
  std::unique_ptr<CostModel> cost;             // shared by equal engines, with its memoised prices
  HostPlanning host_planning;                  // measured in wall-clock runs; zeros: not measured
  std::vector<EngineKind> kinds;               // in engine order; device, node, memory, cost are kinds[0]'s
  OutcomeLog* outcome_log = nullptr;           // records data-dependent outcomes; null: they are not recorded
  uint32_t window_of_model = 0;                // before model.context_window; 0: that is not given
  std::vector<std::string> notes;              // sentences for the user and for the result
  uint32_t oversized_requests = 0;             // requests that will be rejected
  std::optional<CompressionWork> compression;  // what `cost` adds for the scorer; nullopt: nothing
  std::optional<MeasuredOperations> operations;  // what `cost` takes for the policies from calibration
  std::optional<ServerProfile> server;           // what `cost` takes from a real server's log
  // Simulated backend: receives every step, each priced through its step graph; null: none (explain.h).
  sim::StepWatcher* watcher = nullptr;
  SampleWatcher* samples = nullptr;  // backends that compute values; null: none
  // Wall clock: every step reports this duration instead of the measured one, so that results are equal on
  // any machine.
  std::optional<Duration> step_time{};
};

// Calls `on_session` for every session of the trace as it is read, to show progress.
tl::expected<Composed, Errors> compose(const Scenario& scenario,
                                       const std::function<void()>& on_session = {});

// The part of compose() that builds model, device, node, memory and engine configurations, without trace and
// cost model.
tl::expected<Composed, Errors> compose_engines(const Scenario& scenario);

struct SimulatedEnd {
  RunEnd end;
  std::array<double, kEvidenceKinds> evidence{};  // fraction of device time, by Evidence
  // Only of backends that compute values.
  uint64_t tokens_computed = 0;
  uint64_t samples_digest = 0;
  // In-step retrieval, summed over all engines (results: v1::Retrieval).
  struct Retrieval {
    std::string outcomes;  // source of the outcomes; empty: every step reads the whole context
    uint64_t pages_now = 0, pages_next = 0, heads_corrected = 0;
    uint64_t heads_chose = 0, pages_chosen = 0;
    uint64_t bytes_in = 0, bytes_out = 0, steps_expanded = 0;
    Duration exposed{}, hidden{};
  };
  Retrieval retrieval;
  // Attention time relative to evenly split work, where a partition is priced; 0: none is priced.
  double attention_slowdown = 0;
  // Priced compressions, summed over all engines; count 0: nothing was compressed.
  struct CompressionTimes {
    bool priced = false;
    uint64_t count = 0;
    std::array<double, kCompressionParts> seconds{};  // by CompressionPart
    double prompt_steps_s = 0, in_prompt_steps_s = 0;
  };
  CompressionTimes compression;
  std::string retained_outcomes;  // source of the retained counts; empty: nothing is compressed
};

// False if this build has no simulator.
bool can_simulate();
// True unless the scenario's engines compute values under the wall clock.
bool needs_simulator(const Scenario& scenario);
// Runs the simulated backend. `values` supplies the data-dependent outcomes by engine; if it is empty,
// behaviour models draw them.
// REQUIRES: can_simulate(). Errors: a node that the simulator cannot represent.
Result<SimulatedEnd> simulate(const Scenario& scenario, Composed* composed, Client* client,
                              const std::vector<Observer*>& observers,
                              const std::vector<OutcomeSource*>& values = {});

// The value-computing engines of a run, with their weights and tokens.
class EngineBackend {
 public:
  virtual ~EngineBackend() = default;
  // Returns the Client to run with instead of `client`, through which the engines learn the requests' tokens.
  virtual Client* watch(Client* client) = 0;
  // Runs under the scenario's clock. `client` is what watch() returned, or a wrapper of it.
  virtual Result<SimulatedEnd> run(const Scenario& scenario, Composed* composed, Client* client,
                                   const std::vector<Observer*>& observers) = 0;
  // Returns how long the operations of a step took; null: this backend does not time them.
  virtual OperationsOfStep operations() { return {}; }
  // The same for all steps, as a CSV table; "": this backend does not time operations.
  virtual std::string operations_csv() const { return {}; }
};

// Returns null if the scenario's backend computes no values. `timeline`: operations() is called for every
// step.
// Errors: a model or a policy that the engine does not compute; an invalid checkpoint.
Result<std::unique_ptr<EngineBackend>> make_engine_backend(const Scenario& scenario, const Composed& composed,
                                                           bool timeline);

// The CPU engines of a run (scenarios/app/compose_cpu.cc).
class CpuEngineBackend final : public EngineBackend {
 public:
  static Result<std::unique_ptr<EngineBackend>> make(const Scenario& scenario, const Composed& composed);
  ~CpuEngineBackend() override;

  Client* watch(Client* client) override;
  Result<SimulatedEnd> run(const Scenario& scenario, Composed* composed, Client* client,
                           const std::vector<Observer*>& observers) override;

 private:
  struct Parts;
  explicit CpuEngineBackend(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_APP_COMPOSE_H_
