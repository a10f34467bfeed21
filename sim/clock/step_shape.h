// Conversion of launched steps to the shapes that cost models price.

#ifndef KVTWIN_SIM_CLOCK_STEP_SHAPE_H_
#define KVTWIN_SIM_CLOCK_STEP_SHAPE_H_

#include <span>
#include <vector>

#include "engine/base/commands.h"
#include "models/cost/cost_model.h"

namespace kvtwin::sim {

CompressionShape shape_of(const Compression& compression, std::span<const PlanEntry> entries);
// The shape of the launch's first single step, without its compressions. Its chunks and passes lie in *chunks
// and *passes, which must outlive the shape. `lists_entries`: requests with dropped slots are read entry by
// entry (StepShape::listed_decodes).
StepShape shape_of(const LaunchStep& command, bool lists_entries, std::vector<ChunkShape>* chunks,
                   std::vector<PassShape>* passes);

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_CLOCK_STEP_SHAPE_H_
