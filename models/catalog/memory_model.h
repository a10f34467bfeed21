// How much of a GPU's memory is left for KV: hbm - everything else, every term shown.
//
// The rule is vLLM's (v1 worker, determine_available_memory): utilisation * total is what the engine may
// take; weights, the activation peak of a profiling step and what the runtime allocates beside torch come
// off; the rest is cut into pages. Each term can be replaced by a number from a real engine's log.

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
  uint32_t step_tokens_max = 2048;  // max_num_batched_tokens: sizes the profiling step
  uint32_t requests_max = 256;      // max_num_seqs: rows that the profiling step samples
  bool graphs_in_budget = false;    // vLLM < 0.20 captures graphs after it has sized the KV pool
  uint32_t capture_sizes = 51;      // captured batch sizes, for the graph pools
  uint64_t staging_bytes = 0;       // buffers of our own: compression staging, transfer rings

  // Given numbers replace the model's, in bytes on one GPU.
  std::optional<uint64_t> total_bytes, weight_bytes, activation_bytes, runtime_bytes, graph_bytes, kv_bytes;
};

struct MemoryTerm {
  std::string name;
  int64_t bytes = 0;  // negative: taken away from what the line before left
  Basis basis = Basis::kDerived;
  std::string how;  // the formula with its numbers, or where the number was read
};

struct MemoryPlan {
  std::vector<MemoryTerm> terms;  // ends with what is left for KV: the sum of the others
  int64_t kv_bytes = 0;           // after the last term
  uint64_t page_bytes = 0;        // K and V of page_tokens tokens in all layers, on one GPU
  uint32_t pages = 0;             // vLLM keeps one of them as the null page: see README
};

// Fails when nothing is left for KV, naming the largest terms and what would fit.
Result<MemoryPlan> plan_memory(const MemorySpec& spec);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_CATALOG_MEMORY_MODEL_H_
