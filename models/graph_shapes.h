// GraphShapes knows which decode steps our CUDA engine replays as a graph (engine/cuda/step_graphs.h): those
// whose shape it has met twice, among the shapes that it met last. The others it starts operation by
// operation.

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

  // `kept` shapes: 0: nothing is remembered, and seen() is kReplayed.
  explicit GraphShapes(uint32_t kept) : kept_(kept) {}

  static Key key(const StepShape& shape) {
    if (shape.decodes == 0 || !shape.chunks.empty()) return kNone;
    return uint64_t{shape.tokens_padded} << 42 | uint64_t{shape.decodes} << 21 | shape.logits_rows;
  }

  // How often the shape was met, kReplayed at most.
  static constexpr uint32_t kReplayed = 2;
  uint32_t seen(Key key) const {
    if (kept_ == 0) return kReplayed;
    const auto found = std::find_if(met_.begin(), met_.end(), [&](const Met& one) { return one.key == key; });
    return found == met_.end() ? 0 : found->times;
  }

  // A step of this shape ran.
  void add(Key key) {
    if (kept_ == 0 || key == kNone) return;
    const auto found = std::find_if(met_.begin(), met_.end(), [&](const Met& one) { return one.key == key; });
    if (found != met_.end()) {
      met_.splice(met_.begin(), met_, found);
      met_.front().times = std::min(met_.front().times + 1, kReplayed);
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
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_GRAPH_SHAPES_H_
