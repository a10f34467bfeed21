// HostChosenCache: ShadowKV and InfiniGen, whose choices are made on the host. KV, attention and everything
// else of a layer stay on the GPU; what is chosen, rebuilt and reported is what cpu::RetrievedCache's header
// says, by the same code (cpu/head_choice.h, shadow_keys.h, partial_keys.h), from rows in bf16.
//
// Per layer that chooses: rows are appended; their rotated queries and keys come to the host, which waits for
// them; pages that are full go to their homes; the host chooses, and writes blocks of (slot, KV head) into
// the resident pages: ShadowKV rebuilt keys of all chosen pages and the values that were absent, InfiniGen
// the tokens that it chose with the input of the layer before. Then attention. So a layer waits for the host
// once, and copies are started one by one: right, and slow.
//
// Homes are read where they lie, in pinned memory. Layers that choose nothing, prompts, and requests that fit
// their resident pages are as in RetrievedCache.

#ifndef KVTWIN_ENGINE_CUDA_RETRIEVAL_HOST_CHOSEN_CACHE_H_
#define KVTWIN_ENGINE_CUDA_RETRIEVAL_HOST_CHOSEN_CACHE_H_

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/common/retrieval/head_choice.h"
#include "engine/common/retrieval/page_summaries.h"
#include "engine/common/retrieval/prefix_rows.h"
#include "engine/common/retrieval/query_projection.h"
#include "engine/common/retrieval/resident_request.h"
#include "engine/cuda/device/device_lists.h"
#include "engine/cuda/device/device_pages.h"
#include "engine/cuda/kv_cache.h"
#include "engine/cuda/retrieval/dense_layers.h"
#include "engine/cuda/retrieval/retrieved.h"

namespace kvtwin::cuda {

// A sentence that says what is not computed of one of the two methods, and what would be right.
std::optional<std::string> check_host_chosen(RetrievalKind kind, const RetrievalSpec& spec,
                                             const RecallCopies& copies, const LlmSpec& llm);

class HostChosenCache final : public KvCache {
 public:
  // As make_retrieved(). REQUIRES: the kind is kRecallsValues or kRecallsTokens.
  static Result<OwnedCache> make(const KvMemory& memory, const LlmSpec& llm, const RetrievedOptions& options);

  void begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
             const StepStream& on, StepRows* rows) override;
  void plan(const DeviceRows& rows, const StepStream& on) override;
  void attend(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
              const StepStream& on) override;
  void end(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
           const StepStream& on, DataOutcomes* values) override;
  void notify(const Command& command) override;
  void copy(PageId source, PageId target, cudaStream_t stream) override;
  void warm_up(uint32_t size, const StepStream& on, StepRows* rows) override;

 private:
  using Request = cpu::ResidentRequest;
  struct Row {
    RequestId id{};
    Request* request = nullptr;
    uint32_t position = 0;
    uint32_t page = 0;  // of the GPU, that it is written to
    bool chooses = false;
  };

  HostChosenCache(const KvMemory& memory, const LlmSpec& llm, const RetrievedOptions& options);
  Result<void> allocate();
  bool shadow() const { return kind_ == RetrievalKind::kRecallsValues; }
  bool dense(uint32_t layer) const { return layer < spec_.layers_dense; }
  uint32_t pages_of(uint32_t tokens) const { return div_ceil(tokens, memory_.page_tokens); }
  uint32_t end_candidates(uint32_t pages) const { return pages - shape_.window; }

  // host_chosen_cache.cc: pages, rows, and what a layer starts
  Request new_request() const;
  void take_pages(const LaunchStep& launch, uint32_t offset, cudaStream_t stream);
  void begin_with(const PrefixHit& prefix_hit);
  void add_entry(const PlanEntry& entry, StepRows* rows);
  void add_spans(const Request& request, uint32_t row, uint32_t position, StepRows* rows);
  void fetch(const __nv_bfloat16* from, uint32_t width, std::vector<float>* to, cudaStream_t stream);
  void attend_tokens(uint32_t layer, const LayerRows& tensors, const StepStream& on);

  // host_chosen_choice.cc: what the host makes of rows
  void keep_rows(uint32_t layer);
  void seal(uint32_t layer, cudaStream_t stream);
  std::vector<float> host_copy_keys(uint32_t layer, uint32_t owner, uint32_t head) const;
  cpu::HeadChoice choose(uint32_t layer, const Request& request, uint32_t head, uint32_t pages,
                         const float* q) const;
  std::vector<uint32_t> outliers(uint32_t layer, const Request& request, uint32_t head, uint32_t end) const;
  void rebuild(uint32_t layer, const Row& row, const float* q, cudaStream_t stream);
  void rebuild_keys(uint32_t layer, const Request& request, uint32_t head, cudaStream_t stream);
  void choose_tokens(uint32_t layer, const Row& row, const float* x, cudaStream_t stream);
  void fill_slots(uint32_t layer, Request* request, uint32_t pages, cudaStream_t stream);
  // Writes a side of the block of (GPU page, KV head), or both, from the staging buffer or from a home.
  __nv_bfloat16* stage(uint64_t numbers);
  void write_block(uint32_t layer, uint32_t page, uint32_t head, uint32_t side, const __nv_bfloat16* from,
                   uint64_t numbers, cudaStream_t stream);
  const __nv_bfloat16* host_copy_block(uint32_t layer, uint32_t owner, uint32_t head) const;

  const KvMemory memory_;
  const LlmSpec llm_;
  const RetrievalKind kind_;
  const RetrievalSpec spec_;
  const cpu::ResidentShape shape_;
  const bool prefix_cache_;
  const std::function<void(const cpu::HeadAt&, std::span<const uint32_t>)> selected_tokens_;  // for tests
  const RopeFrequencies rope_;
  LlmSpec dense_llm_;  // the layers that choose nothing
  DevicePages pages_, resident_;
  RowAttention attention_;
  DenseLayers dense_;
  cpu::PageSummaries summaries_;                   // of homes
  cpu::PrefixRows prefix_rows_;                    // the same, for requests that begin with them
  std::vector<cpu::QueryProjection> projections_;  // InfiniGen: of the layers that choose
  std::map<RequestId, Request> requests_;
  Buffer keys_;              // of the step's rows, [rows][kv_heads][head_dim]
  Buffer fetched_, staged_;  // pinned
  uint64_t staged_numbers_ = 0;
  // Of the step at hand.
  std::vector<Row> rows_;
  std::vector<float> queries_, row_keys_, hidden_;  // of the layer, on the host
  std::vector<LayerRecall> recalls_;
  DeviceLists kv_entries_;  // InfiniGen: what the layer's choosing rows read, KV entry by KV entry
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_RETRIEVAL_HOST_CHOSEN_CACHE_H_
