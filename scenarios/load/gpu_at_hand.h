// What `hardware.node: "this"` and `cost.profile: "this"` stand for: the GPU of this machine, and its
// measured profile.

#ifndef KVTWIN_SCENARIOS_LOAD_GPU_AT_HAND_H_
#define KVTWIN_SCENARIOS_LOAD_GPU_AT_HAND_H_

#include <string>

#include "engine/base/result.h"
#include "traces/proto/scenario.pb.h"

namespace kvtwin {

// The word in a scenario.
constexpr char kThis[] = "this";
// Environment: the GPU's name as nvidia-smi prints it, in place of asking; "none": as on a machine without a
// GPU.
constexpr char kGpuVariable[] = "KVTWIN_GPU";

// Name of this machine's first GPU, as its driver says it; "": it has none.
std::string gpu_at_hand();

// Catalog node of one GPU of that name; "": the catalog has none.
std::string node_of_gpu(const std::string& gpu);

// Replaces "this" in hardware.node by a node's name and in cost.profile by a file's. Where there is no GPU,
// or none that the catalog has, the node is hardware.otherwise. Without a profile of that GPU, the nearest
// one of another (derived_device.h). Errors: neither is there.
Result<void> resolve_this(v1::Scenario* scenario);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_LOAD_GPU_AT_HAND_H_
