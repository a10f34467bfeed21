#include "engine/common/side_by_side.h"

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

namespace kvtwin::cpu {

void side_by_side(uint32_t count, const std::function<void(uint32_t)>& work) {
  std::atomic<uint32_t> next = 0;
  const auto take = [&] {
    for (uint32_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::thread> others;
  const uint32_t threads = std::min(count, std::max(1u, std::thread::hardware_concurrency()));
  for (uint32_t i = 1; i < threads; ++i) others.emplace_back(take);
  take();
  for (std::thread& other : others) other.join();
}

}  // namespace kvtwin::cpu
