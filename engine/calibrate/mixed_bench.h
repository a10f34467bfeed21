// MixedBench runs and measures steps of requests whose KV entries are in int2 and int4 pages by tag
// (mixed_precision_cache.h), like StepBench. The pages do not determine the KV entries of such a request, so
// its prompt is really computed.

#ifndef KVTWIN_ENGINE_CALIBRATE_MIXED_BENCH_H_
#define KVTWIN_ENGINE_CALIBRATE_MIXED_BENCH_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "engine/cuda/cuda_engine.h"
#include "models/catalog/llm.h"

namespace kvtwin::cuda {

// The KV entries of prompts that get 2 bits: none, all, or every other page.
enum class LowBitEntries : uint8_t { kNone, kAll, kHalf };

struct MixedBenchConfig {
  uint32_t page_tokens = 32, group = 32;
  uint32_t pages = 0;  // of each format
  uint32_t rows_max = 0, samples_max = 0;
  std::vector<uint32_t> row_sizes{};
};

class MixedBench {
 public:
  // `model` and `llm` must outlive this.
  static Result<std::unique_ptr<MixedBench>> make(const MixedBenchConfig& config, const LlmSpec& llm,
                                                  const DeviceModel* model);
  ~MixedBench();

  // Starts `requests` requests without KV entries; ends those before.
  void begin(uint32_t requests, LowBitEntries low_bit);
  // Computes the next tokens of one request's prompt, without sampling; returns us. REQUIRES: `tokens` is a
  // multiple of two pages, and no whole page of KV entries was decoded before.
  double chunk(uint32_t request, uint32_t tokens);
  // Decodes one token of each of the first `requests` requests; returns us.
  double decode(uint32_t requests);
  uint32_t context(uint32_t request) const;
  uint32_t low_bit(uint32_t request) const;  // KV entries of its context that have 2 bits

 private:
  struct Parts;
  explicit MixedBench(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CALIBRATE_MIXED_BENCH_H_
