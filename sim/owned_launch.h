// A LaunchStep that owns what its spans point to: worlds look at it long after the Core has moved on.

#ifndef KVTWIN_SIM_OWNED_LAUNCH_H_
#define KVTWIN_SIM_OWNED_LAUNCH_H_

#include <vector>

#include "engine/policy/commands.h"

namespace kvtwin::sim {

class OwnedLaunch {
 public:
  OwnedLaunch() = default;
  explicit OwnedLaunch(const LaunchStep& step);
  // Spans point into vectors, which keep their place when they are moved, not when they are copied.
  OwnedLaunch(OwnedLaunch&&) = default;
  OwnedLaunch& operator=(OwnedLaunch&&) = default;

  const LaunchStep& step() const { return step_; }

 private:
  LaunchStep step_;
  std::vector<PlanEntry> entries_;
  std::vector<PageGrant> grants_;
  std::vector<PageId> adopted_;
  std::vector<Adoption> adoptions_;
  std::vector<Compression> compressions_;
  std::vector<Compression::Forced> forced_;
  std::vector<uint32_t> keep_;
  std::vector<CellRun> formats_;
  std::vector<CellAgeing> ageings_;
  std::vector<uint32_t> adopted_counts_;
  std::vector<Snapshot> snapshots_;
};

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_OWNED_LAUNCH_H_
