// KvCache keeps the KV of an engine's requests: which KV entries the rows of a step write, and which they
// read.
//
// The policy says which pages belong to whom; what lies in them, in which format, and what attention makes of
// it is a KvCache's. CpuEngine runs the model around it:
//
//   begin(step)   page tables take what requests reuse and what they were granted
//   attend(l)     per layer: rows are written and read (forward.h)
//   end(step)     what the values decided: KV entries kept, pages missed
//   notify(command) transfers, and requests that end
//
// One implementation per way of keeping KV; what they share they request, they do not inherit it.

#ifndef KVTWIN_ENGINE_CPU_KV_CACHE_H_
#define KVTWIN_ENGINE_CPU_KV_CACHE_H_

#include <cstdint>
#include <functional>
#include <span>

#include "engine/cpu/forward.h"
#include "engine/runtime/outcome_source.h"

namespace kvtwin::cpu {

// The memory that a KvCache deals with.
struct KvMemory {
  uint32_t page_tokens = 16;
  uint32_t pages_gpu = 0;   // pages [0, pages_gpu) of the address space
  uint32_t pages_host = 0;  // behind them
  bool poison = false;      // pages are filled with NaN when they are granted, or left the disk: tests
  uint32_t pages_disk = 0;  // behind the host's

  uint64_t pages() const { return uint64_t{pages_gpu} + pages_host + pages_disk; }
};

// What the engine lends those that run rows of their own, or keep something for a session.
struct EngineAccess {
  Forward* forward = nullptr;
  // The input at a position of a request: of its prompt, of what was sampled (or forced) so far.
  std::function<uint32_t(RequestId request, uint32_t position)> token;
  std::function<SessionId(RequestId request)> session;
  std::function<uint32_t(RequestId request)> prompt_tokens, output_tokens;
};

class KvCache : public LayerAttention {
 public:
  // Once, before anything else.
  virtual void serve(const EngineAccess& /*engine*/) {}
  // ForcibleSource::impose, before begin(): null by the time of the step after. Caches in which values
  // decide nothing need not listen.
  virtual void force_outcomes(const DataOutcomes* /*given*/) {}
  // Single step launch.step + offset begins. `entries` are launch.entries as they are at this offset: their
  // context counts it. Row r of attend() is token r of all entries, one after the other.
  virtual void begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) = 0;
  // Its rows went through all layers. Adds what the values decided to *values.
  virtual void end(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
                   DataOutcomes* values) = 0;
  // Commands other than LaunchStep, in order.
  virtual void notify(const Command& command) = 0;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_KV_CACHE_H_
