#include "engine/common/side_by_side.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

namespace kvtwin::cpu {
namespace {

using Work = std::function<void(uint32_t)>;

// Threads that stay for the whole process: starting one costs the host more than most items of work do.
class Workers {
 public:
  Workers() {
    const uint32_t others = std::max(1u, std::thread::hardware_concurrency()) - 1;
    for (uint32_t i = 0; i < others; ++i) threads_.emplace_back([this] { serve(); });
  }
  ~Workers() {
    {
      const std::scoped_lock lock(mutex_);
      ending_ = true;
    }
    begun_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  // Returns false, and runs nothing, if the threads are busy with another call, or if they belong to the
  // process that this one was forked from.
  bool run(uint32_t count, const Work& work) {
    if (process_ != getpid()) return false;
    const std::unique_lock turn(turns_, std::try_to_lock);
    if (!turn) return false;
    std::unique_lock lock(mutex_);
    work_ = &work, count_ = count, next_ = 0, busy_ = threads_.size(), ++round_;
    lock.unlock();
    begun_.notify_all();
    take();
    lock.lock();
    ended_.wait(lock, [&] { return busy_ == 0; });
    return true;
  }

 private:
  void take() {
    for (uint32_t i = next_++; i < count_; i = next_++) (*work_)(i);
  }
  void serve() {
    for (uint64_t done = 0;; ++done) {
      std::unique_lock lock(mutex_);
      begun_.wait(lock, [&] { return ending_ || round_ > done; });
      if (ending_) return;
      lock.unlock();
      take();
      lock.lock();
      if (--busy_ == 0) ended_.notify_one();
    }
  }

  const pid_t process_ = getpid();
  std::mutex turns_, mutex_;
  std::condition_variable begun_, ended_;
  const Work* work_ = nullptr;
  uint32_t count_ = 0;
  std::atomic<uint32_t> next_ = 0;
  size_t busy_ = 0;     // threads that have not ended this round
  uint64_t round_ = 0;  // calls so far
  bool ending_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace

void side_by_side(uint32_t count, const Work& work) {
  static thread_local bool inside = false;  // work that calls this again does it alone
  if (count > 1 && !inside) {
    static Workers workers;
    inside = true;
    const bool ran = workers.run(count, [&](uint32_t i) {
      inside = true;
      work(i);
    });
    inside = false;
    if (ran) return;
  }
  for (uint32_t i = 0; i < count; ++i) work(i);
}

}  // namespace kvtwin::cpu
