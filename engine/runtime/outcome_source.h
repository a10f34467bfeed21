// OutcomeSource reports the outcomes of a step: what depends on the data and therefore only an engine that
// computes, or a model of the data, can know.
//
// The simulated backend queries one for every single step, in order, before it prices the step. The source is
// a behaviour model (sim/behaviour_*.h: fixed, profile, recorded), or the CPU engine, which computes the
// values while the simulator keeps the clock (--clock=virtual).
// docs/design/backend-interface-and-digest.md#outcomes.

#ifndef KVTWIN_ENGINE_RUNTIME_OUTCOME_SOURCE_H_
#define KVTWIN_ENGINE_RUNTIME_OUTCOME_SOURCE_H_

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/base/commands.h"
#include "engine/base/events.h"

namespace kvtwin {

// In-step recall of one layer, summed over the requests of a step. The unit is one page of one KV head.
struct LayerRecall {
  uint32_t blocking = 0;    // pages recalled before this step's attention (corrected heads, no speculation)
  uint32_t background = 0;  // pages recalled after it, for the next step's attention
  uint32_t corrected = 0;   // KV heads whose speculation was rejected, over the requests
  // Denominators of the rates, over the requests: KV heads that selected pages, and pages that they selected.
  uint32_t heads = 0;
  uint32_t chosen = 0;
};

struct DataOutcomes {
  std::vector<LayerRecall> recalls;          // by layer; empty: the step reads all KV entries that it has
  std::vector<CompressionOutcome> retained;  // one per Compression of the step, in their order
  std::vector<uint32_t> retained_counts;     // storage of retained[].counts
  std::vector<uint64_t> retained_live;       // storage of retained[].live
  std::vector<RequestId> eos;

  void clear() {
    recalls.clear();
    retained.clear();
    retained_counts.clear();
    retained_live.clear();
    eos.clear();
  }

  // Ends the next element of `retained`: it covers the counts and bits appended since the element before.
  // Its spans are set by link_retained(), to be called once after the last element, because vectors that
  // grow move.
  void end_retained(RequestId request) {
    retained.push_back({request, {}, {}});
    retained_ends.emplace_back(retained_counts.size(), retained_live.size());
  }
  void link_retained() {
    size_t counts = 0, live = 0;
    for (size_t i = 0; i < retained_ends.size(); ++i) {
      retained[i].counts = {retained_counts.data() + counts, retained_ends[i].first - counts};
      retained[i].live = {retained_live.data() + live, retained_ends[i].second - live};
      std::tie(counts, live) = retained_ends[i];
    }
    retained_ends.clear();
  }

  std::vector<std::pair<size_t, size_t>> retained_ends;  // between end_retained() and link_retained()
};

class OutcomeSource {
 public:
  virtual ~OutcomeSource() = default;
  // Outcomes of single step launch.step + offset (offset < launch.repeat) replace *values. Called once per
  // single step that runs, in order of steps. REQUIRES: the spans of `launch` are still valid.
  virtual void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) = 0;
  // Every other command that the policy submits to the backend, in order (state to drop, transfers).
  virtual void notify(const Command& command) = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_RUNTIME_OUTCOME_SOURCE_H_
