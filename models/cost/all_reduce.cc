#include "models/cost/all_reduce.h"

#include <fmt/format.h>

#include <cmath>

namespace kvtwin {

AllReduceRate all_reduce_rate(const DeviceSpec& device, uint32_t gpus) {
  const AllReduceFigures* measured = nullptr;
  for (const AllReduceFigures& row : device.all_reduce) {
    if (row.gpus <= gpus) measured = &row;
  }
  if (measured != nullptr)
    return {measured->bytes_per_s.value / 1e9, measured->fixed_ns.value, measured->gpus};
  double bytes_per_s = device.nvlink_bytes_per_s.value;
  // PCIe doubles per generation; a lane of generation 3 carries 8 GT/s * 128/130 / 8 = 0.985 GB/s.
  if (!device.nvlink_bytes_per_s.present()) {
    bytes_per_s = 0.985e9 * std::exp2(device.pcie_gen.value - 3) * device.pcie_lanes.value;
  }
  return {bytes_per_s * device.nvlink_fraction.value / 1e9, device.all_reduce_fixed_ns.value, 0};
}

std::string all_reduce_text(const DeviceSpec& device, uint32_t gpus) {
  const AllReduceRate rate = all_reduce_rate(device, gpus);
  const std::string figures =
      fmt::format("{:.0f} GB/s and {:.1f} us each", rate.bytes_per_ns, rate.fixed_ns / 1e3);
  if (rate.measured_gpus > 0) return fmt::format("measured with {} GPUs: {}", rate.measured_gpus, figures);
  const char* const link = device.nvlink_bytes_per_s.present() ? "NVLink" : "PCIe";
  return fmt::format("ASSUMED: {} ({:.2f} of {}); models/device/measure_all_reduce.py measures it", figures,
                     device.nvlink_fraction.value, link);
}

}  // namespace kvtwin
