// PageChecker knows what every page holds and what every request should read. It is notified of the steps
// that ran, in their order, and fails on the first read of a wrong token: a page freed too early, shared
// wrongly, reused before it was written, or written during a copy.
//
// It also plays the backend's part in compressions: it draws which KV entries are retained, within the limits
// of the command.

#ifndef KVTWIN_TESTS_SUPPORT_PAGE_CHECKER_H_
#define KVTWIN_TESTS_SUPPORT_PAGE_CHECKER_H_

#include <cstdint>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "engine/base/commands.h"
#include "engine/kv/group_tables.h"
#include "engine/methods/axes.h"

namespace kvtwin::testing {

// Gives the token at a position of a request. Equal values mean equal tokens after equal prefixes.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual uint64_t token(RequestId request, uint32_t position) const = 0;
};

// The result of one compression.
struct RetainedEntries {
  RequestId request{};
  std::vector<uint32_t> counts;
  std::vector<uint64_t> live;
};

// One engine's pages. REQUIRES: `tokens` outlives it.
class PageChecker {
 public:
  PageChecker(uint64_t seed, SlotRetention slot_retention, const GroupShape& shape, const TokenSource* tokens)
      : seed_(seed), slot_retention_(slot_retention), shape_(shape), tokens_(tokens) {}

  // `tokens`: the last page may be partly filled (received from another engine).
  void reused(const PrefixHit& prefix_hit, uint32_t tokens);
  // Placement "resident": `pages` lists the prefix's host pages, then GPU pages of the same content.
  void reused_resident(const PrefixHit& prefix_hit, uint32_t tokens);
  // The request, with `tokens` tokens, continues in other pages, with the entries that it had.
  void swapped_in(const PrefixHit& prefix_hit, uint32_t tokens);
  void allocated(RequestId request, uint32_t group, PageId page);
  void begins(RequestId request);
  // One entry of one step ran: wrote() writes its tokens (`staged`: not to pages), then reads() checks the
  // whole context.
  void wrote(const PlanEntry& entry, bool staged);
  void reads(const PlanEntry& entry, bool staged) const;
  RetainedEntries compressed(const PlanEntry& entry, const Compression& compression);
  // The retained entries of the request can be reused as `prefix_checkpoint` from now on, so its pages become
  // read-only. Where the backend determines the counts (`known` is false), the policy may decline the
  // checkpoint; the request's next entry shows that it did by writing to those pages.
  void prefix_checkpoint(RequestId request, uint32_t prefix_checkpoint, bool known);

  void transfer_started(const StartTransfer& start);
  // From another engine's pages: whole pages of a prompt and a partly filled last one, or no pages at all.
  void receive_started(TransferId transfer, const PageChecker& from, std::span<const PageId> source,
                       std::span<const PageId> target);
  void transfer_ended(TransferId transfer, bool arrived);

 private:
  using Content = std::vector<uint64_t>;  // by slot; slots past the end were never written
  struct Copy {
    std::vector<PageId> source, target;
    std::vector<Content> at_start;
    const PageChecker* from = nullptr;  // null: this checker
    bool leaves_disk = false;
  };
  // One request's KV entries in one head group: KV entry i is the token of positions[i], in slot i of the
  // table. Where slots are dropped in place, positions[i] is i or kDropped.
  struct Table {
    std::vector<PageId> pages;
    std::vector<uint32_t> positions;
  };
  static constexpr uint32_t kDropped = UINT32_MAX;

  void continued(const PrefixHit& prefix_hit);
  std::vector<Table>& tables(RequestId request);
  void write(Table* table, uint32_t slot, RequestId request, uint32_t position);
  // Reduces `candidates` to `count` of them, drawn at random.
  void choose(RequestId request, uint32_t end, uint32_t group, uint32_t count,
              std::vector<uint32_t>* candidates) const;

  const uint64_t seed_;
  const SlotRetention slot_retention_;
  const GroupShape shape_;
  const TokenSource* const tokens_;
  std::map<PageId, Content> pages_;
  std::map<RequestId, std::vector<Table>> tables_;
  std::map<TransferId, Copy> copies_;
  std::map<uint32_t, std::vector<Table>> prefix_checkpoints_;
  std::set<PageId> sealed_;                           // pages of prefix checkpoints
  std::map<RequestId, std::vector<PageId>> untaken_;  // sealed pages that the policy may decline
  std::map<std::pair<RequestId, uint32_t>, std::vector<PageId>>
      copied_;  // by group: pages still to be copied
};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_PAGE_CHECKER_H_
