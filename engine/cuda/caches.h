// The ways of keeping KV on the GPU, for those that choose one: no CUDA in here.

#ifndef KVTWIN_ENGINE_CUDA_CACHES_H_
#define KVTWIN_ENGINE_CUDA_CACHES_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "engine/cpu/compression/compressed_cache.h"
#include "engine/cuda/owned_cache.h"
#include "kernels/grids/partition.h"

namespace kvtwin::cuda {

// The memory that a KvCache deals with.
struct KvMemory {
  uint32_t page_tokens = 16;
  uint32_t pages_gpu = 0;   // pages [0, pages_gpu) of the address space
  uint32_t pages_host = 0;  // behind them, in pinned memory
  uint32_t rows_max = 0;    // tokens of one step, padded
  bool poison = false;      // pages are filled with NaN when they are granted: tests
  // Requests of one step: retrieval takes its memory for them before the first step. 0: as they come.
  uint32_t requests_max = 0;
};

struct CompressedOptions {
  cpu::CompressedConfig config;
  // How decodes are divided, where the policy's partition lists splits (decode_partition.h).
  PartitionSpec partition{};
  std::vector<uint64_t> planned{};  // aot: by layer * kv_heads + head, Q0.32; empty: equal budgets
  // PendingResult after every compression, head by head (layer * kv_heads + head): positions that are left.
  std::function<void(RequestId request, uint32_t head, std::span<const uint32_t> positions)> retained{};
};
// What drops KV entries, or lets them lie elsewhere than by position (compressed_cache.h). Wrong: no room for
// that number of pages. REQUIRES: validate_core_config() found nothing, and check_compressed() neither.
// `weights` must outlive it; matrices are read of scorer critical_kv alone.
Result<OwnedCache> make_compressed(const CompressedOptions& options, const KvMemory& memory,
                                   const ModelWeights* weights);
// Whether a scorer reads the model's matrices on the host.
bool reads_matrices(const kernels::ScorerDefinition& scorer);

// What the CUDA engine does not compute of what the policy allows: a sentence with the way out; nullopt: it
// computes this. REQUIRES: validate_core_config() found nothing.
std::optional<std::string> check_compressed(const CoreConfig& config, const kernels::ScoreSpec& score,
                                            const LlmSpec& llm);
// The same of how decodes are divided.
std::optional<std::string> check_partition(const CoreConfig& config, const PartitionSpec& spec);

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_CACHES_H_
