// GraphShapes knows which decode steps our CUDA engine replays as a graph (engine/cuda/device/step_graphs.h):
// those whose form it has met three times, among the forms that it met last. The others it starts operation
// by operation.
//
// The engine compares where lists lie and how long they are (StepGraphKey). Of a policy's step that follows
// from: how many rows there are, padded and not, and how many sample; where requests choose what they read,
// how many do (their lists); whether any page is completed (lists of summaries, which are there or not); and
// whether any request has dropped slots (then all decodes read lists of entries, by another kernel). Steps
// that compute prompts or drop KV entries are never graphs.
//
// It knows too how many rows the last step had that was started operation by operation: replays are slower
// behind one of many rows, all of them, until the next step of few rows is started so
// (reports/evidence/validation/2026-11-22-h200.md).

#ifndef KVTWIN_MODELS_COST_GRAPH_SHAPES_H_
#define KVTWIN_MODELS_COST_GRAPH_SHAPES_H_

#include <algorithm>
#include <cstdint>
#include <list>

#include "models/cost/cost_model.h"

namespace kvtwin {

class GraphShapes {
 public:
  struct Key {
    uint32_t padded = 0, decodes = 0, samples = 0, choosing = 0;
    bool fills = false, listed = false;
    bool operator==(const Key&) const = default;
    bool is_none() const { return decodes == 0; }  // of a step that is never a graph
  };
  // Products of more rows come from other kernels than those of decode steps.
  static constexpr uint32_t kManyRows = 256;
  // Met so often, a form is replayed like ever after.
  static constexpr auto kMost = static_cast<uint32_t>(GraphUse::kReplayed);

  // `kept` forms; 0: nothing is remembered, and every step is kReplayed.
  explicit GraphShapes(uint32_t kept) : retained_(kept) {}

  static Key key(const StepShape& shape) {
    if (!shape.chunks.empty() || !shape.compressions.empty()) return {};
    return {shape.tokens_padded, shape.decodes,          shape.logits_rows,
            shape.choosing,      shape.pages_filled > 0, shape.listed_decodes > 0};
  }

  // How often the form was met, kMost at most.
  uint32_t seen(const Key& key) const {
    const auto found = std::find_if(met_.begin(), met_.end(), [&](const Met& one) { return one.key == key; });
    return found == met_.end() ? 0 : found->times;
  }
  // A step of a form that was met so often, before this one.
  GraphUse use(const Key& key, uint32_t seen) const {
    if (retained_ == 0) return GraphUse::kReplayed;
    return key.is_none() ? GraphUse::kNew : static_cast<GraphUse>(std::min(seen, kMost));
  }
  // Of a step that was used so: 0 if it is a replay.
  static uint32_t started_rows(const StepShape& shape) {
    const bool replay = shape.chunks.empty() && shape.graph == GraphUse::kReplayed;
    return replay ? 0 : std::max(shape.tokens, shape.tokens_padded);
  }
  // Rows of the last step that was started operation by operation.
  uint32_t last_started() const { return last_started_; }

  // A step of this form ran, and had started_rows(); or: and that is last_started() now.
  void add(const Key& key, uint32_t started_rows = 0) {
    if (retained_ == 0) return;
    if (started_rows > 0) last_started_ = started_rows;
    if (key.is_none()) return;
    const auto found = std::find_if(met_.begin(), met_.end(), [&](const Met& one) { return one.key == key; });
    if (found != met_.end()) {
      met_.splice(met_.begin(), met_, found);
      met_.front().times = std::min(met_.front().times + 1, kMost);
      return;
    }
    if (met_.size() == retained_) met_.pop_back();
    met_.push_front({key, 1});
  }

 private:
  struct Met {
    Key key;
    uint32_t times = 0;
  };
  uint32_t retained_;
  std::list<Met> met_;  // the last one met first
  uint32_t last_started_ = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_GRAPH_SHAPES_H_
