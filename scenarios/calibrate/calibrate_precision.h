// TriAxialKV's calibration over the contexts of a trace: finds the tags that lose least with 2 bits
// (docs/design/methods/triaxialkv.md#calibration, #allocation).

#ifndef KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_PRECISION_H_
#define KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_PRECISION_H_

#include <vector>

#include "models/profiles/tag_map.h"
#include "scenarios/calibrate/calibrate_model.h"

namespace kvtwin {

// An axis of tags that the calibration ignores, to measure its worth: tags that differ in this axis only are
// measured as one, and get the same bits.
enum class BlindAxis : uint8_t { kNone, kTemporal, kSemantic };

struct PrecisionRequest {
  uint32_t bits_milli = 2'700;  // nominal average per value, in thousandths
  bool greedy = false;          // the paper's allocation; else the exact one
  uint32_t rows = 32;           // query tokens: the last ones of each prompt
  uint32_t layers = 4;          // number of layers, evenly spread
  BlindAxis blind = BlindAxis::kNone;
};

// The layers to measure: the middles of `count` equal parts.
std::vector<uint32_t> spread_layers(uint32_t layers, uint32_t count);

// The quantisation group is policies.precision_options.group. Errors: the trace has no roles; the group does
// not divide the model's head dimension.
Result<TagMap> calibrate_precision(const Scenario& scenario, const PrecisionRequest& request,
                                   CalibrationModel* model);

// A table of the tags that occur: tokens, their loss with 2 and with 4 bits, and their allocated bits.
std::string tag_map_table(const TagMap& map);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_CALIBRATE_CALIBRATE_PRECISION_H_
