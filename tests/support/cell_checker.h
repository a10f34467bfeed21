// CellChecker is to pools of two formats what PageChecker is to pages by position: it knows which cell lies
// in which slot of which page, as a world would work it out from grants and bits, and fails on the first cell
// that is in a page of the wrong format, nowhere, or somebody else's (METHODS 4.6, Q-3, Q-4, X-2).

#ifndef KVTWIN_TESTS_SUPPORT_CELL_CHECKER_H_
#define KVTWIN_TESTS_SUPPORT_CELL_CHECKER_H_

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/policy/commands.h"
#include "engine/policy/config.h"
#include "tests/support/page_checker.h"

namespace kvtwin::testing {

// One engine's pages. REQUIRES: `tokens` outlives it.
class CellChecker {
 public:
  CellChecker(const CoreConfig& config, const TokenSource* tokens) : config_(config), tokens_(tokens) {}

  // An entry with first == true: the call starts behind `pages`.
  void begins(const PlanEntry& entry, std::span<const PageId> pages);
  // Before anything else of a step: int4 cells that no running call has fill int2 pages.
  void ages(std::span<const CellAgeing> ageings);
  // One entry of one step writes: its cells' bits (empty: one decoded cell), its grants in order.
  void writes(const PlanEntry& entry, std::span<const CellRun> bits, std::span<const PageId> grants);
  // Then it reads everything up to its own cells.
  void reads(const PlanEntry& entry) const;

 private:
  struct Cell {
    uint32_t position = 0;
    uint64_t token = 0;
  };
  struct Place {
    PageId page{};
    uint32_t slot = 0;
  };
  struct Call {
    std::map<uint32_t, Place> places;
    std::vector<uint32_t> waiting;
    PageId tail{};  // the int4 page that it fills
    uint32_t in_tail = 0;
    uint32_t narrow = 0;
  };
  class Grants;

  bool is_int4(PageId page) const { return raw(page) >= config_.pages_int2; }
  void put(CallId id, PageId page, uint32_t position, Call* call);
  void put_4(CallId id, uint32_t position, Grants* grants, Call* call);
  void put_waiting(CallId id, Grants* grants, Call* call);

  const CoreConfig config_;
  const TokenSource* const tokens_;
  std::map<PageId, std::vector<Cell>> pages_;
  std::map<CallId, Call> calls_;
};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_CELL_CHECKER_H_
