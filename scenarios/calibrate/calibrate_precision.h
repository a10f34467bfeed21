// Which tags lose least with 2 bits: TriAxialKV's calibration over the contexts of a trace
// (docs/design/methods/triaxialkv.md#calibration, #allocation).

#ifndef KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_PRECISION_H_
#define KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_PRECISION_H_

#include <vector>

#include "models/profiles/tag_map.h"
#include "scenarios/calibrate/calibrate_model.h"

namespace kvtwin {

// An axis of tags that the map shall not see: all tokens that differ in nothing else are measured as one, and
// get the same bits. What an axis is worth.
enum class BlindAxis : uint8_t { kNone, kTemporal, kSemantic };

struct PrecisionRequest {
  uint32_t bits_milli = 2'700;  // nominal average per value, thousandths
  bool greedy = false;          // the paper's allocation; else the exact one
  uint32_t rows = 32;           // the last rows of each prompt ask
  uint32_t layers = 4;          // evenly spread
  BlindAxis blind = BlindAxis::kNone;
};

// Layers that are looked at: the middles of `count` equal parts.
std::vector<uint32_t> spread_layers(uint32_t layers, uint32_t count);

// Groups are those of policies.precision_options.group. Errors: the trace says nothing of roles; the group
// does not divide the model's head.
Result<TagMap> calibrate_precision(const Scenario& scenario, const PrecisionRequest& request,
                                   CalibrationModel* model);

// Tags that were seen: tokens, what they lose with 2 and with 4 bits, and what they get.
std::string tag_map_table(const TagMap& map);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_PRECISION_H_
