#include "scenarios/python/simulation_thread.h"

#include <unistd.h>

#include <chrono>
#include <thread>
#include <utility>

namespace kvtwin {
namespace {

thread_local bool serves = false;

}  // namespace

SimulationThread& SimulationThread::get() {
  static auto* const only = new SimulationThread;
  return *only;
}

bool SimulationThread::usable() const { return process_ == 0 || process_ == getpid(); }

bool SimulationThread::is_this_thread() { return serves; }

void SimulationThread::serve() {
  serves = true;
  for (;;) {
    std::shared_ptr<Job> job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [&] { return !jobs_.empty(); });
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job->work();
    const std::lock_guard lock(mutex_);
    job->work = nullptr;
    job->done = true;
    changed_.notify_all();
  }
}

void SimulationThread::run(std::function<void()> work, const std::function<void()>& wait_on) {
  const auto job = std::make_shared<Job>();
  job->work = std::move(work);
  std::unique_lock lock(mutex_);
  if (process_ == 0) {
    process_ = getpid();
    std::thread([this] { serve(); }).detach();
  }
  jobs_.push_back(job);
  changed_.notify_all();
  while (!changed_.wait_for(lock, std::chrono::milliseconds(100), [&] { return job->done; })) {
    lock.unlock();
    wait_on();
    lock.lock();
  }
}

}  // namespace kvtwin
