#include "scenarios/sweep/pool.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <deque>
#include <optional>

namespace kvtwin {
namespace {

// Runs between fork and exec: it must not take locks or allocate memory. `alive` stays open as long as the
// process lives.
[[noreturn]] void become(const char* program, char* const* words, const char* errors, pid_t parent,
                         int alive) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (fcntl(alive, F_SETFD, 0) < 0) _exit(126);
  if (getppid() != parent) _exit(127);  // the parent died before the prctl
  const int out = open("/dev/null", O_WRONLY), err = open(errors, O_WRONLY | O_CREAT | O_TRUNC, 0644);
  if (out < 0 || err < 0) _exit(126);
  dup2(out, STDOUT_FILENO);
  dup2(err, STDERR_FILENO);
  execv(program, words);
  _exit(127);
}

// A child process. A pipe tells its end, because waiting for any child would also take those of other parts
// of this process (of a Python program, say).
struct Child {
  pid_t pid = -1;
  int alive = -1;  // the reading end
  size_t job = 0;
};

int status_of(pid_t child) {
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The children that run. If an exception ends the pool, they end too.
class Children {
 public:
  Children() = default;
  Children(const Children&) = delete;
  Children& operator=(const Children&) = delete;
  ~Children() {
    for (const Child& child : all_) kill(child.pid, SIGKILL);
    for (const Child& child : all_) status_of(child.pid), close(child.alive);
  }
  bool empty() const { return all_.empty(); }
  void add(const Child& child) { all_.push_back(child); }
  // Waits until one ends, and removes it.
  JobEnd wait_for_one();

 private:
  std::vector<Child> all_;
};

std::optional<Child> start(const std::string& program, const std::vector<Job>& jobs, size_t at) {
  const Job& job = jobs[at];
  int alive[2];
  if (pipe2(alive, O_CLOEXEC) != 0) return std::nullopt;
  std::vector<char*> words = {const_cast<char*>(program.c_str())};
  for (const std::string& word : job.words) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) become(program.c_str(), words.data(), job.errors.c_str(), parent, alive[1]);
  close(alive[1]);
  if (child > 0) return Child{child, alive[0], at};
  close(alive[0]);
  return std::nullopt;
}

JobEnd Children::wait_for_one() {
  std::vector<pollfd> ends;
  for (const Child& child : all_) ends.push_back({child.alive, POLLIN, 0});
  while (poll(ends.data(), ends.size(), -1) < 0 && errno == EINTR) {
  }
  const auto ended =
      std::find_if(ends.begin(), ends.end(), [](const pollfd& end) { return end.revents != 0; });
  const auto at = all_.begin() + (ended - ends.begin());
  const Child child = *at;
  all_.erase(at);
  close(child.alive);
  return {child.job, status_of(child.pid)};
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
  Children running;
  Lanes lanes(jobs, at_once);
  bool go_on = true;
  while ((go_on && !lanes.all_started()) || !running.empty()) {
    const std::optional<size_t> next = go_on ? lanes.next() : std::nullopt;
    if (next) {
      if (const std::optional<Child> child = start(program, jobs, *next)) {
        running.add(*child);
        lanes.started(*next);
        continue;
      }
      if (running.empty())
        return make_error(program, fmt::format("cannot be started: {}", std::strerror(errno)));
      // Too many processes at present: wait for one of ours to end.
    }
    const JobEnd end = running.wait_for_one();
    lanes.ended(end.job);
    go_on = ended(end) && go_on;
  }
  return {};
}

std::string own_program() {
  char path[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", path, sizeof path);
  return length > 0 ? std::string(path, static_cast<size_t>(length)) : "kvtwin";
}

}  // namespace kvtwin
