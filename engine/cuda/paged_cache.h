// PagedCache is the identity of every axis: bf16 KV entries on pages by position, nothing dropped, all read.
//
// A request's page table starts with its prefix hit and grows with its allocations.

#ifndef KVTWIN_ENGINE_CUDA_PAGED_CACHE_H_
#define KVTWIN_ENGINE_CUDA_PAGED_CACHE_H_

#include <map>
#include <memory>
#include <vector>

#include "engine/cuda/caches.h"
#include "engine/cuda/device/device_pages.h"
#include "engine/cuda/kv_cache.h"

namespace kvtwin::cuda {

class PagedCache final : public KvCache {
 public:
  // `llm` must outlive it. Errors: no room for that many pages.
  static Result<OwnedCache> make(const KvMemory& memory, const LlmSpec* llm);

  void begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
             const StepStream& on, StepRows* rows) override;
  void plan(const DeviceRows& rows, const StepStream& on) override;
  // All KV of the step is written before any is read, so that a request may read pages that another request
  // of the same step fills.
  void attend(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
              const StepStream& on) override;
  StepListSpec listed(const DeviceRows& rows) const override;
  // Chunks could be, but no two are alike.
  bool repeats(StepGraphKey* graph_key) const override {
    return graph_key->rows.chunks_count == 0 && graph_key->rows.other_rows == 0;
  }
  void end(const LaunchStep&, uint32_t, std::span<const PlanEntry>, const StepStream&,
           DataOutcomes*) override {}
  void notify(const Command& command) override;
  void copy(PageId source, PageId target, cudaStream_t stream) override;
  void warm_up(uint32_t size, const StepStream& on, StepRows* rows) override;
  uint32_t padded_forms() const override { return attention_.decode_takes() ? 1 : 0; }
  void fill_up(uint32_t form, uint32_t size, const StepStream& on, StepRows* rows) override;

 private:
  PagedCache(const KvMemory& memory, const LlmSpec* llm) : memory_(memory), llm_(*llm) {}
  void take_pages(const LaunchStep& launch, uint32_t offset, cudaStream_t stream);
  void add_entry(const PlanEntry& entry, StepRows* rows);

  const KvMemory memory_;
  const LlmSpec& llm_;
  DevicePages pages_;
  RowAttention attention_;
  std::map<RequestId, std::vector<uint32_t>> tables_;  // pages in order of position
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_PAGED_CACHE_H_
