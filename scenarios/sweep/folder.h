// The sweep that a folder belongs to. Points are found by the fingerprint of their inputs, so several sweeps
// could use one folder; but the table, the index and a report cover one sweep and would hide the others. So a
// folder belongs to one scenario, one set of axes and one list of settings, which DIR/sweep.textproto names.
// Other values on the same axes, and shards, are the same sweep.

#ifndef KVTWIN_SCENARIOS_SWEEP_FOLDER_H_
#define KVTWIN_SCENARIOS_SWEEP_FOLDER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/result.h"

namespace kvtwin {

// A sweep's arguments, as on the command line.
struct SweepWords {
  std::string scenario;
  std::vector<std::string> vary, sets;
};

// Equal for arguments of the same sweep.
uint64_t sweep_fingerprint(const SweepWords& words);

// Fails if `dir` belongs to another sweep.
Result<void> check_same_sweep(const std::string& dir, const SweepWords& words);

// Writes DIR/sweep.textproto, with the command in a comment if one is given. An error here is an environment
// failure.
Result<void> note_sweep(const std::string& dir, const SweepWords& words, const std::string& command = {});

// The command of DIR/sweep.textproto; one made from its words if it names none. "": there is no such file.
std::string sweep_command(const std::string& dir);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_SWEEP_FOLDER_H_
