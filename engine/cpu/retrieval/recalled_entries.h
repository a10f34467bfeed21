// RecalledEntries: a budget drops KV entries of a prompt when it is complete, and decodes recall pages of
// what is left (FreeKV, ArkVale behind SnapKV and the like; docs/design/methods/composition.md#pairs,
// #walk-throughs).
//
// Prompts are a CompressedCache's, layout compact: all on the gpu, and nothing is offloaded, because what is
// dropped would be too. At the prompt's end what is left moves together, which makes pages that never change;
// they are summarised and go to the host, and from then on the request is a RetrievedCache's. Each head has
// KV entries of its own tokens, but equally many, so pages of all heads are full together.
//
// Every row depends on its own request alone, in either, so that rows of both kinds may be in one step.

#ifndef KVTWIN_ENGINE_CPU_RETRIEVAL_RECALLED_ENTRIES_H_
#define KVTWIN_ENGINE_CPU_RETRIEVAL_RECALLED_ENTRIES_H_

#include <map>
#include <memory>
#include <vector>

#include "engine/cpu/compression/compressed_cache.h"
#include "engine/cpu/retrieval/retrieved_cache.h"

namespace kvtwin::cpu {

class RecalledEntries final : public KvCache {
 public:
  // `weights` must outlive it. Wrong: no room for so many pages. REQUIRES: validate_core_config() found
  // nothing, and drops are before resident pages; check_compressed() and check_retrieved() neither.
  static Result<std::unique_ptr<KvCache>> make(const CompressedConfig& config, const KvMemory& memory,
                                               const ModelWeights* weights, const RetrievedOptions& options);

  void serve(const EngineAccess& engine) override { prompts_->serve(engine); }
  void begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) override;
  void hidden(uint32_t layer, const float* x) override;
  void attend(uint32_t layer, float* q, float* k, const float* v, float* out) override;
  void end(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
           DataOutcomes* values) override;
  void notify(const Command& command) override;

 private:
  struct Request {
    bool in_resident = false;
    std::vector<PageId> gpu, host_copies;  // while it is a prompt
  };
  // What one of the two is given of a step.
  struct Part {
    std::vector<PlanEntry> launched, entries;
    std::vector<PageAllocation> allocations;
    std::vector<Compression> compressions;
    std::vector<uint32_t> rows;  // of the step
    std::vector<float> x, q, k, v, out;
    LaunchStep launch;
  };
  // Prompts whose last row is in this step.
  struct Ending {
    RequestId request{};
    uint32_t tokens = 0, row = 0;             // row: of part 0
    std::vector<std::vector<float>> queries;  // by layer
  };

  RecalledEntries(const LlmSpec& llm, std::unique_ptr<CompressedCache> prompts,
                  std::unique_ptr<KvCache> resident_caches, const KvMemory& memory);
  void split(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries);
  void hand_over(const Ending& ending);
  uint64_t q_width() const { return uint64_t{llm_.query_heads} * llm_.head_dim; }
  uint64_t kv_width() const { return uint64_t{llm_.kv_heads} * llm_.head_dim; }

  const LlmSpec llm_;
  const uint32_t pages_gpu_;
  std::unique_ptr<CompressedCache> prompts_;
  std::unique_ptr<KvCache> residents_;  // a RetrievedCache
  std::map<RequestId, Request> requests_;
  Part parts_[2];  // prompts, arenas
  std::vector<Ending> endings_;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_RETRIEVAL_RECALLED_ENTRIES_H_
