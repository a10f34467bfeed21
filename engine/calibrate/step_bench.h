// StepBench runs hand-made steps on an engine of its own and measures them: what calibration is made of.
//
// A step is timed as CpuBackend times it (from the command to the tokens, host work included), and on another
// engine operation by operation, with events between them. Contexts are not computed: one page of real KV is
// copied to all pages, so that what is read is neither zeros nor in the cache.

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

// `tokens` above 1: a chunk, the same in every step. 1: a decode, whose context grows.
struct BenchRequest {
  uint32_t tokens = 1;
  uint32_t context = 0;
  bool samples = true;
};

// In us, by step.
struct StepTimes {
  std::vector<double> wall;    // from the command to the tokens
  std::vector<double> warm;    // the same of the steps before
  std::vector<double> issued;  // of that, until the host had started everything; of timed benches
  std::array<std::vector<double>, kOperations> operation;  // mean of one, over the layers; of timed benches
  std::array<uint32_t, kOperations> count{};               // operations of a step
};

struct StepBenchConfig {
  uint32_t page_tokens = 16;
  uint32_t pages_gpu = 0;
  uint32_t pages_host = 0;
  uint32_t rows_max = 0;
  uint32_t samples_max = 0;
  std::vector<uint32_t> row_sizes{};
  bool timed = false;  // operations, too
  bool graphs = true;  // decode steps are replayed; else started one by one, as methods' steps are
  std::optional<PackedOptions> packed{};  // KV in another format than bf16
};

class StepBench {
 public:
  // `model` and `llm` must outlive this.
  static Result<std::unique_ptr<StepBench>> make(const StepBenchConfig& config, const LlmSpec& llm,
                                                 const DeviceModel* model);
  ~StepBench();

  uint64_t entries_max() const;  // of all requests of one step
  // Whether the pages hold these requests and the tokens that they grow by while they are measured.
  bool fits(std::span<const BenchRequest> requests) const;

  // The same step `warm + steps` times; the first `warm` are not told. `padded`: rows of matrix products.
  // REQUIRES: fits(requests), and they fit rows and samples.
  StepTimes measure(std::span<const BenchRequest> requests, uint32_t padded, uint32_t warm, uint32_t steps);

  // The same step again and again, for at least so many us of steps: what each took.
  std::vector<double> series(std::span<const BenchRequest> requests, uint32_t padded, double us);

  // In us, each: `pages` pages to the host (or back), alone.
  std::vector<double> copies(bool to_gpu, uint32_t pages, uint32_t times);
  // Both directions at once, for as long as both have something to move: GB/s of each.
  struct BothWays {
    std::vector<double> in_gb_per_s, out_gb_per_s;
  };
  BothWays both_ways(uint32_t pages, uint32_t times);
  // The decode step of `requests` while pages are copied in the directions asked for, and how many GB/s they
  // reached meanwhile, per direction.
  struct Concurrent {
    StepTimes steps;
    std::vector<double> in_gb_per_s, out_gb_per_s;
    std::vector<double> copies;  // us of each
  };
  // The same, with one copy begun before each step, which should be the longer one of both.
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
