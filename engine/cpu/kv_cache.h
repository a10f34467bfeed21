// KvCache manages the KV of an engine's requests: which KV entries the rows of a step write and read.
//
// The policy assigns pages to requests. A KvCache implements the content of pages, its format, and attention
// over it. CpuEngine runs the model and calls it:
//
//   begin(step)      page tables receive prefix hits and allocations
//   attend(layer)    rows are written and read (forward.h)
//   end(step)        outcomes: retained KV entries, recalled pages
//   notify(command)  transfers, and requests that end
//
// There is one implementation per KV layout. Common code is composed, not inherited.

#ifndef KVTWIN_ENGINE_CPU_KV_CACHE_H_
#define KVTWIN_ENGINE_CPU_KV_CACHE_H_

#include <cstdint>
#include <functional>
#include <span>

#include "engine/cpu/forward.h"
#include "engine/runtime/outcome_source.h"

namespace kvtwin::cpu {

// The memory that a KvCache manages.
struct KvMemory {
  uint32_t page_tokens = 16;
  uint32_t pages_gpu = 0;   // pages [0, pages_gpu) of the address space
  uint32_t pages_host = 0;  // pages after them
  bool poison = false;      // fill pages with NaN when they are allocated or leave the disk; for tests
  uint32_t pages_disk = 0;  // pages after the host's

  uint64_t pages() const { return uint64_t{pages_gpu} + pages_host + pages_disk; }
};

// Access to the engine, for caches that run rows of their own or store data per session.
struct EngineAccess {
  Forward* forward = nullptr;
  // The input token at a position of a request: of its prompt, or sampled (or forced) so far.
  std::function<uint32_t(RequestId request, uint32_t position)> token;
  std::function<SessionId(RequestId request)> session;
  std::function<uint32_t(RequestId request)> prompt_tokens, output_tokens;
};

class KvCache : public LayerAttention {
 public:
  // Called once, before anything else.
  virtual void serve(const EngineAccess& /*engine*/) {}
  // ForcibleSource::force_outcomes(); called before begin(), and with null after the step. Caches without
  // data-dependent outcomes may ignore it.
  virtual void force_outcomes(const DataOutcomes* /*given*/) {}
  // Single step launch.step + offset begins. `entries` are launch.entries with their context advanced to this
  // offset. Row r of attend() is token r of all entries, concatenated.
  virtual void begin(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries) = 0;
  // The step's rows went through all layers. Adds the outcomes to *values.
  virtual void end(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
                   DataOutcomes* values) = 0;
  // Commands other than LaunchStep, in order.
  virtual void notify(const Command& command) = 0;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_CPU_KV_CACHE_H_
