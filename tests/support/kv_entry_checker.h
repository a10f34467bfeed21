// KvEntryChecker does for mixed precision pools what PageChecker does for pages indexed by position. It
// derives from allocations and formats, as a backend does, which KV entry lies in which slot of which page.
// It fails on the first KV entry that is missing, in a page of the wrong format, or overwritten by another
// request (docs/design/methods/triaxialkv.md#serving, Q-3, Q-4, X-2).

#ifndef KVTWIN_TESTS_SUPPORT_KV_ENTRY_CHECKER_H_
#define KVTWIN_TESTS_SUPPORT_KV_ENTRY_CHECKER_H_

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/base/commands.h"
#include "engine/methods/config.h"
#include "tests/support/page_checker.h"

namespace kvtwin::testing {

// One engine's pages. REQUIRES: `tokens` outlives it.
class KvEntryChecker {
 public:
  KvEntryChecker(const CoreConfig& config, const TokenSource* tokens) : config_(config), tokens_(tokens) {}

  // For an entry with first == true: the request starts with `pages` as its prefix.
  void begins(const PlanEntry& entry, std::span<const PageId> pages);
  // A page is copied to another tier, or back.
  void copied(PageId source, PageId target) { pages_[target] = pages_[source]; }
  // Before the rest of a step: int4 KV entries that no running request uses are requantised into int2 pages.
  void ages(std::span<const Requantisation> requantisations);
  // One entry of one step writes KV entries in the given formats (empty: one decoded KV entry), into
  // allocations in their order.
  void writes(const PlanEntry& entry, std::span<const FormatRun> bits, std::span<const PageId> allocations);
  // Then it reads everything up to its own KV entries.
  void reads(const PlanEntry& entry) const;

 private:
  struct KvEntry {
    uint32_t position = 0;
    uint64_t token = 0;
  };
  struct Place {
    PageId page{};
    uint32_t slot = 0;
  };
  struct Request {
    std::map<uint32_t, Place> places;
    std::vector<uint32_t> waiting;
    PageId tail{};  // the int4 page that it fills
    uint32_t in_tail = 0;
    uint32_t low_bit = 0;
  };
  class Allocations;

  bool is_int4(PageId page) const { return raw(page) >= config_.pages_int2; }
  void put(RequestId id, PageId page, uint32_t position, Request* request);
  void put_4(RequestId id, uint32_t position, Allocations* allocations, Request* request);
  void put_waiting(RequestId id, Allocations* allocations, Request* request);

  const CoreConfig config_;
  const TokenSource* const tokens_;
  std::map<PageId, std::vector<KvEntry>> pages_;
  std::map<RequestId, Request> requests_;
};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_KV_ENTRY_CHECKER_H_
