#include "scenarios/sweep/pool.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <deque>
#include <map>
#include <optional>

namespace kvtwin {
namespace {

// Runs between fork and exec: it must not take locks or allocate memory.
[[noreturn]] void become(const char* program, char* const* words, const char* errors, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127);  // the parent died before the prctl
  const int out = open("/dev/null", O_WRONLY), err = open(errors, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (out < 0 || err < 0) _exit(126);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  execv(program, words);
  _exit(127);
}

pid_t start(const std::string& program, const Job& job) {
  std::vector<char*> words = {const_cast<char*>(program.c_str())};
  for (const std::string& word : job.words) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) become(program.c_str(), words.data(), job.errors.c_str(), parent);
  return child;
}

// Chooses the job to start next: the first of a lane with room.
class Lanes {
 public:
  Lanes(const std::vector<Job>& jobs, const std::vector<uint32_t>& at_once) : jobs_(jobs) {
    for (const uint32_t room : at_once) lanes_.push_back({room, {}});
    for (size_t job = 0; job < jobs.size(); ++job) lanes_.at(jobs[job].lane).waiting.push_back(job);
  }
  bool all_started() const { return started_ == jobs_.size(); }
  std::optional<size_t> next() const {
    for (const Lane& lane : lanes_) {
      if (lane.room > 0 && !lane.waiting.empty()) return lane.waiting.front();
    }
    return std::nullopt;
  }
  void started(size_t job) {
    Lane& lane = lanes_.at(jobs_[job].lane);
    lane.waiting.pop_front();
    --lane.room;
    ++started_;
  }
  void ended(size_t job) { ++lanes_.at(jobs_[job].lane).room; }

 private:
  struct Lane {
    uint32_t room = 0;
    std::deque<size_t> waiting;
  };
  const std::vector<Job>& jobs_;
  std::vector<Lane> lanes_;
  size_t started_ = 0;
};

}  // namespace

Result<void> run_jobs(const std::string& program, const std::vector<Job>& jobs,
                      const std::vector<uint32_t>& at_once, const std::function<bool(const JobEnd&)>& ended) {
  std::map<pid_t, size_t> running;
  Lanes lanes(jobs, at_once);
  bool go_on = true;
  while ((go_on && !lanes.all_started()) || !running.empty()) {
    const std::optional<size_t> next = go_on ? lanes.next() : std::nullopt;
    if (next) {
      const pid_t child = start(program, jobs[*next]);
      if (child > 0) {
        running[child] = *next;
        lanes.started(*next);
        continue;
      }
      if (running.empty())
        return make_error(program, fmt::format("cannot be started: {}", std::strerror(errno)));
      // Too many processes at present: wait for one of ours to end.
    }
    int status = 0;
    const pid_t child = waitpid(-1, &status, 0);
    if (child < 0 && errno == EINTR) continue;
    const auto found = running.find(child);
    if (found == running.end()) continue;
    const size_t job = found->second;
    running.erase(found);
    lanes.ended(job);
    go_on = ended({job, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)}) && go_on;
  }
  return {};
}

std::string own_program() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "kvtwin";
}

}  // namespace kvtwin
