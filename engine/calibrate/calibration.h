// Calibration implements calibrate_device(), in the order of run(). Only its own .cc files include this
// header.
//
// calibrate_device.cc: tables of operations, from steps of decodes and of chunks. calibrate_clock.cc: effects
// of earlier and concurrent steps. calibrate_copies.cc: copies of pages between tiers.

#ifndef KVTWIN_ENGINE_CALIBRATE_CALIBRATION_H_
#define KVTWIN_ENGINE_CALIBRATE_CALIBRATION_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/calibrate/calibrate_device.h"
#include "engine/calibrate/calibration_tables.h"
#include "engine/calibrate/chunk_load.h"
#include "engine/calibrate/chunk_runs.h"
#include "engine/calibrate/step_bench.h"
#include "engine/calibrate/step_pace.h"
#include "models/cost_tables/measured_cost.h"

namespace kvtwin::cuda {

constexpr int kChunkPasses = 2;

class Calibration {
 public:
  explicit Calibration(const CalibrationRequest& request)
      : request_(request),
        shapes_(request.llm),
        pace_(request.llm),
        rows_(calibrated_rows(request.quick)),
        tables_(shapes_.model, request.llm.layers) {}

  Result<MeasuredDevice> run();

 private:
  Result<void> make();
  Result<std::unique_ptr<StepBench>> bench(bool timed);
  TimedStep parts_of(const StepTimes& timed, const BenchShape& at, bool attention) const;
  TimedStep attention_of(const BenchShape& at, const Measured& wall, const Measured& beside) const;
  void note_clocks();
  void short_decodes();
  void long_decodes();
  void after_chunks();
  std::vector<uint32_t> chunk_tokens() const;
  void pass_over_chunks();
  TimedStep timed_chunk(uint32_t tokens, uint32_t context);
  void chunks();
  Result<void> launches();
  std::string page_shape(uint32_t page_tokens) const;  // bytes of a page, all layers
  void copies(StepBench* bench, uint32_t page_tokens);
  Result<void> copies_of_larger_pages();
  void both_ways();
  void copies_during_steps(StepBench* bench, uint32_t page_tokens);
  void during_copies();
  void after_load();
  void small_after_load();
  void busy_period(double length);
  void busy_curves();
  void pauses();
  void wait_idle();
  Result<void> launched();
  Result<void> during_chunks();
  void figure(const std::string& name, const char* unit, const std::vector<double>& values);
  void say(const std::string& text) const {
    if (request_.progress) request_.progress(text);
  }

  const CalibrationRequest& request_;
  const MeasuredShapes shapes_;
  const StepPace pace_;
  const std::vector<uint32_t> rows_;
  std::unique_ptr<DeviceModel> model_;
  std::unique_ptr<StepBench> plain_, timed_;
  std::unique_ptr<ChunkRuns> chunk_runs_;
  CalibrationTables tables_;
  std::map<uint32_t, std::vector<double>> by_ms_;
  MeasuredDevice out_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CALIBRATE_CALIBRATION_H_
