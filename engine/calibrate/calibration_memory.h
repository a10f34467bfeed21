// How the engines of a calibration share the memory of the GPU at hand.
//
// One engine is measured from the first to the last step and takes most of the memory. Engines that live next
// to it for a while (with events between operations, without graphs, with packed pages) get what it leaves
// free. No engine gets more than kTokensGpu tokens, so an 80 GB and a 141 GB GPU are measured at the same
// contexts.

#ifndef KVTWIN_ENGINE_CALIBRATE_CALIBRATION_MEMORY_H_
#define KVTWIN_ENGINE_CALIBRATE_CALIBRATION_MEMORY_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "engine/cuda/device/device_facts.h"
#include "models/catalog/llm.h"
#include "models/catalog/page_sizing.h"

namespace kvtwin::cuda {

// Of the engine that every step is measured on: 200 requests of 1,200 tokens fit, among others.
constexpr uint32_t kTokensGpu = 20480 * 16;
// Below it, steps that prices rest on do not fit: 32 decodes of 2,048 tokens and their growth.
constexpr uint32_t kTokensLeast = 4608 * 16;
// Of an engine next to it: 256 decodes of short contexts, or a chunk of 4,096 tokens.
constexpr uint32_t kTokensSmall = 4096 * 16, kTokensSmallLeast = kTokensSmall / 2;

// Host memory for copies between tiers: as much as 1,024 pages of Llama-3.1-8B need. It is pinned, and a
// larger model would spend more time on that than on the copies.
constexpr uint64_t kHostBytes = 2'200'000'000;
constexpr uint32_t kPagesHostMost = 1024;

inline uint32_t pages_of_copies(const LlmSpec& llm, uint32_t page_tokens) {
  const uint64_t fit = kHostBytes / (llm.kv_bytes_per_token() * page_tokens);
  return static_cast<uint32_t>(std::clamp<uint64_t>(fit, 1, kPagesHostMost));
}

// Pages of the first engine, by what is free now: two more live next to it at a time. Errors: too little is.
inline Result<uint32_t> first_engine_pages(const LlmSpec& llm, uint32_t page_tokens) {
  const DeviceFacts facts = device_facts();
  return pages_that_fit({.free_bytes = facts.memory_free,
                         .bytes_per_token = llm.kv_bytes_per_token(),
                         .page_tokens = page_tokens,
                         .fraction = 0.66,
                         .others = 2,
                         .tokens_of_others = kTokensSmall,
                         .tokens_most = kTokensGpu,
                         .tokens_least = kTokensLeast},
                        facts.gpu, llm.name);
}
// Of an engine next to it, whose KV entries take `bytes_per_token`.
inline Result<uint32_t> next_engine_pages(const LlmSpec& llm, uint32_t page_tokens, uint64_t bytes_per_token,
                                          uint32_t tokens_most) {
  const DeviceFacts facts = device_facts();
  return pages_that_fit({.free_bytes = facts.memory_free,
                         .bytes_per_token = bytes_per_token,
                         .page_tokens = page_tokens,
                         .fraction = 0.8,
                         .tokens_most = tokens_most,
                         .tokens_least = kTokensSmallLeast},
                        facts.gpu, llm.name);
}

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CALIBRATE_CALIBRATION_MEMORY_H_
