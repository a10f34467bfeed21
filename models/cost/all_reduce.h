// The time of collective operations between the GPUs that share a model.

#ifndef KVTWIN_MODELS_COST_ALL_REDUCE_H_
#define KVTWIN_MODELS_COST_ALL_REDUCE_H_

#include <cstdint>
#include <string>

#include "models/catalog/device.h"

namespace kvtwin {

// Ring or one-shot all-reduce of GPUs joined all to all: each GPU sends and receives 2 (n-1)/n of the
// message (Thakur, Rabenseifner, Gropp 2005), at a fixed latency.
struct AllReduceRate {
  double bytes_per_ns = 1;
  double fixed_ns = 0;
  uint32_t measured_gpus = 0;  // GPUs that it was measured with; 0: assumed

  double ns(double bytes, uint32_t gpus) const {
    if (gpus <= 1) return 0;
    return fixed_ns + 2.0 * (gpus - 1) / gpus * bytes / bytes_per_ns;
  }
};

// As measured with the largest number of GPUs that is at most `gpus`. Where nothing was measured: the assumed
// fraction of NVLink, or of PCIe at its raw rate per lane.
AllReduceRate all_reduce_rate(const DeviceSpec& device, uint32_t gpus);

// One line about the rate and what it rests on: "measured with 4 GPUs, ..." or "ASSUMED, ...".
std::string all_reduce_text(const DeviceSpec& device, uint32_t gpus);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_ALL_REDUCE_H_
