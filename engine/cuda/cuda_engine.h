// CudaEngine performs the steps of one serving engine on a GPU.
//
// Like CpuEngine it is an OutcomeSource: asked for single steps in order, it keeps no time, and what it
// computes does not depend on who does (cpu_backend.h measures, the simulated backend prices). What lies in
// pages is its KvCache's business (kv_cache.h). A step is: work lists up in one copy, all layers, sampled
// tokens down, one wait.

#ifndef KVTWIN_ENGINE_CUDA_CUDA_ENGINE_H_
#define KVTWIN_ENGINE_CUDA_CUDA_ENGINE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "engine/common/request_tokens.h"
#include "engine/cuda/device/operation_log.h"
#include "engine/cuda/owned_cache.h"
#include "engine/runtime/forced_outcomes.h"
#include "models/weights/weights.h"

namespace kvtwin::cuda {

struct CudaEngineConfig {
  EngineId engine{};
  uint32_t page_tokens = 16;
  uint32_t pages_gpu = 0;    // pages [0, pages_gpu) of the address space
  uint32_t pages_host = 0;   // behind them, in pinned memory
  uint32_t rows_max = 0;     // tokens of one step
  uint32_t samples_max = 0;  // requests of one step
  // Numbers of rows that matrix products will run on (CoreConfig::capture_sizes): all is made ready for them.
  std::vector<uint32_t> row_sizes{};
  cpu::Decoding decoding = cpu::Decoding::kForced;
  std::vector<uint32_t> end_tokens{};  // greedy: sampling one ends the request
  // Copies between tiers run concurrently with the steps that follow, until copy_time() is called; else
  // before them.
  bool concurrent_copies = false;
  bool poison = false;          // pages are filled with NaN when they are granted: tests
  OperationLog* log = nullptr;  // null: operations are not timed
  // So many shapes of decode steps are kept as CUDA graphs (step_graphs.h); operations that are timed or
  // listed never are.
  uint32_t graphs_max = 64;
  // Is given the operations of every step as they were started; empty: they are not listed.
  std::function<void(const LaunchStep& launch, uint32_t offset, const StepList& issued)> issued{};
};

// Whether there is a GPU that the kernels run on. Says what is there instead.
Result<void> check_gpu();

class DeviceWeights;

// A model on the GPU, for all engines.
class DeviceModel {
 public:
  // Wrong: no room, or a geometry that the kernels do not take.
  static Result<std::unique_ptr<DeviceModel>> make(const ModelWeights& weights);
  ~DeviceModel();
  const DeviceWeights& weights() const { return *weights_; }

 private:
  explicit DeviceModel(std::unique_ptr<DeviceWeights> weights);
  std::unique_ptr<DeviceWeights> weights_;
};

class CudaEngine final : public ForcibleSource {
 public:
  // `model` and `tokens` must outlive this. `cache`: null is the identity of every axis (paged_cache.h).
  // Errors: no room for that many pages.
  static Result<std::unique_ptr<CudaEngine>> make(const CudaEngineConfig& config, const DeviceModel* model,
                                                  const cpu::TokenIds* tokens, OwnedCache cache = nullptr);
  ~CudaEngine() override;

  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override;
  void notify(const Command& command) override;
  void force_outcomes(const DataOutcomes* given) override;
  // Waits for a copy that was asked for, and says how long it took. REQUIRES: concurrent_copies; once per
  // copy.
  Duration copy_time(TransferId transfer);

  struct Sample {
    RequestId request{};
    uint32_t position = 0;  // of the token that was sampled
    uint32_t token = 0;     // the largest logit, whatever the decoding
  };
  // Of the last step, one per entry that samples, in their order.
  std::span<const Sample> samples() const;
  std::vector<float> logits() const;  // [samples().size()][vocab]; copied from the GPU

  uint64_t tokens_computed() const;
  uint64_t graph_replays() const;
  Duration issued() const;          // what starting the last step's work took the host
  uint64_t samples_digest() const;  // cpu::RequestTokens::digest

 private:
  struct Parts;
  explicit CudaEngine(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_CUDA_ENGINE_H_
