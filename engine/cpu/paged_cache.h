// PagedCache is the identity of every axis: fp32 KV entries on pages by position, none dropped, all read.
//
// The page table of a request starts with its prefix hit and grows with its allocations. A transfer copies
// pages at once when it is submitted. Until it is answered, the policy permits no write to its source and no
// read of its target (backend.h), so results do not depend on the time of the copy.

#ifndef KVTWIN_ENGINE_CPU_PAGED_CACHE_H_
#define KVTWIN_ENGINE_CPU_PAGED_CACHE_H_

#include <map>
#include <memory>
#include <vector>

#include "engine/cpu/kv_cache.h"
#include "engine/cpu/kv_store.h"
#include "kernels/attention/attention.h"
#include "kernels/cache_ops/rope_append.h"

namespace kvtwin::cpu {

class PagedCache final : public KvCache {
 public:
  // Fails if there is no memory for the pages.
  static Result<std::unique_ptr<KvCache>> make(const KvMemory& memory, const LlmSpec& llm);

  void begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) override;
  // All KV of the step is written before any is read, so that a request may read pages that another request
  // of the same step fills.
  void attend(uint32_t layer, float* q, float* k, const float* v, float* out) override;
  void end(const LaunchStep&, uint32_t, std::span<const PlanEntry>, DataOutcomes*) override {}
  void notify(const Command& command) override;

 private:
  using PageTable = std::vector<kernels::ReadRun>;  // whole pages, in order of position

  PagedCache(const KvMemory& memory, const LlmSpec& llm, KvStore kv)
      : memory_(memory), llm_(llm), rope_(rope_frequencies(llm)), kv_(std::move(kv)) {}

  void take_pages(const LaunchStep& launch, uint32_t offset);

  const KvMemory memory_;
  const LlmSpec llm_;
  const RopeFrequencies rope_;
  KvStore kv_;
  std::map<RequestId, PageTable> requests_;
  // One per row of the step.
  std::vector<kernels::AppendRow> appends_;
  std::vector<kernels::AttentionRow> reads_;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_PAGED_CACHE_H_
