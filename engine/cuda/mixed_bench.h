// MixedBench runs steps of calls whose cells are in int2 and int4 pages by tag (dual_cache.h) and measures
// them as StepBench does. Which cells such a call has is not said by its pages, so its prompt is really
// computed.

#ifndef KVTWIN_ENGINE_CUDA_MIXED_BENCH_H_
#define KVTWIN_ENGINE_CUDA_MIXED_BENCH_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cuda/cuda_engine.h"
#include "models/llm.h"

namespace kvtwin::cuda {

// Which cells of prompts get 2 bits: none, all, or every other page of them.
enum class NarrowCells : uint8_t { kNone, kAll, kHalf };

struct MixedBenchConfig {
  uint32_t page_tokens = 32, group = 32;
  uint32_t pages = 0;  // of either format
  uint32_t rows_max = 0, samples_max = 0;
  std::vector<uint32_t> row_sizes{};
};

class MixedBench {
 public:
  // `model` and `llm` must outlive this.
  static Result<std::unique_ptr<MixedBench>> make(const MixedBenchConfig& config, const LlmSpec& llm,
                                                  const DeviceModel* model);
  ~MixedBench();

  // So many calls without a cell; ends those before.
  void begin(uint32_t calls, NarrowCells narrow);
  // The next tokens of one call's prompt, without a sample, in us. REQUIRES: `tokens` is a multiple of two
  // pages, and nothing was decoded beside whole pages of them.
  double chunk(uint32_t call, uint32_t tokens);
  // One token of the first `calls`, in us.
  double decode(uint32_t calls);
  uint32_t context(uint32_t call) const;
  uint32_t narrow(uint32_t call) const;  // of these, cells in 2 bits

 private:
  struct Parts;
  explicit MixedBench(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_MIXED_BENCH_H_
