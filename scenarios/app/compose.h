// compose() makes what a run needs from a scenario: the Client with its trace, one CoreConfig per engine,
// cost model, memory and node. Nothing runs yet; whatever can be found wrong without running, is.

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
#include "models/cost_tables/measured_device.h"
#include "scenarios/load/scenario.h"
#include "scenarios/output/timeline.h"
#include "traces/format/trace_tokens.h"
#include "traces/replay/replay.h"

namespace kvtwin {

namespace sim {
class StepWatcher;
}

// Engines that are alike, and where they run.
struct EngineKind {
  DeviceSpec device;
  NodeSpec node;
  uint32_t node_gpus = 0, nodes = 0;  // in use or not
  uint32_t engines = 0, gpus_each = 0;
  MemoryPlan memory;
  std::unique_ptr<CostModel> cost;  // of the first kind: null, it is Composed::cost
};

// Is told every token that engines sample which compute values, under either clock.
class SampleWatcher {
 public:
  virtual ~SampleWatcher() = default;
  // `token` is what the last row before `position` says, the largest of `logits` ([vocab], valid during the
  // request).
  virtual void sampled(RequestId request, uint32_t position, uint32_t token,
                       std::span<const float> logits) = 0;
};

struct Composed {
  LlmSpec llm;
  DeviceSpec device;
  NodeSpec node;
  uint32_t gpus = 0;          // of one node, in use or not
  MemoryPlan memory;          // of one GPU; no terms if it could not be planned
  bool memory_given = false;  // gpu_pages came from the scenario, not from `memory`
  RunOptions options;
  std::vector<EngineFacts> facts;  // per engine
  std::unique_ptr<ReplayClient> client;
  std::unique_ptr<TraceTokens> tokens;         // null: the trace gives no ids of the model's vocabulary
  std::unique_ptr<CostModel> cost;             // engines that are alike share it, and what it memoises
  std::vector<EngineKind> kinds;               // in engine order; what stands above is the first one's
  OutcomeLog* outcome_log = nullptr;           // where to write down what the data decided; null: nowhere
  std::vector<std::string> notes;              // sentences for the user and the result
  uint32_t oversized_requests = 0;             // that will be rejected
  std::optional<CompressionWork> compression;  // what `cost` adds for the scorer; nothing: it adds nothing
  std::optional<MeasuredMethod> method;        // what `cost` knows of the policies from calibration
  // Of the simulated backend: is shown every step, each priced through its graph; null: nobody (explain.h).
  sim::StepWatcher* watcher = nullptr;
  SampleWatcher* samples = nullptr;  // of backends that compute values; null: nobody
  // Under the wall clock every step is said to take so long, whatever it takes: results of any machine are
  // alike.
  std::optional<Duration> step_time{};
};

// `on_session` is called for every session of the trace as it is read: progress.
tl::expected<Composed, Errors> compose(const Scenario& scenario,
                                       const std::function<void()>& on_session = {});

// Which kind of engine `engine` is, and its place among them. REQUIRES: engine < options.engines.size().
struct PlaceInKind {
  size_t kind = 0;
  uint32_t index = 0;
};
PlaceInKind place_in_kind(const Composed& composed, size_t engine);

// The parts of compose(), for commands that need only some.
// Model, device, node, memory and configurations; no trace, no cost model.
tl::expected<Composed, Errors> compose_engines(const Scenario& scenario);

struct SimulatedEnd {
  RunEnd end;
  std::array<double, kEvidenceKinds> evidence{};  // fraction of device time, by Evidence
  // Of a backend that computes values.
  uint64_t tokens_computed = 0;
  uint64_t samples_digest = 0;
  // In-step retrieval, over all engines (results: v1::Retrieval).
  struct Retrieval {
    std::string outcomes;  // empty: every step read everything
    uint64_t pages_now = 0, pages_next = 0, heads_corrected = 0;
    uint64_t heads_chose = 0, pages_chosen = 0;
    uint64_t bytes_in = 0, bytes_out = 0, steps_expanded = 0;
    Duration exposed{}, hidden{};
  };
  Retrieval retrieval;
  // Where a partition was priced: time of attention over time of even shares; 0: none was.
  double attention_slowdown = 0;
  // Where compressions are priced, over all engines; count 0: nothing was compressed.
  struct CompressionTimes {
    bool priced = false;
    uint64_t count = 0;
    std::array<double, kCompressionParts> seconds{};  // by CompressionPart
    double prompt_steps_s = 0, in_prompt_steps_s = 0;
  };
  CompressionTimes compression;
  std::string retained_outcomes;  // who said what compressions keep; empty: nothing is compressed
};

// False if this build has no simulator.
bool can_simulate();
// Whether the scenario's backend needs the simulator: all do but engines that compute under the wall clock.
bool needs_simulator(const Scenario& scenario);
// Runs in the simulated world. `values`, by engine, says what the data decided; empty: behaviour models do.
// REQUIRES: can_simulate(). Errors: what the simulated node cannot be.
Result<SimulatedEnd> simulate(const Scenario& scenario, Composed* composed, Client* client,
                              const std::vector<Observer*>& observers,
                              const std::vector<OutcomeSource*>& values = {});

// The engines of a run that compute values, with their weights and tokens.
class EngineBackend {
 public:
  virtual ~EngineBackend() = default;
  // The Client to run with instead of `client`: the engines must know what requests' tokens are.
  virtual Client* watch(Client* client) = 0;
  // Under the scenario's clock. `client` is what watch() gave, perhaps watched by others.
  virtual Result<SimulatedEnd> run(const Scenario& scenario, Composed* composed, Client* client,
                                   const std::vector<Observer*>& observers) = 0;
  // How long the operations of a step took; null: this backend does not time them.
  virtual OperationsOfStep operations() { return {}; }
  // The same of all steps, as a table; "": likewise.
  virtual std::string operations_csv() const { return {}; }
};

// Null if nothing is computed in the scenario's world. `timeline`: operations() will be asked for every step.
// Errors: a model or a policy that its engine does not compute, a checkpoint that is none.
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
