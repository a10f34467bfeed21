// RecalledEntries combines compression with recall: a budget drops KV entries of a prompt when it is
// complete, and decodes recall pages of the retained ones (FreeKV or ArkVale after SnapKV and similar;
// docs/design/methods/composition.md#pairs, #walk-throughs).
//
// A CompressedCache with layout compact runs prompts. It keeps them on the GPU and offloads nothing, because
// dropped KV entries would be offloaded too. At the end of the prompt the retained KV entries are compacted
// into pages that never change; these are summarised and copied to the host, and from then on a
// RetrievedCache runs the request. Each head retains its own tokens, but the same number, so a page is full
// in all heads at the same time.
//
// In both caches a row depends on its own request alone, so a step may contain rows of both kinds.

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
  // `weights` must outlive it. Fails if there is no memory for the pages. REQUIRES: validate_core_config(),
  // check_compressed() and check_retrieved() return nullopt, and KV entries are dropped before the request
  // enters its resident pages.
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
    std::vector<PageId> gpu, host_copies;     // until its prompt is complete
    std::vector<std::vector<float>> queries;  // of its last row, by layer
  };
  // The part of a step that one of the two caches runs.
  struct Part {
    std::vector<PlanEntry> launched, entries;
    std::vector<PageAllocation> allocations;
    std::vector<Compression> compressions;
    std::vector<ProbePass> passes;
    std::vector<uint32_t> rows;  // rows of the step
    std::vector<float> x, q, k, v, out;
    LaunchStep launch;
  };
  // A prompt whose last row is in this step.
  struct LastRow {
    Request* request = nullptr;
    uint32_t row = 0;  // index in part 0
  };
  // A prompt that is complete with this step, its passes of probe tokens included.
  struct Ending {
    RequestId request{};
    uint32_t tokens = 0;
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
  Part parts_[2];  // [0]: prompts; [1]: requests with resident pages
  std::vector<LastRow> last_rows_;
  std::vector<Ending> endings_;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_RETRIEVAL_RECALLED_ENTRIES_H_
