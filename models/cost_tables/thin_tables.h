// Leaves out measured points that their neighbours give anyway.

#ifndef KVTWIN_MODELS_COST_TABLES_THIN_TABLES_H_
#define KVTWIN_MODELS_COST_TABLES_THIN_TABLES_H_

#include <cstddef>
#include <cstdint>

#include "models/cost_tables/measured_device.h"

namespace kvtwin {

// The most points of a device's file, those of formats included.
constexpr size_t kPointsMax = 400;

size_t points_of(const MeasuredDevice& device);
// Leaves out points, the least wrong ones first, until `most` are left. A point is as wrong as the step's
// time would be if its operation were interpolated instead, relative to the step; `layers` is the model's
// number. The first and the last point of a curve stay. A file with few enough points does not change.
void thin_tables(uint32_t layers, size_t most, MeasuredDevice* device);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_TABLES_THIN_TABLES_H_
