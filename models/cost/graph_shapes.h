// GraphShapes models which decode steps our CUDA engine replays as a graph
// (engine/cuda/device/step_graphs.h) where it makes graphs as forms of steps come up (DecodeGraphs::kMet):
// those whose graph key it has seen three times, among the keys seen most recently. It launches the others
// kernel by kernel.
//
// The engine compares the places and lengths of lists (StepGraphKey). For a policy's step these follow from:
// the numbers of tokens, padded and not, and of tokens that sample; the number of requests that choose pages
// (their lists); whether any page is completed (lists of summaries exist); and whether any request has
// dropped slots (then another kernel reads lists of entries for all decodes). Steps that compute prompts or
// drop KV entries are never graphs.

#ifndef KVTWIN_MODELS_COST_GRAPH_SHAPES_H_
#define KVTWIN_MODELS_COST_GRAPH_SHAPES_H_

#include <algorithm>
#include <cstdint>
#include <list>

#include "models/cost/cost_model.h"

namespace kvtwin {

// How an engine replays decode steps: not at all; as graphs that it makes when a form comes up (GraphShapes);
// or as graphs of all forms, made before the first step.
enum class DecodeGraphs : uint8_t { kNone, kMet, kPrepared };

class GraphShapes {
 public:
  struct Key {
    uint32_t padded = 0, decodes = 0, samples = 0, choosing = 0;
    bool fills = false, listed = false;
    bool operator==(const Key&) const = default;
    bool is_none() const { return decodes == 0; }  // a step that is never a graph
  };
  // A key seen this often is replayed from then on.
  static constexpr auto kMost = static_cast<uint32_t>(GraphUse::kReplayed);

  // Remembers `kept` keys; 0: none, and every step is kReplayed.
  explicit GraphShapes(uint32_t kept) : retained_(kept) {}

  static Key key(const StepShape& shape) {
    if (!shape.chunks.empty() || !shape.passes.empty() || !shape.compressions.empty()) return {};
    return {shape.tokens_padded, shape.decodes,          shape.logits_rows,
            shape.choosing,      shape.pages_filled > 0, shape.listed_decodes > 0};
  }

  // How often the key was seen, at most kMost.
  uint32_t seen(const Key& key) const {
    const auto found = std::find_if(met_.begin(), met_.end(), [&](const Met& one) { return one.key == key; });
    return found == met_.end() ? 0 : found->times;
  }
  // The use of a step whose key was seen `seen` times before it.
  GraphUse use(const Key& key, uint32_t seen) const {
    if (retained_ == 0) return GraphUse::kReplayed;
    return key.is_none() ? GraphUse::kNew : static_cast<GraphUse>(std::min(seen, kMost));
  }
  // A step with this key ran.
  void add(const Key& key) {
    if (retained_ == 0) return;
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
  std::list<Met> met_;  // most recent first
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_GRAPH_SHAPES_H_
