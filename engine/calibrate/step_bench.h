// StepBench runs and measures synthetic steps on its own engine. Calibrations consist of its measurements.
//
// A step is timed as CpuBackend times it (from the command to the tokens, host work included), or, with a
// timed bench, operation by operation, with events between them. Contexts are not computed: one page of real
// KV is copied to all pages, so that the data read is neither zero nor cached.

#ifndef KVTWIN_ENGINE_CALIBRATE_STEP_BENCH_H_
#define KVTWIN_ENGINE_CALIBRATE_STEP_BENCH_H_

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/cuda/cuda_engine.h"
#include "engine/cuda/packed/packed.h"
#include "models/catalog/llm.h"

namespace kvtwin::cuda {

// `tokens` above 1: a chunk, the same in every step. 1: a decode, whose context grows by one per step.
struct BenchRequest {
  uint32_t tokens = 1;
  uint32_t context = 0;
  bool samples = true;
};

// Durations in us, by step.
struct StepTimes {
  std::vector<double> wall;    // from the command to the tokens
  std::vector<double> warm;    // the same for the warm-up steps
  std::vector<double> issued;  // part of `wall` until the host had launched everything; timed benches only
  std::array<std::vector<double>, kOperations> operation;  // mean over the layers; timed benches only
  std::array<uint32_t, kOperations> count{};               // operations of a step
};

struct StepBenchConfig {
  uint32_t page_tokens = 16;
  uint32_t pages_gpu = 0;
  uint32_t pages_host = 0;
  uint32_t rows_max = 0;
  uint32_t samples_max = 0;
  std::vector<uint32_t> row_sizes{};
  bool timed = false;  // time operations as well
  bool graphs = true;  // replay decode steps; false: launch one by one, as engines with methods do
  std::optional<PackedOptions> packed{};  // KV in a packed format instead of bf16
};

class StepBench {
 public:
  // `model` and `llm` must outlive this.
  static Result<std::unique_ptr<StepBench>> make(const StepBenchConfig& config, const LlmSpec& llm,
                                                 const DeviceModel* model);
  ~StepBench();

  uint64_t entries_max() const;  // of all requests of one step
  uint32_t copies_max() const;   // pages of one copy
  // Whether the pages hold these requests and the tokens that they grow by while they are measured.
  bool fits(std::span<const BenchRequest> requests) const;

  // The same step `warm + steps` times; the first `warm` are not reported. `padded`: rows of matrix products.
  // REQUIRES: fits(requests), and they fit rows and samples.
  StepTimes measure(std::span<const BenchRequest> requests, uint32_t padded, uint32_t warm, uint32_t steps);

  // Runs the same step repeatedly, for at least `us` us in total; returns the duration of each.
  std::vector<double> series(std::span<const BenchRequest> requests, uint32_t padded, double us);

  // Duration in us of each copy of `pages` pages to the GPU or to the host, without concurrent work.
  // REQUIRES, here and below: pages <= copies_max().
  std::vector<double> copies(bool to_gpu, uint32_t pages, uint32_t times);
  // Copies in both directions at once: GB/s of each direction while both are active.
  struct BothWays {
    std::vector<double> in_gb_per_s, out_gb_per_s;
  };
  BothWays both_ways(uint32_t pages, uint32_t times);
  // Decode steps of `requests` while pages are copied in the given directions, and the GB/s of each
  // direction.
  struct Concurrent {
    StepTimes steps;
    std::vector<double> in_gb_per_s, out_gb_per_s;
    std::vector<double> copies;  // us of each copy
  };
  // The same, with one copy started before each step. The step should be the longer one.
  Concurrent copy_during_steps(std::span<const BenchRequest> requests, bool to_gpu, uint32_t pages,
                               uint32_t steps);
  Concurrent during_copies(std::span<const BenchRequest> requests, bool in, bool out, uint32_t pages,
                           uint32_t steps);

 private:
  struct Parts;
  explicit StepBench(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CALIBRATE_STEP_BENCH_H_
