// PackedCache keeps KV in one packed format on pages by position (fp8, int4, fp4), or as KIVI does: int2 but
// for the newest KV entries. What is stored and what is read: engine/cpu/packed/packed_cache.h, which is the
// definition. Here:
//
//   * a decoded row is packed and then reads packed pages, if a kernel does that (packed_attention.h);
//   * all other rows read what is staged (staged_entries.h): history unpacked, a chunk's own rows as they
//   are;
//   * KIVI's exact KV entries are a ring of residual_tokens for each request, by position. A decoded row
//   reads them,
//     and those whose keys alone are packed, from what is staged: at most twice as many KV entries. Spans
//     that move nothing make the lists of such steps as long in all of them.
//
// In a step everything is packed before anything is unpacked, so who reuses what another request of the step
// fills finds it. A request's own KV entries that were exact when the step began are staged from the ring,
// whether or not they are packed in that step.

#ifndef KVTWIN_ENGINE_CUDA_PACKED_PACKED_CACHE_H_
#define KVTWIN_ENGINE_CUDA_PACKED_PACKED_CACHE_H_

#include <map>
#include <vector>

#include "engine/cuda/packed/packed.h"
#include "engine/cuda/packed/packed_attention.h"
#include "engine/cuda/packed/staged_entries.h"

namespace kvtwin::cuda {

class PackedCache final : public KvCache {
 public:
  // As make_packed().
  static Result<OwnedCache> make(const PackedOptions& options, const KvMemory& memory, const LlmSpec* llm);

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
  void notify(const Command& command) override;
  void copy(PageId source, PageId target, cudaStream_t stream) override;
  void warm_up(uint32_t size, const StepStream& on, StepRows* rows) override;
  // KIVI's steps are padded, but what they start also depends on whether keys are packed.
  uint32_t padded_forms() const override { return !kivi() && fused_.ready() ? 1 : 0; }
  void fill_up(uint32_t form, uint32_t size, const StepStream& on, StepRows* rows) override;

 private:
  struct Request {
    std::vector<uint32_t> pages;
    uint32_t keys_packed = 0, values_packed = 0;  // KIVI: this many, the first ones
    uint32_t slot = 0;                            // KIVI: of its exact KV entries
  };

  PackedCache(const PackedOptions& options, const KvMemory& memory, const LlmSpec* llm)
      : options_(options), memory_(memory), llm_(*llm) {}
  bool kivi() const { return options_.residual_tokens > 0; }
  void take_pages(const LaunchStep& launch, uint32_t offset, cudaStream_t stream);
  uint32_t take_slot();
  void add_entry(const PlanEntry& entry, uint32_t row, StepRows* rows);
  void add_fused(const Request& request, const PlanEntry& entry, uint32_t row, StepRows* rows);
  void add_kivi(const PlanEntry& entry, uint32_t base, Request* request);
  // KIVI's decodes: all steps of a number of rows that pack keys have the same number of spans, and so have
  // all others.
  void even_out(bool decodes, size_t rows);
  void add_fused_kivi(const PlanEntry& entry, uint32_t row, Request* request, StepRows* rows);
  // What a step of KIVI's packs and keeps of KV entries that are staged from `base` on.
  void pack_kivi(const PlanEntry& entry, uint32_t base, Request* request);
  // KV entries [from, to) of a request, which are staged from `base` on: spans between its pages and there.
  void span_pages(const Request& request, uint32_t from, uint32_t to, uint32_t base, uint32_t sides,
                  bool packs);
  // The same of its ring.
  void span_ring(const Request& request, uint32_t from, uint32_t to, uint32_t base, uint32_t sides,
                 bool keeps);

  const PackedOptions options_;
  const KvMemory memory_;
  const LlmSpec& llm_;
  PackedPages pool_;
  StagedEntries staged_;
  PackedAttention fused_;
  ExactEntries exact_;
  std::map<RequestId, Request> requests_;
  bool even_ = false;  // KIVI: the step at hand has as many spans as all of its kind
  std::vector<uint32_t> free_slots_;
  uint32_t slots_ = 0;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_PACKED_PACKED_CACHE_H_
