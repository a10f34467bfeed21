// PlatformSpec describes the simulated node or cluster in plain numbers. It depends on nothing of SimGrid;
// scenarios/ fills it.
//
// One GB/s is 10^9 bytes per second, or one byte per nanosecond. The defaults are one H200 on PCIe 5, as
// measured: copies of 16 KB to 64 MB fit overhead + bytes / rate within 2 %.

#ifndef KVTWIN_SIM_PLATFORM_H_
#define KVTWIN_SIM_PLATFORM_H_

#include <cstdint>
#include <vector>

#include "engine/base/result.h"
#include "engine/base/units.h"

namespace kvtwin::sim {

struct PlatformSpec {
  uint32_t gpus = 1;
  uint32_t sockets = 1;               // GPU i belongs to socket i * sockets / gpus
  double pcie_gb_per_s = 55.4;        // per GPU and direction, both directions at once
  double pcie_out_gb_per_s = 0;       // GPU to host, if different; 0: the same
  double pcie_both_gb_per_s = 0;      // per GPU, both directions together; 0: they are independent
  Duration copy_overhead_in{2550};    // fixed time of a copy, added to its bytes: host to GPU
  Duration copy_overhead_out{1700};   // the same, GPU to host
  double host_memory_gb_per_s = 200;  // per socket, reads and writes together
  double socket_link_gb_per_s = 60;   // between sockets, per direction; unused with one socket
  double nvlink_gb_per_s = 0;         // per GPU and direction; 0: none
  double disk_read_gb_per_s = 0;      // all disks of the node together; 0: no disk tier
  double disk_write_gb_per_s = 0;     // the same for writes, independent of reads
  Duration disk_latency{};            // until the first byte of a transfer, in either direction
  double nic_gb_per_s = 0;            // per GPU and direction, to other nodes; 0: none
  // Further nodes of a cluster, possibly of other kinds. GPUs and sockets are numbered consecutively over
  // nodes. A further node has no `further` of its own and no disk.
  std::vector<PlatformSpec> further{};
};

// Every error names its field.
Result<void> validate_platform(const PlatformSpec& spec);

// Totals over the cluster.
uint32_t gpus_of(const PlatformSpec& cluster);
uint32_t sockets_of(const PlatformSpec& cluster);

// The node that contains a GPU: its spec, its index, and the numbers of its first GPU and socket.
struct NodePlace {
  const PlatformSpec* node = nullptr;
  uint32_t index = 0, gpu_first = 0, socket_first = 0;
};
// REQUIRES: gpu < gpus_of(cluster).
NodePlace node_of(const PlatformSpec& cluster, uint32_t gpu);
// The places of all nodes.
std::vector<NodePlace> nodes_of(const PlatformSpec& cluster);
uint32_t socket_of(const PlatformSpec& cluster, uint32_t gpu);

// Rate of a copy from GPU to GPU that has its path to itself: NVLink within a node, PCIe where there is none,
// network cards between nodes. 0: there is no path.
double gpu_path_gb_per_s(const PlatformSpec& cluster, uint32_t source, uint32_t target);

// Duration of a copy of `bytes` that has its path to itself, in whole nanoseconds, without overhead.
Duration copy_time(uint64_t bytes, double gb_per_s);

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_PLATFORM_H_
