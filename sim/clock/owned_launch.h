// OwnedLaunch is a LaunchStep that owns what its spans point to, so that it outlives the Core's buffers.

#ifndef KVTWIN_SIM_CLOCK_OWNED_LAUNCH_H_
#define KVTWIN_SIM_CLOCK_OWNED_LAUNCH_H_

#include <vector>

#include "engine/base/commands.h"

namespace kvtwin::sim {

class OwnedLaunch {
 public:
  OwnedLaunch() = default;
  explicit OwnedLaunch(const LaunchStep& step);
  // The spans point into vectors whose buffers survive a move but not a copy.
  OwnedLaunch(OwnedLaunch&&) = default;
  OwnedLaunch& operator=(OwnedLaunch&&) = default;

  const LaunchStep& step() const { return step_; }

 private:
  LaunchStep step_;
  std::vector<PlanEntry> entries_;
  std::vector<PageAllocation> allocations_;
  std::vector<PageId> reused_;
  std::vector<PrefixHit> prefix_hits_;
  std::vector<Compression> compressions_;
  std::vector<Compression::Forced> forced_;
  std::vector<uint32_t> keep_;
  std::vector<FormatRun> formats_;
  std::vector<Requantisation> ageings_;
  std::vector<uint32_t> reused_counts_;
  std::vector<PrefixCheckpoint> prefix_checkpoints_;
  std::vector<ProbePass> passes_;
};

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_CLOCK_OWNED_LAUNCH_H_
