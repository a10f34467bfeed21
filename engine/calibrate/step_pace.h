// How long steps of a model take, roughly and before any was measured: it decides how many of them a
// measurement needs. Effects of the clock are bound to time, and a step of a model of 32 billion parameters
// takes four times as long as one of 8 billion.

#ifndef KVTWIN_ENGINE_CALIBRATE_STEP_PACE_H_
#define KVTWIN_ENGINE_CALIBRATE_STEP_PACE_H_

#include <cstdint>

#include "models/catalog/llm.h"

namespace kvtwin::cuda {

// A GPU that computes prompts lowers its clock about 40 ms after the start, and again after about 600 ms. It
// then raises it a little. A pause of 30 to 60 ms resets it
// (reports/evidence/validation/2026-11-22-h200.md).
constexpr double kLoadWindowUs = 40e3, kIdleUs = 80e3;
constexpr double kShortBusyUs = 150e3;  // after the window: where tables of chunks are measured

// Of one measurement: steps that are not counted, and those that are.
struct StepRounds {
  uint32_t warm = 0, steps = 0;
  uint32_t middle() const { return warm + steps / 2; }
};

class StepPace {
 public:
  explicit StepPace(const LlmSpec& llm);  // REQUIRES: a dense model, in bf16

  // Time in us of a step of `tokens` rows without contexts: it reads the weights or computes the products,
  // whichever takes longer.
  double us(uint32_t tokens) const;
  // Chunks: steps that fill the window on which prices depend, and steps that end before the clock falls for
  // the second time, but at least three.
  StepRounds chunks(uint32_t tokens) const;
  // Decodes: warm until the graph is captured and the clock is stable. Long steps vary less, so fewer of them
  // give the same median.
  StepRounds decodes() const;
  // Steps that are measured one by one, each behind idle time.
  uint32_t singles() const;

 private:
  double weights_us_ = 0, token_us_ = 0;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CALIBRATE_STEP_PACE_H_
