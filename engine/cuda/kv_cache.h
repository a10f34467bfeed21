// KvCache keeps the KV of an engine's requests on the GPU: which KV entries the rows of a step write, and
// which they read. What cpu::KvCache is to the CPU engine, with work lists in place of loops:
//
//   begin(step)   page tables take what requests reuse and what they were granted; the step's lists are
//   written plan()        the lists are on the device attend(l)     per layer: rows are written and read
//   end(step)     the stream has come to its end: what the values decided
//   notify, copy  requests that end; pages between tiers
//
// Everything between begin() and end() is started on one stream and waits for nothing, unless a KvCache says
// otherwise. One implementation per way of keeping KV; what they share they request, they do not inherit it.

#ifndef KVTWIN_ENGINE_CUDA_KV_CACHE_H_
#define KVTWIN_ENGINE_CUDA_KV_CACHE_H_

#include <cstdint>
#include <functional>
#include <span>

#include "engine/cuda/device/operation_timer.h"
#include "engine/cuda/device/step_rows.h"
#include "engine/cuda/owned_cache.h"
#include "engine/cuda/row_attention.h"
#include "engine/runtime/outcome_source.h"

namespace kvtwin::cuda {

// Where a step is computed, and what notes its operations.
struct StepStream {
  cudaStream_t stream = nullptr;
  OperationTimer* timer = nullptr;
};

// Attention of one layer over all rows of a batch. What the rows are is between it and who requests
// CudaForward.
class LayerAttention {
 public:
  virtual ~LayerAttention() = default;
  // Once, before the first layer.
  virtual void plan(const DeviceRows& rows, const StepStream& on) = 0;
  virtual void attend(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
                      const StepStream& on) = 0;
  // What the step's list of operations depends on, with `rows`, but for samples.
  virtual StepListSpec listed(const DeviceRows& rows) const = 0;
  // Whether what plan() and attend() start depends on *form alone, so that it can be captured once and
  // replayed for equal ones (step_graphs.h). form->rows is there; what else it depends on is added.
  virtual bool repeats(StepGraphKey* /*form*/) const { return false; }
};

class CudaForward;
class SideStreams;

// What the engine lends those that run rows of their own, or keep something for a session.
struct EngineAccess {
  CudaForward* forward = nullptr;
  // The input at a position of a request: of its prompt, of what was sampled (or forced) so far.
  std::function<uint32_t(RequestId request, uint32_t position)> token;
  std::function<SessionId(RequestId request)> session;
  std::function<uint32_t(RequestId request)> prompt_tokens, output_tokens;
};

class KvCache : public LayerAttention {
 public:
  // Once, before any step.
  virtual void serve(const EngineAccess& /*engine*/) {}
  // ForcibleSource::impose, before begin(): null by the time of the step after. Caches in which values
  // decide nothing need not listen.
  virtual void force_outcomes(const DataOutcomes* /*given*/) {}
  // Single step launch.step + offset begins. `entries` are launch.entries as they are at this offset: their
  // context counts it. Row r is token r of all entries, one after the other. Writes all lists of *rows but
  // tokens and sampling.
  virtual void begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
                     const StepStream& on, StepRows* rows) = 0;
  // Its streams besides the step's (step_graphs.h), if steps that repeat use some.
  virtual SideStreams* side_streams() { return nullptr; }
  // Its rows went through all layers, and the host has waited for it. Adds what the values decided to
  // *values. What it starts itself it waits for.
  virtual void end(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
                   const StepStream& on, DataOutcomes* values) = 0;
  // Commands other than LaunchStep, in order; transfers come as copy().
  virtual void notify(const Command& command) = 0;
  // Starts the copy of a page between tiers, or within one.
  virtual void copy(PageId source, PageId target, cudaStream_t stream) = 0;
  // Of several, target by target.
  virtual void copy_all(std::span<const PageId> source, std::span<const PageId> target, cudaStream_t stream) {
    for (size_t i = 0; i < source.size(); ++i) copy(source[i], target[i], stream);
  }
  // Lists of `size` rows that use a page without an owner: for the first, slow launch of each kernel.
  virtual void warm_up(uint32_t size, const StepStream& on, StepRows* rows) = 0;
  // begin() pads steps of decodes to captured sizes (StepRows::padding), so that every such step has one of
  // so many forms, of each size. 0: begin() does not pad.
  virtual uint32_t padded_forms() const { return 0; }
  // Writes the lists of a step of a form that has `size` rows of padding and no other rows: it starts what
  // steps of that form and size start.
  virtual void fill_up(uint32_t /*form*/, uint32_t /*size*/, const StepStream& /*on*/, StepRows* /*rows*/) {}
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_KV_CACHE_H_
