#include "sim/platform.h"

#include <cmath>
#include <string>

namespace kvtwin::sim {
namespace {

constexpr double kRateMax = 1e6;  // GB/s; beyond, a copy of a page takes less than a nanosecond
constexpr int64_t kOverheadMax = 1'000'000'000;

std::string bad_rate(const char* name, double value, bool may_be_zero) {
  if (may_be_zero && value == 0) return {};
  if (std::isfinite(value) && value >= 1e-3 && value <= kRateMax) return {};
  return std::string(name) + " is " + std::to_string(value);
}

}  // namespace

Result<void> validate_platform(const PlatformSpec& spec) {
  if (spec.gpus == 0 || spec.gpus > 4096) {
    return mistake("node", "gpus is " + std::to_string(spec.gpus), "1 to 4096 would be right");
  }
  if (spec.sockets == 0 || spec.sockets > spec.gpus) {
    return mistake(
        "node", "sockets is " + std::to_string(spec.sockets),
        "at least 1 and at most the number of GPUs (" + std::to_string(spec.gpus) + ") would be right");
  }
  for (const auto& [name, value] : {std::pair("copy_overhead_in", spec.copy_overhead_in),
                                    std::pair("copy_overhead_out", spec.copy_overhead_out)}) {
    if (value.ns < 0 || value.ns > kOverheadMax) {
      return mistake("node", std::string(name) + " is " + std::to_string(value.ns) + " ns",
                     "0 to 10^9 ns would be right");
    }
  }
  for (const std::string& what :
       {bad_rate("pcie_gb_per_s", spec.pcie_gb_per_s, false),
        bad_rate("host_memory_gb_per_s", spec.host_memory_gb_per_s, false),
        bad_rate("socket_link_gb_per_s", spec.socket_link_gb_per_s, spec.sockets == 1),
        bad_rate("nvlink_gb_per_s", spec.nvlink_gb_per_s, true),
        bad_rate("disk_gb_per_s", spec.disk_gb_per_s, true)}) {
    if (!what.empty()) return mistake("node", what, "0.001 to 1,000,000 GB/s would be right");
  }
  return {};
}

Duration copy_time(uint64_t bytes, double gb_per_s) {
  return {std::llround(static_cast<double>(bytes) / gb_per_s)};
}

}  // namespace kvtwin::sim
