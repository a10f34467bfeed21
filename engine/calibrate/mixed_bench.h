// MixedBench runs steps of requests whose KV entries are in int2 and int4 pages by tag
// (mixed_precision_cache.h) and measures them as StepBench does. Which KV entries such a request has is not
// said by its pages, so its prompt is really computed.

#ifndef KVTWIN_ENGINE_CALIBRATE_MIXED_BENCH_H_
#define KVTWIN_ENGINE_CALIBRATE_MIXED_BENCH_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cuda/cuda_engine.h"
#include "models/catalog/llm.h"

namespace kvtwin::cuda {

// Which KV entries of prompts get 2 bits: none, all, or every other page of them.
enum class LowBitEntries : uint8_t { kNone, kAll, kHalf };

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

  // So many requests without a KV entry; ends those before.
  void begin(uint32_t requests, LowBitEntries low_bit);
  // The next tokens of one request's prompt, without a sample, in us. REQUIRES: `tokens` is a multiple of two
  // pages, and nothing was decoded beside whole pages of them.
  double chunk(uint32_t request, uint32_t tokens);
  // One token of the first `requests`, in us.
  double decode(uint32_t requests);
  uint32_t context(uint32_t request) const;
  uint32_t low_bit(uint32_t request) const;  // of these, KV entries in 2 bits

 private:
  struct Parts;
  explicit MixedBench(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CALIBRATE_MIXED_BENCH_H_
