// RecalledEntries: a budget drops KV entries of a prompt, and decodes recall pages of the retained ones, as
// in cpu::RecalledEntries. Prompts use a CompressedCache. When the last row of a prompt has run, its KV
// entries are gathered into the pages of a RetrievedCache and offloaded to the host from there.
//
// Each cache gets its own rows of a step, and walks its own part of each layer's list of operations. Where
// the rows are not consecutive they are copied to a buffer, and the output of attention is copied back. Both
// caches have pages for all that the policy has on the GPU: twice the memory.

#ifndef KVTWIN_ENGINE_CUDA_RETRIEVAL_RECALLED_ENTRIES_H_
#define KVTWIN_ENGINE_CUDA_RETRIEVAL_RECALLED_ENTRIES_H_

#include <map>
#include <vector>

#include "engine/cuda/caches.h"
#include "engine/cuda/kv_cache.h"
#include "engine/cuda/retrieval/retrieved.h"

namespace kvtwin::cuda {

class CompressedCache;
class RetrievedCache;

class RecalledEntries final : public KvCache {
 public:
  // As make_recalled() (retrieved.h).
  static Result<OwnedCache> make(const CompressedOptions& compressed, const RetrievedOptions& retrieved,
                                 const KvMemory& memory, const ModelWeights* weights);
  ~RecalledEntries() override;

  void serve(const EngineAccess& engine) override { prompts_cache().serve(engine); }
  void force_outcomes(const DataOutcomes* given) override;
  void begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
             const StepStream& on, StepRows* rows) override;
  void plan(const DeviceRows& rows, const StepStream& on) override;
  void attend(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
              const StepStream& on) override;
  StepListSpec listed(const DeviceRows& /*rows*/) const override { return listed(0u); }
  // Only steps in which all prompts are complete.
  bool repeats(StepGraphKey* graph_key) const override;
  SideStreams* side_streams() override;
  void end(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
           const StepStream& on, DataOutcomes* values) override;
  void notify(const Command& command) override;
  void copy(PageId source, PageId target, cudaStream_t stream) override;
  void warm_up(uint32_t size, const StepStream& on, StepRows* rows) override;

 private:
  struct Request {
    bool in_resident = false;
    std::vector<PageId> gpu, host_copies;  // while its prompt runs
  };
  // Rows [first, first + count) of the step that are rows [at, at + count) of a part.
  struct Run {
    uint32_t first = 0, at = 0, count = 0;
  };
  // One cache's part of a step.
  struct Part {
    std::vector<PlanEntry> launched, entries;
    std::vector<PageAllocation> allocations;
    std::vector<Compression> compressions;
    std::vector<ProbePass> passes;
    std::vector<Run> runs;
    uint32_t count = 0;  // rows
    LaunchStep launch;
    StepRows rows;
    DeviceRows on_device;
  };
  // Prompts whose last row is in this step.
  struct LastRow {
    RequestId request{};
    uint32_t row = 0;  // of part 0
  };
  // Prompts that are complete with this step, their passes of probe tokens included.
  struct Ending {
    RequestId request{};
    uint32_t tokens = 0;
  };
  static constexpr size_t kPrompts = 0, kResidentCaches = 1;

  RecalledEntries(const LlmSpec& llm, const KvMemory& memory) : llm_(llm), memory_(memory) {}
  Result<void> allocate();
  CompressedCache& prompts() const;
  RetrievedCache& resident_caches() const;
  KvCache& prompts_cache() const { return *caches_[kPrompts]; }
  void clear();
  void split(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries);
  void add_rows(uint32_t first, uint32_t count, Part* part);
  void send_rows(const StepStream& on);
  StepListSpec listed(uint32_t layer) const;
  bool aside(const Part& part) const { return part.runs.size() > 1; }
  LayerRows part_tensors(const Part& part, const LayerRows& tensors) const;
  void move_aside(const Part& part, const LayerRows& tensors, cudaStream_t stream) const;
  void move_back(const Part& part, const LayerRows& tensors, cudaStream_t stream) const;
  void store_last_queries(uint32_t layer, const LayerRows& tensors, cudaStream_t stream);
  void hand_over(const StepStream& on);

  const LlmSpec llm_;
  const KvMemory memory_;
  OwnedCache caches_[2];
  Buffer hidden_, qkv_, q_, out_;  // buffers for non-consecutive rows
  RowsUpload uploads_[2];
  std::map<RequestId, Request> requests_;
  Part parts_[2];
  std::vector<LastRow> last_rows_;
  std::vector<Ending> endings_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_RETRIEVAL_RECALLED_ENTRIES_H_
