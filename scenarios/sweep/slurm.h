// Submits a sweep to Slurm: one array job whose tasks are the sweep's shards, in the same folder. A task that
// is requeued or killed finds its finished points when it starts again, as any sweep does.

#ifndef KVTWIN_SCENARIOS_SWEEP_SLURM_H_
#define KVTWIN_SCENARIOS_SWEEP_SLURM_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/result.h"

namespace kvtwin {

struct SlurmJob {
  std::string program;             // kvtwin, on a path that all nodes have
  std::vector<std::string> words;  // the sweep's arguments, without --shard
  std::string dir;                 // the sweep's folder, on a path that all nodes have
  uint32_t tasks = 1;
  uint32_t cpus = 1;                 // per task; also the number of points that a task runs concurrently
  std::vector<std::string> options;  // additional options of sbatch
};

// The batch script, the content of `dir`/slurm.sh.
std::string slurm_script(const SlurmJob& job);
// Writes the script, submits it and waits for the end of all tasks. Errors: there is no sbatch, or it
// refuses. Failed tasks are no error here: their points count as missing.
Result<void> run_on_slurm(const SlurmJob& job);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_SWEEP_SLURM_H_
