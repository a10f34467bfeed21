// ResidentChecker knows which resident GPU pages the steps in flight use. It fails on a transfer into one of
// them, because a step in flight would read the new content.
//
// Pages of requests that end or are swapped out remain in use until the last step in flight that uses them
// ends.

#ifndef KVTWIN_TESTS_SUPPORT_RESIDENT_CHECKER_H_
#define KVTWIN_TESTS_SUPPORT_RESIDENT_CHECKER_H_

#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <vector>

#include "engine/base/commands.h"
#include "engine/methods/config.h"

namespace kvtwin::testing {

class ResidentChecker {
 public:
  explicit ResidentChecker(const CoreConfig& config) : config_(config) {}

  void launched(const LaunchStep& step);
  // Only the first `steps` steps of the last launch will run.
  void cut(uint32_t steps);
  // The oldest launch has ended.
  void ended() { launches_.pop_front(); }
  void transfer_started(const StartTransfer& start) const;

 private:
  struct Use {
    RequestId request{};
    PageId page{};
    uint32_t from = 0;  // first single step of the launch that uses it
  };
  struct Launch {
    std::vector<Use> uses;  // pages its requests had before the launch, and pages allocated with it
    std::vector<PlanEntry> entries;
    std::vector<uint32_t> left;  // by entry: KV entries of one head after the launch
  };
  void settle();  // the last launch does not change any more
  void resize_to_resident(size_t index, std::vector<PageId>* pages);

  const CoreConfig config_;
  std::map<RequestId, std::vector<PageId>> pages_;  // after all launches but the last
  std::map<RequestId, bool> in_resident_;
  std::deque<Launch> launches_;
  Launch last_;  // stays valid after it has ended
};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_RESIDENT_CHECKER_H_
