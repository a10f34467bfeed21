// Accuracy check of a calibration: measured steps whose shapes are in no table, with their predictions.

#ifndef KVTWIN_ENGINE_CALIBRATE_CALIBRATION_CHECKS_H_
#define KVTWIN_ENGINE_CALIBRATE_CALIBRATION_CHECKS_H_

#include <cstdint>
#include <vector>

#include "engine/calibrate/step_bench.h"
#include "engine/calibrate/step_pace.h"
#include "models/cost/cost_model.h"
#include "models/cost_tables/measured_device.h"

namespace kvtwin::cuda {

// `rows`: captured numbers of rows, ascending. Steps with more rows are omitted.
std::vector<HeldOutStep> held_out_steps(StepBench* bench, CostModel* cost, const StepPace& pace,
                                        const std::vector<uint32_t>& rows);

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CALIBRATE_CALIBRATION_CHECKS_H_
