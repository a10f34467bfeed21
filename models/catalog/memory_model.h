// Memory model: how much of a GPU's memory is left for KV, with every term shown.
//
// The rule is vLLM's (v1 worker, determine_available_memory): the engine may use utilisation * total.
// Weights, the activation peak of a profiling step and the memory that the runtime allocates outside torch
// are subtracted, and the rest is divided into pages. Each term can be replaced by a number from a real
// engine's log.

#ifndef KVTWIN_MODELS_CATALOG_MEMORY_MODEL_H_
#define KVTWIN_MODELS_CATALOG_MEMORY_MODEL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "models/catalog/device.h"
#include "models/catalog/llm.h"

namespace kvtwin {

struct MemorySpec {
  LlmSpec llm;
  DeviceSpec device;
  uint32_t tp = 1;
  double utilization = 0.9;  // vLLM's gpu_memory_utilization
  uint32_t page_tokens = 16;
  uint32_t step_tokens_max = 2048;  // vLLM's max_num_batched_tokens: sizes the profiling step
  uint32_t requests_max = 256;      // vLLM's max_num_seqs: tokens that the profiling step samples
  bool graphs_in_budget = false;    // vLLM < 0.20 captures graphs after it sizes the KV pool
  uint32_t capture_sizes = 51;      // captured batch sizes, for the graph pools
  uint64_t staging_bytes = 0;       // buffers of our own engine: compression staging, transfer rings

  // Given numbers replace those of the model; bytes on one GPU.
  std::optional<uint64_t> total_bytes, weight_bytes, activation_bytes, runtime_bytes, graph_bytes, kv_bytes;
};

struct MemoryTerm {
  std::string name;
  int64_t bytes = 0;  // negative: subtracted from what the previous terms leave
  Basis basis = Basis::kDerived;
  std::string how;  // the formula with its numbers, or where the number was read
};

struct MemoryPlan {
  std::vector<MemoryTerm> terms;  // the last one is the memory left for KV: the sum of the others
  int64_t kv_bytes = 0;           // after the last term
  uint64_t page_bytes = 0;        // K and V of page_tokens tokens in all layers, on one GPU
  uint32_t pages = 0;             // vLLM reserves one of them as the null block (Memory.reserved_pages)
};

// Fails if nothing is left for KV; the error names the largest terms and what would fit.
Result<MemoryPlan> plan_memory(const MemorySpec& spec);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_CATALOG_MEMORY_MODEL_H_
