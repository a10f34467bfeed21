// How many KV pages an engine gets on a GPU whose free memory is known.

#ifndef KVTWIN_MODELS_CATALOG_PAGE_SIZING_H_
#define KVTWIN_MODELS_CATALOG_PAGE_SIZING_H_

#include <cstdint>
#include <string>

#include "engine/base/result.h"

namespace kvtwin {

// Graphs, activations and logits of an engine of 4,096 rows and 256 samples take 0.9 GB on an H200 (figure
// "memory of an engine of 4096 rows" of kvtwin calibrate device); the rest is room for what the driver takes.
constexpr uint64_t kEngineBytes = 1'500'000'000;

struct PageSizing {
  uint64_t free_bytes = 0;       // of the GPU, once the weights are there
  uint64_t bytes_per_token = 0;  // of KV, all layers
  uint32_t page_tokens = 16;
  double fraction = 1;  // of the free memory that this engine may take
  // Engines that will be made next to this one, and the tokens for which each gets free memory. Where both do
  // not fit, this one gets `tokens_least` first.
  uint32_t others = 0;
  uint64_t tokens_of_others = 0;
  uint64_t tokens_most = 0;   // no more than these, however much is free
  uint64_t tokens_least = 0;  // fewer are an error
};

// Errors: fewer tokens than `tokens_least` fit; `gpu` and `model` name what is too small for what.
Result<uint32_t> pages_that_fit(const PageSizing& sizing, const std::string& gpu, const std::string& model);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_CATALOG_PAGE_SIZING_H_
