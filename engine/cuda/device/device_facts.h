// What GPU this is, what drives it and how fast it is clocked now; and what launches, events and graphs cost
// on it. For the record that calibration leaves.

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
  uint64_t memory_total = 0, memory_free = 0;  // bytes; the difference is contexts, ours and others'
};
// REQUIRES: check_gpu().
DeviceFacts device_facts();

// In MHz, now; 0: the driver does not say.
struct Clocks {
  uint32_t sm = 0, memory = 0;
};
Clocks device_clocks();

// In us, by repeat: one small kernel, a norm of one row.
struct LaunchTimes {
  std::vector<double> host;     // the host starts one
  std::vector<double> device;   // one behind the other on the stream
  std::vector<double> evented;  // with an event between each two
  std::vector<double> graphed;  // in a graph
  std::vector<double> graph;    // the host starts a graph of 100
  std::vector<double> sync;     // four bytes to the host, and a wait for them
};
Result<LaunchTimes> launch_times();

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CUDA_DEVICE_DEVICE_FACTS_H_
