// The GPU, its driver and its current clocks; and the costs of launches, events and graphs on it. Calibration
// records them.

#ifndef KVTWIN_ENGINE_CUDA_DEVICE_DEVICE_FACTS_H_
#define KVTWIN_ENGINE_CUDA_DEVICE_DEVICE_FACTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/base/result.h"

namespace kvtwin::cuda {

struct DeviceFacts {
  std::string gpu, driver, cuda;
  uint32_t sm_count = 0;
  uint64_t memory_total = 0,
           memory_free = 0;  // bytes; the difference is used by contexts of this and other processes
};
// REQUIRES: check_gpu().
DeviceFacts device_facts();

// In MHz, now; 0: unknown.
struct Clocks {
  uint32_t sm = 0, memory = 0;
};
Clocks device_clocks();

// In us, one value per repetition, for one small kernel: a norm of one row.
struct LaunchTimes {
  std::vector<double> host;     // host time of a launch
  std::vector<double> device;   // device time back to back on a stream
  std::vector<double> evented;  // with an event between any two
  std::vector<double> graphed;  // in a graph
  std::vector<double> graph;    // host time of the launch of a graph of 100
  std::vector<double> sync;     // copy of four bytes to the host, and the wait for it
};
Result<LaunchTimes> launch_times();

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_DEVICE_DEVICE_FACTS_H_
