// The door to RetrievedCache (retrieved_cache.h) and FactoredCache (factored_cache.h), without CUDA's
// headers.

#ifndef KVTWIN_ENGINE_CUDA_RETRIEVAL_RETRIEVED_H_
#define KVTWIN_ENGINE_CUDA_RETRIEVAL_RETRIEVED_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>

#include "engine/base/recall_copies.h"
#include "engine/common/retrieval/retrieval_witness.h"
#include "engine/cuda/caches.h"
#include "engine/cuda/owned_cache.h"
#include "engine/methods/retrieval_spec.h"
#include "engine/steps/step_list.h"
#include "models/catalog/llm.h"
#include "models/weights/weights.h"

namespace kvtwin::cuda {

class HappensBefore;

// For tests of the order between streams.
struct OrderTests {
  uint64_t delays = 0;             // not 0: streams are late at random, drawn from this
  Edge left_out = Edge::kNone;     // `watch` is not notified that it is waited for
  HappensBefore* watch = nullptr;  // is notified of everything
};

struct RetrievedOptions {
  RetrievalKind kind = RetrievalKind::kRecallsPages;
  RetrievalSpec spec{};
  RecallCopies copies{};
  OrderTests tests{};
  // For tests: is notified of the tokens that InfiniGen selected for a head (ascending positions).
  std::function<void(const cpu::HeadAt&, std::span<const uint32_t>)> selected_tokens{};
  // For benches: ShadowKV and InfiniGen project on unit vectors, because directions take the host minutes.
  bool unit_directions = false;
  bool prefix_cache = false;  // requests may begin with homes of others
};

// A sentence that says what is not computed on CUDA, and what would be right.
std::optional<std::string> check_retrieved(RetrievalKind kind, const RetrievalSpec& spec,
                                           const RecallCopies& copies, const LlmSpec& llm,
                                           uint32_t page_tokens);

// Wrong: no room. REQUIRES: validate_policy_set() accepts the method and its spec, and check_retrieved() has
// nothing to say.
Result<OwnedCache> make_retrieved(const RetrievedOptions& options, const KvMemory& memory,
                                  const LlmSpec& llm);

// A budget drops KV entries of prompts, and decodes recall pages of what is left (recalled_entries.h). The
// check is a sentence, as above, of a policy set that drops KV entries and retrieves; REQUIRES:
// validate_core_config() found nothing. Wrong: no room. `weights` must outlive it.
std::optional<std::string> check_recalled(const CoreConfig& config, const kernels::ScoreSpec& score,
                                          RetrievalKind kind, const RecallCopies& copies, const LlmSpec& llm);
Result<OwnedCache> make_recalled(const CompressedOptions& compressed, const RetrievedOptions& retrieved,
                                 const KvMemory& memory, const ModelWeights* weights);

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_RETRIEVAL_RETRIEVED_H_
