#include "scenarios/sweep/slurm.h"

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "scenarios/app/results.h"

namespace kvtwin {
namespace {

// Quotes a word for the shell.
std::string quoted(const std::string& word) {
  std::string out(1, '\'');
  for (const char c : word) {
    if (c == '\'') out.append("'\\'");
    out.push_back(c);
  }
  out.push_back('\'');
  return out;
}

// Returns the exit status; -1: not found.
int run_sbatch(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const pid_t child = fork();
  if (child < 0) return -1;
  if (child == 0) {
    dup2(STDERR_FILENO, STDOUT_FILENO);  // stdout is for the table
    execvp(arguments[0], arguments.data());
    _exit(127);
  }
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

std::string slurm_script(const SlurmJob& job) {
  std::string out = fmt::format(
      "#!/bin/sh\n"
      "#SBATCH --job-name=kvtwin-sweep\n"
      "#SBATCH --array=0-{}\n"
      "#SBATCH --cpus-per-task={}\n"
      "#SBATCH --requeue\n"
      "#SBATCH --open-mode=append\n",
      job.tasks - 1, job.cpus);
  out += fmt::format("exec {}", quoted(job.program));
  for (const std::string& word : job.words) out += fmt::format(" {}", quoted(word));
  return out + fmt::format(" --jobs={} --quiet \"--shard=$SLURM_ARRAY_TASK_ID/{}\"\n", job.cpus, job.tasks);
}

Result<void> run_on_slurm(const SlurmJob& job) {
  if (Result<void> ok = write_files(job.dir, {{"slurm.sh", slurm_script(job)}}); !ok) return ok;
  std::vector<std::string> words = {"sbatch", "--wait", fmt::format("--output={}/slurm-%a.log", job.dir)};
  words.insert(words.end(), job.options.begin(), job.options.end());
  words.push_back(job.dir + "/slurm.sh");
  const int status = run_sbatch(words);
  if (status == 127 || status < 0)
    return make_error("--launcher=slurm", "sbatch was not found",
                      "run it on a submission host, or use --shard");
  std::error_code ignored;
  // sbatch exits with the worst task's status. The failure is sbatch's own only if no task wrote a log.
  if (status != 0 && !std::filesystem::exists(job.dir + "/slurm-0.log", ignored))
    return make_error("--launcher=slurm", fmt::format("sbatch ended with status {}", status),
                      "its message is above");
  return {};
}

}  // namespace kvtwin
