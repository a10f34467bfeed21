// DualCache keeps KV in int2 and int4 pages by tag (TriAxialKV). What is stored and what is read:
// engine/cpu/dual_cache.h, which is the definition; which cell lies where: engine/cpu/dual_cells.h, for both.
//
//   * a decoded row is packed and then reads packed pages, int2 first, if all that its pages hold is its
//   call's
//     and a kernel does that (packed_attention.h);
//   * all other rows read what is staged (staged_cells.h), by position;
//   * cells that wait for their group lie in a page of exact cells for each call;
//   * cells that age are unpacked to bf16 and packed again, before anything else of a step.

#ifndef KVTWIN_ENGINE_CUDA_DUAL_CACHE_H_
#define KVTWIN_ENGINE_CUDA_DUAL_CACHE_H_

#include <vector>

#include "engine/cpu/dual_cells.h"
#include "engine/cuda/packed.h"
#include "engine/cuda/packed_attention.h"
#include "engine/cuda/staged_cells.h"

namespace kvtwin::cuda {

class DualCache final : public KvCache {
 public:
  // As make_dual().
  static Result<OwnedCache> make(const DualOptions& options, const KvMemory& memory, const LlmSpec* llm);

  void begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
             const StepStream& on, StepRows* rows) override;
  void plan(const DeviceRows& rows, const StepStream& on) override;
  void attend(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
              const StepStream& on) override;
  // Steps of decodes alone that read packed pages.
  bool repeats(StepForm* form) const override;
  void end(const LaunchStep&, uint32_t, std::span<const PlanEntry>, const StepStream&, StepValues*) override {
  }
  void told(const Command& command) override { cells_.told(command); }
  // REQUIRES: never; there is no other tier.
  void copy(PageId source, PageId target, cudaStream_t stream) override;
  void warm_up(uint32_t size, const StepStream& on, StepRows* rows) override;

 private:
  using Share = cpu::DualCells::Share;
  using Place = cpu::DualCells::Place;

  DualCache(const DualOptions& options, const KvMemory& memory, const LlmSpec* llm)
      : options_(options),
        memory_(memory),
        llm_(*llm),
        pools_(2),
        cells_(memory.page_tokens, options.pages_int2, memory.pages_gpu),
        filled_(memory.pages_gpu) {}

  // What a call has of a page: so many cells, all before slot `end`.
  struct Filled {
    uint32_t cells = 0, end = 0;
  };

  // Of pools_, and of its pages.
  uint32_t pool_of(uint32_t page) const { return cells_.is_int2(page) ? 0 : 1; }
  uint32_t cell(uint32_t page, uint32_t slot) const;
  uint32_t waiting_cell(const Share& share, uint32_t slot) const;
  void poison(PageId page, cudaStream_t stream);
  void age(std::span<const CellAgeing> ageings, cudaStream_t stream);
  void add_share(const Share& share, StepRows* rows);
  bool add_fused(const Share& share);
  void span_history(const Share& share, uint32_t base);
  void span_actions(const Share& share, uint32_t base);

  const DualOptions options_;
  const KvMemory memory_;
  const LlmSpec& llm_;
  std::vector<PackedPages> pools_;  // int2, int4
  cpu::DualCells cells_;
  StagedCells staged_;
  PackedAttention fused_;
  ExactCells waiting_;
  // Of the step.
  std::vector<Share> shares_;
  std::vector<PageId> taken_;
  DeviceLists ageing_;
  // Of the call at hand.
  std::vector<Filled> filled_;  // by page
  std::vector<uint32_t> seen_;  // pages that it has cells in
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_DUAL_CACHE_H_
