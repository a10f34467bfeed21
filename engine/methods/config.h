// CoreConfig holds every limit and choice of one engine's Core, with its unit. Plain data, filled by
// scenarios/.

#ifndef KVTWIN_ENGINE_METHODS_CONFIG_H_
#define KVTWIN_ENGINE_METHODS_CONFIG_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/units.h"
#include "engine/kv/head_groups.h"
#include "engine/kv/page_order.h"
#include "engine/kv/precision_spec.h"
#include "engine/methods/budget_spec.h"
#include "engine/methods/retrieval_spec.h"
#include "engine/methods/scorer_spec.h"

namespace kvtwin {

enum class BatchOrder : uint8_t {
  kDecodeFirst,   // running requests first, then waiting ones (vLLM v1)
  kPrefillFirst,  // prompts first; decodes get the rest of the token budget
  kMixed,         // a prompt may use at most half of the token budget while any request decodes
};

enum class AdmissionKind : uint8_t {
  kWatermark,        // the next chunk's pages must be free, and watermark_pages remain free
  kFullPrompt,       // the whole prompt's pages must be free (vLLM scheduler_reserve_full_isl)
  kFullReservation,  // pages for prompt and output are reserved: never preempts
};

enum class PreemptionKind : uint8_t {
  kRecompute,  // pages are released (and cached until evicted); the prompt is computed again
  kSwap,       // pages are swapped out to the host and back; if that is impossible, as kRecompute
};

// One name per axis (docs/design/scheduler-and-kv-managers.md#axes). The first choice of each axis is its
// identity.
struct PolicySet {
  std::string scorer = "none";
  std::string budget = "all";
  std::string layout = "paged";
  std::string precision = "bf16";
  std::string placement = "gpu";
  std::string retrieval = "all";
  std::string partition = "uniform";
  std::string identity = "shared";

  BudgetSpec budget_spec{};
  LayoutSpec layout_spec{};
  ScorerSpec scorer_spec{};
  PrecisionSpec precision_spec{};
  RetrievalSpec retrieval_spec{};  // read only if retrieval is not "all"
};

struct CoreConfig {
  EngineId engine{};
  uint32_t page_tokens = 16;
  uint32_t unit_tokens = 16;  // divides page_tokens
  uint32_t pages_gpu = 0;
  uint32_t pages_host = 0;           // 0: no host tier
  uint32_t pages_disk = 0;           // below the host tier; 0: no disk tier
  uint32_t pages_int2 = 0;           // triaxial: the first pages_int2 of pages_gpu are int2, the others int4
  uint32_t requests_max = 256;       // running at once (vLLM max_num_seqs)
  uint32_t step_tokens_max = 2048;   // budget of one step (vLLM max_num_batched_tokens)
  uint32_t chunk_tokens_max = 0;     // of one prompt in one step; 0: the budget
  uint32_t context_tokens_max = 0;   // the model's window, prompt + output; 0: no limit
  uint32_t steps_in_flight_max = 1;  // 2: step n+1 is planned while n runs (vLLM async_scheduling)
  uint32_t repeat_max = 1u << 20;    // longest run of coalesced steps; 1: no coalescing
  BatchOrder batch_order = BatchOrder::kDecodeFirst;
  AdmissionKind admission = AdmissionKind::kWatermark;
  uint32_t watermark_pages = 0;
  PageOrder page_order = PageOrder::kLowestFirst;
  PreemptionKind preemption = PreemptionKind::kRecompute;
  bool prefix_cache = true;
  bool prefill_only = false;  // hands over every request once its first token exists (commands.h, HandOver)
  std::string prefix_eviction = "lru";
  // cost_aware: context that doubles the work of recomputing a token; 0: the work does not depend on context.
  uint32_t eviction_doubling_tokens = 0;
  // Orders that weigh waiting against recomputing: about how long the GPU would take to compute all its pages
  // again; 0: not known.
  Duration eviction_refill{};
  uint32_t evict_batch_pages = 64;     // evict at least this many at once when any are needed
  uint32_t offload_pages_target = 0;   // host tier: GPU pages to keep free or copied to the host
  uint32_t spill_pages_target = 0;     // disk tier: host pages to keep free
  uint32_t offload_batch_pages = 256;  // of one offload or spill
  // Ascending. Steps of at most the largest size are padded to the next size (CUDA graphs).
  std::vector<uint32_t> capture_sizes;
  PolicySet policies;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_CONFIG_H_
