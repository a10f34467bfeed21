// MixedPrecisionCache keeps KV in int2 and int4 pages by tag (TriAxialKV). What is stored and what is read:
// engine/cpu/packed/mixed_precision_cache.h, which is the definition; which KV entry lies where:
// engine/common/mixed_precision_entries.h, for both.
//
//   * a decoded row is packed and then reads packed pages, int2 first, if all that its pages hold is its
//   request's
//     and a kernel does that (packed_attention.h);
//   * all other rows read what is staged (staged_entries.h), by position;
//   * KV entries that wait for their group lie in a page of exact KV entries for each request;
//   * KV entries that age are unpacked to bf16 and packed again, before anything else of a step;
//   * pages are copied whole between tiers. A host page has room for a page of either format.

#ifndef KVTWIN_ENGINE_CUDA_PACKED_MIXED_PRECISION_CACHE_H_
#define KVTWIN_ENGINE_CUDA_PACKED_MIXED_PRECISION_CACHE_H_

#include <vector>

#include "engine/common/mixed_precision_entries.h"
#include "engine/cuda/packed/packed.h"
#include "engine/cuda/packed/packed_attention.h"
#include "engine/cuda/packed/staged_entries.h"

namespace kvtwin::cuda {

class MixedPrecisionCache final : public KvCache {
 public:
  // As make_mixed_precision().
  static Result<OwnedCache> make(const MixedPrecisionOptions& options, const KvMemory& memory,
                                 const LlmSpec* llm);

  void begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
             const StepStream& on, StepRows* rows) override;
  void plan(const DeviceRows& rows, const StepStream& on) override;
  void attend(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
              const StepStream& on) override;
  StepListSpec listed(const DeviceRows& rows) const override;
  // Steps of decodes alone that read packed pages.
  bool repeats(StepGraphKey* graph_key) const override;
  void end(const LaunchStep&, uint32_t, std::span<const PlanEntry>, const StepStream&,
           DataOutcomes*) override {}
  void notify(const Command& command) override { kv_entries_.notify(command); }
  void copy(PageId source, PageId target, cudaStream_t stream) override;
  void warm_up(uint32_t size, const StepStream& on, StepRows* rows) override;
  uint32_t padded_forms() const override { return fused_.ready() ? 1 : 0; }
  void fill_up(uint32_t form, uint32_t size, const StepStream& on, StepRows* rows) override;

 private:
  using RequestPart = cpu::MixedPrecisionEntries::RequestPart;
  using Place = cpu::MixedPrecisionEntries::Place;

  MixedPrecisionCache(const MixedPrecisionOptions& options, const KvMemory& memory, const LlmSpec* llm)
      : options_(options),
        memory_(memory),
        llm_(*llm),
        pools_(2),
        kv_entries_(memory.page_tokens, options.pages_int2, memory.pages_gpu),
        filled_(memory.pages_gpu) {}

  // The part of a page that a request has: a number of KV entries, all before slot `end`.
  struct Filled {
    uint32_t kv_entries = 0, end = 0;
  };

  uint32_t pool_of(uint32_t page) const { return kv_entries_.is_int2(page) ? 0 : 1; }  // of pools_
  // The number of a page within a pool; that of a host page if it has a copy from there.
  PageId page_in(uint32_t pool, PageId page) const;
  uint32_t kv_entry(uint32_t page, uint32_t slot) const;
  uint32_t waiting_kv_entry(const RequestPart& request_part, uint32_t slot) const;
  void poison(PageId page, cudaStream_t stream);
  void age(std::span<const Requantisation> requantisations, const StepStream& on);
  void add_fraction(const RequestPart& request_part, StepRows* rows);
  bool add_fused(const RequestPart& request_part);
  void span_history(const RequestPart& request_part, uint32_t base);
  void span_actions(const RequestPart& request_part, uint32_t base);

  const MixedPrecisionOptions options_;
  const KvMemory memory_;
  const LlmSpec& llm_;
  std::vector<PackedPages> pools_;  // int2, int4
  cpu::MixedPrecisionEntries kv_entries_;
  StagedEntries staged_;
  PackedAttention fused_;
  ExactEntries waiting_;
  bool aged_ = false;  // KV entries, in the step at hand
  // Of the step.
  std::vector<RequestPart> request_parts_;
  std::vector<PageId> taken_;
  DeviceLists ageing_;
  // Of the request at hand.
  std::vector<Filled> filled_;  // by page
  std::vector<uint32_t> seen_;  // pages that it has KV entries in
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_PACKED_MIXED_PRECISION_CACHE_H_
