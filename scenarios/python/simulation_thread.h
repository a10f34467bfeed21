// The thread that makes every run of a process. SimGrid has one simulation at a time, and all of them in the
// thread that made the first. The thread is never joined: it may be in the middle of an abandoned run when
// the process ends.

#ifndef KVTWIN_SCENARIOS_PYTHON_SIMULATION_THREAD_H_
#define KVTWIN_SCENARIOS_PYTHON_SIMULATION_THREAD_H_

#include <sys/types.h>

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

namespace kvtwin {

class SimulationThread {
 public:
  // Never destroyed.
  static SimulationThread& get();

  // False in a process that was forked from one that already ran something: the thread is not in it.
  bool usable() const;
  // True inside work that this thread runs, where run() would wait for itself.
  static bool is_this_thread();

  // Runs `work` after everything that was submitted before. Calls `wait_on` several times a second until it
  // has ended. If `wait_on` throws, the work goes on without its caller, so it must own what it uses.
  // REQUIRES: usable(), !is_this_thread(); `work` does not throw.
  void run(std::function<void()> work, const std::function<void()>& wait_on);

 private:
  struct Job {
    std::function<void()> work;
    bool done = false;
  };
  void serve();

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::shared_ptr<Job>> jobs_;
  pid_t process_ = 0;  // that the thread is in; 0: it is not started
};

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_PYTHON_SIMULATION_THREAD_H_
