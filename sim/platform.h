// What the simulated node is made of, in plain numbers. No SimGrid here: scenarios/ fills this.
//
// One GB/s is 10^9 bytes per second, which is one byte per nanosecond. Defaults are one H200 on PCIe 5,
// as measured: copies of 16 KB to 64 MB fit overhead + bytes / rate within 2 %.

#ifndef KVTWIN_SIM_PLATFORM_H_
#define KVTWIN_SIM_PLATFORM_H_

#include <cstdint>
#include <vector>

#include "engine/base/result.h"
#include "engine/base/units.h"

namespace kvtwin::sim {

struct PlatformSpec {
  uint32_t gpus = 1;
  uint32_t sockets = 1;           // gpu i hangs on socket i * sockets / gpus
  double pcie_gb_per_s = 55.4;    // of each GPU, in each of the two directions at once
  double pcie_out_gb_per_s = 0;   // gpu to host, where that differs; 0: it does not
  double pcie_both_gb_per_s = 0;  // of each GPU, both directions together; 0: they do not disturb each other
  Duration copy_overhead_in{2550};    // a copy engine's time per copy, beside the bytes: host to gpu
  Duration copy_overhead_out{1700};   // gpu to host
  double host_memory_gb_per_s = 200;  // of each socket, reads and writes together
  double socket_link_gb_per_s = 60;   // between sockets, in each direction; unused with one socket
  double nvlink_gb_per_s = 0;         // of each GPU, in each direction; 0: none
  double disk_read_gb_per_s = 0;      // of the node's disks together; 0: no disk tier
  double disk_write_gb_per_s = 0;     // likewise; reads and writes do not slow each other down
  Duration disk_latency{};            // before each transfer's first byte, either way
  double nic_gb_per_s = 0;            // of each GPU, to other nodes, in each direction; 0: none
  // More nodes of a cluster, perhaps of other kinds. GPUs and sockets are numbered on from node to node.
  // These have no further ones, and no disk.
  std::vector<PlatformSpec> further{};
};

// Every error names its field.
Result<void> validate_platform(const PlatformSpec& spec);

// Of the whole cluster.
uint32_t gpus_of(const PlatformSpec& cluster);
uint32_t sockets_of(const PlatformSpec& cluster);

// The node that a GPU is in: itself, its place, and the numbers of its first GPU and socket.
struct NodePlace {
  const PlatformSpec* node = nullptr;
  uint32_t index = 0, gpu_first = 0, socket_first = 0;
};
// REQUIRES: gpu < gpus_of(cluster).
NodePlace node_of(const PlatformSpec& cluster, uint32_t gpu);
// Places of all nodes.
std::vector<NodePlace> nodes_of(const PlatformSpec& cluster);
uint32_t socket_of(const PlatformSpec& cluster, uint32_t gpu);

// What a copy from GPU to GPU gets if it is alone: NVLink within a node, PCIe where there is none, and
// network cards between nodes. 0: there is no way.
double gpu_path_gb_per_s(const PlatformSpec& cluster, uint32_t source, uint32_t target);

// How long a copy of `bytes` takes on a path of its own, in whole nanoseconds, overhead apart.
Duration copy_time(uint64_t bytes, double gb_per_s);

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_PLATFORM_H_
