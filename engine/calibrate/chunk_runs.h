// ChunkRuns measures steps with one prompt chunk without a context, repeatedly over the whole calibration.
// Each measurement begins after idle time, so that the clock is in the same state; repetitions limit the
// effect of one disturbed measurement.
//
// A chunk of many rows is computed without pauses until the window on which prices depend is full, and for a
// while after that. The first step is the duration of a chunk after idle time; tables contain the steps after
// the window. A chunk of few rows (up to kDecodeRowsMax) is computed once between decodes, as in a server,
// several times.

#ifndef KVTWIN_ENGINE_CALIBRATE_CHUNK_RUNS_H_
#define KVTWIN_ENGINE_CALIBRATE_CHUNK_RUNS_H_

#include <cstdint>
#include <map>
#include <vector>

#include "engine/calibrate/calibration_tables.h"
#include "engine/calibrate/step_bench.h"
#include "models/cost_tables/measured_device.h"

namespace kvtwin::cuda {

class ChunkRuns {
 public:
  // `bench` must outlive this.
  explicit ChunkRuns(StepBench* bench) : bench_(*bench) {}

  // Measures chunks of all these sizes once, in another order each time.
  void pass(const std::vector<uint32_t>& tokens);

  // The table entry of a size. REQUIRES: it was measured.
  Measured taken(uint32_t tokens) const { return middle_of(taken_.at(tokens)); }
  // For chunks of many rows: durations in `kLoadSteps` steps, by the fraction of the preceding window that
  // was spent on chunks, in permille.
  std::map<uint32_t, Measured> by_load(uint32_t tokens) const;

 private:
  void between_decodes(uint32_t tokens);
  void without_pause(uint32_t tokens);

  StepBench& bench_;
  uint64_t passes_ = 0;
  std::map<uint32_t, std::vector<double>> taken_;
  std::map<uint32_t, std::map<uint32_t, std::vector<double>>> loads_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CALIBRATE_CHUNK_RUNS_H_
