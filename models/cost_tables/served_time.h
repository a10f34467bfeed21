// What steps of the dense engine take as they are served, beside what tables say, which hold steps that one
// bench repeats. kvtwin calibrate methods learns it from a run in which nothing is dropped or chosen
// (scenarios/validate/served_fit.h); here it moves the tables that steps are priced with.
//
// A served replay of few requests is a constant time shorter than the tables' where the last step that was
// started operation by operation had few rows, and hardly where it had many (GraphShapes). No bench shows
// that: the same step takes the same there, whatever was started before, however its pages lie and however
// large the pool is (reports/evidence/validation/2026-11-22-h200.md).

#ifndef KVTWIN_MODELS_COST_TABLES_SERVED_TIME_H_
#define KVTWIN_MODELS_COST_TABLES_SERVED_TIME_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "models/cost_tables/measured_device.h"

namespace kvtwin {

enum class Served : uint8_t {
  kNew,  // the first steps of a form: as GraphUse
  kCaptured,
  kInstantiated,
  kBehindMany,  // replays behind a step of many rows, once no chunk's clock slows them
  kFewRows,     // steps with prompts, of few rows
  kBehindFew2,  // replays behind a step of few rows, likewise: of up to 2 requests, 4, 8, ...
  kBehindFew4,
  kBehindFew8,
  kBehindFew16,
  kBehindFew32,
  kBehindFew64,
};
constexpr size_t kServed = 11;
constexpr size_t kServedRequests = 6;  // of these, of kBehindFew2 and on
// The figure that says so in a device's file: us, measured less what tables say.
const char* figure_of(Served what);

// Tables that hold served steps of `model`, whose decode attention has shape `heads`. Without such figures,
// `device` as it is. More requests than were served are as tables say: from twice as many on.
MeasuredDevice as_served(MeasuredDevice device, const std::string& model, const std::string& heads,
                         uint32_t layers);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_TABLES_SERVED_TIME_H_
