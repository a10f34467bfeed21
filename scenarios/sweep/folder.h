// Which sweep a folder is of. Points are found by the fingerprint of their inputs, so that several sweeps can
// share a folder; but the table, the index and a report show one of them, and the others would be lost to the
// eye. So a folder is of one scenario, one set of axes and one list of settings, which DIR/sweep.textproto
// names. Other values on the same axes, and shards, are the same sweep.

#ifndef KVTWIN_SCENARIOS_SWEEP_FOLDER_H_
#define KVTWIN_SCENARIOS_SWEEP_FOLDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/result.h"

namespace kvtwin {

// As on the command line.
struct SweepWords {
  std::string scenario;
  std::vector<std::string> vary, sets;
};

// Equal for the same sweep.
uint64_t sweep_fingerprint(const SweepWords& words);

// Fails if `dir` is of another sweep.
Result<void> check_same_sweep(const std::string& dir, const SweepWords& words);

// Makes `dir` one of this sweep. An error here is the environment's.
Result<void> note_sweep(const std::string& dir, const SweepWords& words);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_SWEEP_FOLDER_H_
