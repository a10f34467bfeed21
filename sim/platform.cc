#include "sim/platform.h"

#include <algorithm>
#include <cmath>
#include <string>

namespace kvtwin::sim {
namespace {

constexpr double kRateMax = 1e6;  // GB/s; above it, a copy of a page takes less than a nanosecond
constexpr int64_t kOverheadMax = 1'000'000'000;

std::string bad_rate(const char* name, double value, bool may_be_zero) {
  if (may_be_zero && value == 0) return {};
  if (std::isfinite(value) && value >= 1e-3 && value <= kRateMax) return {};
  return std::string(name) + " is " + std::to_string(value);
}

}  // namespace

Result<void> validate_platform(const PlatformSpec& spec) {
  for (const PlatformSpec& node : spec.further) {
    if (!node.further.empty() || node.disk_read_gb_per_s > 0)
      return make_error("node", "a further node has further ones or a disk", "only the first may");
    if (Result<void> ok = validate_platform(node); !ok) return ok;
  }
  if (uint64_t all = 0; std::any_of(spec.further.begin(), spec.further.end(), [&](const PlatformSpec& node) {
        return (all += node.gpus) + spec.gpus > 4096;
      })) {
    return make_error("node", "the cluster has more than 4096 GPUs", "up to 4096 would be right");
  }
  if (spec.gpus == 0 || spec.gpus > 4096) {
    return make_error("node", "gpus is " + std::to_string(spec.gpus), "1 to 4096 would be right");
  }
  if (spec.sockets == 0 || spec.sockets > spec.gpus) {
    return make_error(
        "node", "sockets is " + std::to_string(spec.sockets),
        "at least 1 and at most the number of GPUs (" + std::to_string(spec.gpus) + ") would be right");
  }
  for (const auto& [name, value] : {std::pair("copy_overhead_in", spec.copy_overhead_in),
                                    std::pair("copy_overhead_out", spec.copy_overhead_out)}) {
    if (value.ns < 0 || value.ns > kOverheadMax) {
      return make_error("node", std::string(name) + " is " + std::to_string(value.ns) + " ns",
                        "0 to 10^9 ns would be right");
    }
  }
  for (const std::string& what :
       {bad_rate("pcie_gb_per_s", spec.pcie_gb_per_s, false),
        bad_rate("pcie_out_gb_per_s", spec.pcie_out_gb_per_s, true),
        bad_rate("pcie_both_gb_per_s", spec.pcie_both_gb_per_s, true),
        bad_rate("host_memory_gb_per_s", spec.host_memory_gb_per_s, false),
        bad_rate("socket_link_gb_per_s", spec.socket_link_gb_per_s, spec.sockets == 1),
        bad_rate("nvlink_gb_per_s", spec.nvlink_gb_per_s, true),
        bad_rate("nic_gb_per_s", spec.nic_gb_per_s, true),
        bad_rate("disk_read_gb_per_s", spec.disk_read_gb_per_s, true),
        bad_rate("disk_write_gb_per_s", spec.disk_write_gb_per_s, spec.disk_read_gb_per_s == 0)}) {
    if (!what.empty()) return make_error("node", what, "0.001 to 1,000,000 GB/s would be right");
  }
  return {};
}

std::vector<NodePlace> nodes_of(const PlatformSpec& cluster) {
  std::vector<NodePlace> out = {{&cluster, 0, 0, 0}};
  for (const PlatformSpec& node : cluster.further) {
    const NodePlace& before = out.back();
    out.push_back({&node, before.index + 1, before.gpu_first + before.node->gpus,
                   before.socket_first + before.node->sockets});
  }
  return out;
}

uint32_t gpus_of(const PlatformSpec& cluster) {
  uint32_t gpus = cluster.gpus;
  for (const PlatformSpec& node : cluster.further) gpus += node.gpus;
  return gpus;
}

uint32_t sockets_of(const PlatformSpec& cluster) {
  uint32_t sockets = cluster.sockets;
  for (const PlatformSpec& node : cluster.further) sockets += node.sockets;
  return sockets;
}

NodePlace node_of(const PlatformSpec& cluster, uint32_t gpu) {
  NodePlace place{&cluster, 0, 0, 0};
  for (const PlatformSpec& node : cluster.further) {
    if (gpu < place.gpu_first + place.node->gpus) break;
    place = {&node, place.index + 1, place.gpu_first + place.node->gpus,
             place.socket_first + place.node->sockets};
  }
  return place;
}

uint32_t socket_of(const PlatformSpec& cluster, uint32_t gpu) {
  const NodePlace place = node_of(cluster, gpu);
  const uint64_t inside = gpu - place.gpu_first;
  return place.socket_first + static_cast<uint32_t>(inside * place.node->sockets / place.node->gpus);
}

double gpu_path_gb_per_s(const PlatformSpec& cluster, uint32_t source, uint32_t target) {
  const NodePlace from = node_of(cluster, source), to = node_of(cluster, target);
  if (from.index != to.index) return std::min(from.node->nic_gb_per_s, to.node->nic_gb_per_s);
  if (from.node->nvlink_gb_per_s > 0) return from.node->nvlink_gb_per_s;
  const double out = from.node->pcie_out_gb_per_s;
  return out > 0 ? std::min(out, from.node->pcie_gb_per_s) : from.node->pcie_gb_per_s;
}

Duration copy_time(uint64_t bytes, double gb_per_s) {
  return {std::llround(static_cast<double>(bytes) / gb_per_s)};
}

}  // namespace kvtwin::sim
