// PageChecker knows what every page holds and what every call should read. It is told what really ran,
// in the order in which it ran, and fails on the first read of a wrong token: a page freed too early,
// shared wrongly, adopted before it was written, or copied while somebody wrote to it.

#ifndef KVTWIN_TESTS_SUPPORT_PAGE_CHECKER_H_
#define KVTWIN_TESTS_SUPPORT_PAGE_CHECKER_H_

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/policy/commands.h"

namespace kvtwin::testing {

// Who knows the token at a position of a call: equal values mean equal tokens after equal prefixes.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual uint64_t token(CallId call, uint32_t position) const = 0;
};

// One engine's pages. REQUIRES: `tokens` outlives it.
class PageChecker {
 public:
  PageChecker(uint32_t page_tokens, const TokenSource* tokens) : page_tokens_(page_tokens), tokens_(tokens) {}

  void adopted(const Adoption& adoption);
  void granted(CallId call, PageId page) { tables_[call].push_back(page); }
  void begins(CallId call) { tables_[call].clear(); }
  // One entry of one step ran: writes its tokens, then reads everything up to them.
  void wrote(const PlanEntry& entry);
  void reads(const PlanEntry& entry) const;

  void transfer_started(TransferId transfer, std::span<const PageId> source, std::span<const PageId> target);
  void transfer_ended(TransferId transfer, bool arrived);

 private:
  using Content = std::vector<uint64_t>;  // by slot; shorter: the rest was never written
  struct Copy {
    std::vector<PageId> source, target;
    std::vector<Content> at_start;
  };

  const uint32_t page_tokens_;
  const TokenSource* const tokens_;
  std::map<PageId, Content> pages_;
  std::map<CallId, std::vector<PageId>> tables_;
  std::map<TransferId, Copy> copies_;
};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_PAGE_CHECKER_H_
