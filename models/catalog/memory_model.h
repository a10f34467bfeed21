// Memory model: how much of a GPU's memory is left for KV, with every term shown.
//
// vLLM's rule (v1 worker, determine_available_memory): the engine may use utilisation * total. Weights, the
// activation peak of a profiling step and the memory that the runtime allocates outside torch are subtracted,
// and the rest is divided into pages. From 0.20 on the graph pools are subtracted too.
//
// SGLang's rule (model_runner, profile_max_num_token): of the memory that is free before loading, 1 -
// mem_fraction_static stays free for activations and graphs. Weights are subtracted from the rest.
//
// Each term can be replaced by a number from a real engine's log.

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

enum class CapacityRule : uint8_t { kVllm, kVllmGraphs, kSglang };

struct MemorySpec {
  LlmSpec llm;
  DeviceSpec device;
  uint32_t tp = 1;
  CapacityRule rule = CapacityRule::kVllm;
  double utilization = 0.9;  // vLLM's gpu_memory_utilization, SGLang's mem_fraction_static
  uint32_t page_tokens = 16;
  uint32_t step_tokens_max = 2048;  // vLLM's max_num_batched_tokens: sizes the profiling step
  uint32_t requests_max = 256;      // vLLM's max_num_seqs: tokens that the profiling step samples
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

// SGLang's mem_fraction_static where the user gives none (server_args.py, 0.5): it keeps 512 MiB, 1.5 MiB per
// token of a prefill chunk of at least 2,048, 2 MiB per request of the largest graph and 128 MiB per GPU of
// an engine, and at least 10 GiB on GPUs of more than 60 GiB.
double sglang_fraction(const MemorySpec& spec);

// Fails if nothing is left for KV; the error names the largest terms and what would fit.
Result<MemoryPlan> plan_memory(const MemorySpec& spec);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_CATALOG_MEMORY_MODEL_H_
