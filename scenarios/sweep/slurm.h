// Hands a sweep to Slurm: one array job whose tasks are the sweep's shards, in the same folder. A task that
// is requeued or killed finds its finished points when it starts again, like any sweep.

#ifndef KVTWIN_SCENARIOS_SWEEP_SLURM_H_
#define KVTWIN_SCENARIOS_SWEEP_SLURM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/result.h"

namespace kvtwin {

struct SlurmJob {
  std::string program;             // kvtwin, on a path that the nodes see too
  std::vector<std::string> words;  // of the sweep, without --shard
  std::string dir;                 // of the sweep, likewise
  uint32_t tasks = 1;
  uint32_t cpus = 1;                 // of each task, which runs as many points at once
  std::vector<std::string> options;  // more of sbatch's
};

// The batch script: what `dir`/slurm.sh will hold.
std::string slurm_script(const SlurmJob& job);
// Writes the script, submits it and waits for the end of all tasks. Wrong: there is no sbatch, or it refuses.
// Tasks that failed are no error here: what they did not do is missing.
Result<void> run_on_slurm(const SlurmJob& job);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_SWEEP_SLURM_H_
