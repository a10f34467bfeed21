// GraphShapes knows which decode steps our CUDA engine replays as a graph (engine/cuda/step_graphs.h): those
// whose shape it has met twice, among the shapes that it met last. The others it starts operation by
// operation.
//
// It knows too how many rows the last step had that was started operation by operation: replays are slower
// behind one of many rows, all of them, until the next step of few rows is started so
// (reports/validation/2026-11-22-h200.md).

#ifndef KVTWIN_MODELS_GRAPH_SHAPES_H_
#define KVTWIN_MODELS_GRAPH_SHAPES_H_

#include <algorithm>
#include <cstdint>
#include <list>

#include "models/cost_model.h"

namespace kvtwin {

class GraphShapes {
 public:
  using Key = uint64_t;
  static constexpr Key kNone = 0;  // of a step that is never a graph
  // So often a shape is met before it is replayed.
  static constexpr uint32_t kReplayed = 2;
  // Products of more rows come from other kernels than those of decode steps.
  static constexpr uint32_t kManyRows = 256;

  // `kept` shapes: 0: nothing is remembered, and seen() is kMetOften.
  explicit GraphShapes(uint32_t kept) : kept_(kept) {}

  static Key key(const StepShape& shape) {
    if (shape.decodes == 0 || !shape.chunks.empty()) return kNone;
    return uint64_t{shape.tokens_padded} << 42 | uint64_t{shape.decodes} << 21 | shape.logits_rows;
  }

  // How often the shape was met, kMetOften at most.
  uint32_t seen(Key key) const {
    if (kept_ == 0) return kMetOften;
    const auto found = std::find_if(met_.begin(), met_.end(), [&](const Met& one) { return one.key == key; });
    return found == met_.end() ? 0 : found->times;
  }
  // Of a step of this shape that was met so often: 0 if it is a replay.
  static uint32_t started_rows(const StepShape& shape) {
    const bool replay = shape.chunks.empty() && shape.met >= kReplayed;
    return replay ? 0 : std::max(shape.tokens, shape.tokens_padded);
  }
  // Rows of the last step that was started so.
  uint32_t last_started() const { return last_started_; }

  // A step of this shape ran, and had started_rows(); or: and that is last_started() now.
  void add(Key key, uint32_t started_rows) {
    if (kept_ == 0) return;
    if (started_rows > 0) last_started_ = started_rows;
    if (key == kNone) return;
    const auto found = std::find_if(met_.begin(), met_.end(), [&](const Met& one) { return one.key == key; });
    if (found != met_.end()) {
      met_.splice(met_.begin(), met_, found);
      met_.front().times = std::min(met_.front().times + 1, kMetOften);
      return;
    }
    if (met_.size() == kept_) met_.pop_back();
    met_.push_front({key, 1});
  }

 private:
  struct Met {
    Key key = kNone;
    uint32_t times = 0;
  };
  uint32_t kept_;
  std::list<Met> met_;  // the last one met first
  uint32_t last_started_ = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_GRAPH_SHAPES_H_
