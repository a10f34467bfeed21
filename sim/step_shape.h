// What a launched step is to a cost model.

#ifndef KVTWIN_SIM_STEP_SHAPE_H_
#define KVTWIN_SIM_STEP_SHAPE_H_

#include <vector>

#include "engine/policy/commands.h"
#include "models/cost_model.h"

namespace kvtwin::sim {

// Of the launch's first single step. Its chunks lie in *chunks, which must outlive the shape.
StepShape shape_of(const LaunchStep& command, std::vector<ChunkShape>* chunks);

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_STEP_SHAPE_H_
