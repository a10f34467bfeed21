#include "sim/step_shape.h"

#include <algorithm>

namespace kvtwin::sim {

StepShape shape_of(const LaunchStep& command, std::vector<ChunkShape>* chunks) {
  StepShape shape;
  chunks->clear();
  for (const PlanEntry& entry : command.entries) {
    shape.logits_rows += entry.samples ? 1 : 0;
    switch (entry.kind) {
      case EntryKind::kDecode:
        ++shape.decodes;
        shape.decode_context_sum += entry.live();
        shape.decode_context_max = std::max(shape.decode_context_max, entry.live());
        shape.decode_narrow_sum += entry.narrow;
        break;
      case EntryKind::kChunk:
      case EntryKind::kProbe:  // computes like a chunk and keeps nothing
        chunks->push_back({entry.tokens, entry.live(), entry.narrow});
        break;
      case EntryKind::kMaintain:  // moves pages on the device: no policy asks for it yet, and no price exists
        break;
    }
  }
  shape.tokens = command.tokens;
  shape.tokens_padded = command.tokens_padded;
  shape.chunks = *chunks;
  return shape;
}

}  // namespace kvtwin::sim
