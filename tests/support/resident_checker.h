// ResidentChecker knows which gpu pages the steps in flight use, where requests have arenas: a transfer that
// writes to one of them would be seen by a step that reads it.
//
// Pages of requests that end or are sent away stay known as long as a step that has them is in flight.

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
  // Of the last launch only its first `steps` steps will run.
  void cut(uint32_t steps);
  // The oldest launch has ended.
  void ended() { launches_.pop_front(); }
  void transfer_started(const StartTransfer& start) const;

 private:
  struct Use {
    RequestId request{};
    PageId page{};
    uint32_t from = 0;  // single step of the launch
  };
  struct Launch {
    std::vector<Use> uses;  // of its requests, before it began and granted with it
    std::vector<PlanEntry> entries;
    std::vector<uint32_t> left;  // by entry: KV entries of a head behind it
  };
  void settle();  // the last launch will not change any more

  const CoreConfig config_;
  std::map<RequestId, std::vector<PageId>> pages_;  // behind all launches but the last
  std::map<RequestId, bool> in_resident_;
  std::deque<Launch> launches_;
  Launch last_;  // also when it has ended
};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_RESIDENT_CHECKER_H_
