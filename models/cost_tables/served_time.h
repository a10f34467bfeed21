// Corrections of the tables to steps as they are served: tables hold steps that a benchmark repeats. `kvtwin
// calibrate device` takes them from a run in which nothing is dropped or chosen
// (scenarios/validate/served_fit.h); here they are applied to the tables that price steps.
//
// A served replay of few requests is shorter than the tables' by a constant where the last step that was
// launched kernel by kernel had few tokens, and hardly where it had many (GraphShapes). Benchmarks do not
// show this: the same step takes the same time there, whatever was launched before, however its pages lie and
// however large the pool is (reports/evidence/validation/2026-11-22-h200.md).

#ifndef KVTWIN_MODELS_COST_TABLES_SERVED_TIME_H_
#define KVTWIN_MODELS_COST_TABLES_SERVED_TIME_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "models/cost_tables/measured_device.h"

namespace kvtwin {

enum class Served : uint8_t {
  kBehindMany,  // replays after a step of many tokens, once no chunk lowers the clock
  kFewRows,     // steps with prompts, of few tokens
  kBehindFew2,  // replays after a step of few tokens, of up to 2 requests, 4, 8, ...
  kBehindFew4,
  kBehindFew8,
  kBehindFew16,
  kBehindFew32,
  kBehindFew64,
};
constexpr size_t kServed = 8;
constexpr size_t kServedRequests = 6;  // kBehindFew2 and the following ones
// The name of the figure in a device file: us, measured less the tables' time.
const char* figure_of(Served what);

// The tables with served steps of `model`, whose decode attention has shape `heads`. Without such figures,
// `device` unchanged. Tables hold unchanged from twice as many requests on as were served.
MeasuredDevice as_served(MeasuredDevice device, const std::string& model, const std::string& heads,
                         uint32_t layers);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_TABLES_SERVED_TIME_H_
