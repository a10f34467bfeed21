// OutcomeSource says what the data decided in a step: what only values, or a model of them, can know.
//
// The simulated world asks one for every single step, in order, before it prices the step: behaviour
// models (sim/behaviour_*.h: fixed, profile, recorded) answer there, or the CPU engine, which computes the
// values for real while the simulator keeps the clock (--clock=virtual). DESIGN 3, "Outcomes".

#ifndef KVTWIN_ENGINE_OUTCOME_SOURCE_H_
#define KVTWIN_ENGINE_OUTCOME_SOURCE_H_

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/policy/commands.h"
#include "engine/policy/events.h"

namespace kvtwin {

// In-step retrieval of one layer, summed over the calls of a step. The unit is one page of one KV head.
struct LayerRecall {
  uint32_t blocking = 0;    // recalled before this step's attention (corrected heads, or no speculation)
  uint32_t background = 0;  // recalled after it, for the next step's
  uint32_t corrected = 0;   // KV heads whose speculation was off, over the calls
  // What rates are shares of, over the calls: KV heads that chose pages, and the pages that they chose.
  uint32_t heads = 0;
  uint32_t chosen = 0;

  // Heads that recall before attention.
  uint32_t heads_waiting() const { return blocking == 0 ? 0 : corrected > 0 ? corrected : heads; }
};

struct StepValues {
  std::vector<LayerRecall> recalls;   // by layer; empty: the step reads everything it has
  std::vector<CellsKept> kept;        // one per Compression of the step, in their order
  std::vector<uint32_t> kept_counts;  // what `kept` points into
  std::vector<uint64_t> kept_live;    // likewise
  std::vector<CallId> eos;

  void clear() {
    recalls.clear();
    kept.clear();
    kept_counts.clear();
    kept_live.clear();
    eos.clear();
  }

  // Ends the next of `kept`: its counts and bits are what was appended since the one before. Its spans are
  // there from link_kept() on, called once behind the last of them: vectors that grow move.
  void end_kept(CallId call) {
    kept.push_back({call, {}, {}});
    kept_ends.emplace_back(kept_counts.size(), kept_live.size());
  }
  void link_kept() {
    size_t counts = 0, live = 0;
    for (size_t i = 0; i < kept_ends.size(); ++i) {
      kept[i].counts = {kept_counts.data() + counts, kept_ends[i].first - counts};
      kept[i].live = {kept_live.data() + live, kept_ends[i].second - live};
      std::tie(counts, live) = kept_ends[i];
    }
    kept_ends.clear();
  }

  std::vector<std::pair<size_t, size_t>> kept_ends;  // between end_kept() and link_kept()
};

class OutcomeSource {
 public:
  virtual ~OutcomeSource() = default;
  // Single step launch.step + offset, offset < launch.repeat: its values replace *values. Asked once per
  // single step that runs, in order of steps. REQUIRES: the spans of `launch` are still valid.
  virtual void step(const LaunchStep& launch, uint32_t offset, StepValues* values) = 0;
  // Every other command that the policy gave to the world, in order (state to drop, transfers).
  virtual void told(const Command& command) = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_OUTCOME_SOURCE_H_
