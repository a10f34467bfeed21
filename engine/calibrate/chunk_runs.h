// ChunkRuns measures steps of one chunk of a prompt, again and again over the whole calibration: each visit
// begins after idle time, so the clock is in the same state, and what one bad moment does to a visit the
// others outvote.
//
// A chunk of many rows is computed without a pause until the window that prices look back on is full, and for
// a while behind that: the first step is what a chunk takes after idle time, the ones behind the window are
// what tables hold. A chunk of few rows (up to kDecodeRowsMax) is computed once between decodes, as servers
// have it, several times over.

#ifndef KVTWIN_ENGINE_CALIBRATE_CHUNK_RUNS_H_
#define KVTWIN_ENGINE_CALIBRATE_CHUNK_RUNS_H_

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "engine/calibrate/calibration_tables.h"
#include "engine/calibrate/step_bench.h"
#include "models/cost_tables/measured_device.h"

namespace kvtwin::cuda {

class ChunkRuns {
 public:
  using Size = std::pair<uint32_t, uint32_t>;  // tokens, context

  // `bench` must outlive this.
  explicit ChunkRuns(StepBench* bench) : bench_(*bench) {}

  // Visits all sizes once, each time in another order.
  void pass(const std::vector<Size>& sizes);
  // One size, of either kind.
  void visit(const Size& size);

  // What a table holds of the size. REQUIRES: it was visited.
  Measured taken(const Size& size) const { return middle_of(taken_.at(size)); }
  // Of chunks of many rows without context: by how much of the window before was spent on chunks, in
  // permille, in `kLoadSteps` steps.
  std::map<uint32_t, Measured> by_load(uint32_t tokens) const;

 private:
  void between_decodes(const Size& size);
  void without_pause(const Size& size);

  StepBench& bench_;
  uint64_t passes_ = 0;
  std::map<Size, std::vector<double>> taken_;
  std::map<uint32_t, std::map<uint32_t, std::vector<double>>> loads_;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CALIBRATE_CHUNK_RUNS_H_
