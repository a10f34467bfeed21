// CalibrationTables converts steps that were timed twice, operation by operation and as a whole, into the
// tables that models/cost_tables/measured_cost.h prices steps with. It uses no CUDA.

#ifndef KVTWIN_ENGINE_CALIBRATE_CALIBRATION_TABLES_H_
#define KVTWIN_ENGINE_CALIBRATE_CALIBRATION_TABLES_H_

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "models/cost_tables/measured_device.h"

namespace kvtwin::cuda {

// The mean of the middle three fifths, with the percentiles of all values: the clock has a few discrete
// speeds, between which a median would jump. REQUIRES: not empty.
Measured middle_of(std::vector<double> us);

// A step of one chunk, or of decodes only.
struct TimedStep {
  // One operation, and its position in its table.
  struct Part {
    std::string operation, shape;
    uint32_t rows = 0, context = 0;
    Measured time;         // of one operation, its event included
    uint32_t count = 0;    // in the step
    bool retained = true;  // a table stores it
    bool attention = false;
  };
  std::vector<Part> parts;
  Measured wall;    // of the whole step, without events; 0: only its operations were timed
  Measured beside;  // without events: that of the step with the shortest context, measured next to this one
  uint32_t events = 0;
  bool chunk = false;
  uint32_t rows = 0;  // tokens of the chunk, or requests that decode
};

class CalibrationTables {
 public:
  // `model` is the shape name of the tables that describe the model as a whole.
  CalibrationTables(std::string model, uint32_t layers) : model_(std::move(model)), layers_(layers) {}

  // The first measurement of a size applies, and is returned.
  Measured keep(const char* operation, const std::string& shape, uint32_t rows, uint32_t context,
                const Measured& value);
  // REQUIRES: of steps with the same number of rows, the one with the shortest context comes first.
  void add(TimedStep step) { steps_.push_back(std::move(step)); }
  // Durations of operations with at most kFewRows rows come from decodes.
  static constexpr uint32_t kFewRows = 256;
  // Additional duration in us of a decode step of `requests` requests without a graph.
  void set_launching(uint32_t requests, double us) { launching_[requests] = us; }

  // Computes the tables from the added steps. To be called once.
  struct Found {
    double event_us = 0;               // duration that an event adds to an operation
    std::vector<double> host_percent;  // by step: the part that no operation explains
  };
  Found take_steps();
  std::vector<MeasuredTable> tables() const;

 private:
  struct Base {
    double attention = 0, host = 0, event = 0;
  };
  const Measured* find(const TimedStep::Part& part) const;
  double fraction(const TimedStep& step, double event) const;
  Base take_first(const TimedStep& step, double event);
  void take_further(const TimedStep& step, const Base& base);
  Measured longer_step(const TimedStep& step, const Base& base) const;

  const std::string model_;
  const double layers_;
  std::vector<TimedStep> steps_;
  std::map<uint32_t, double> launching_;
  std::map<std::pair<std::string, std::string>, std::map<std::pair<uint32_t, uint32_t>, Measured>> tables_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CALIBRATE_CALIBRATION_TABLES_H_
