// PageChecker knows what every page holds and what every request should read. It is told what really ran,
// in the order in which it ran, and fails on the first read of a wrong token: a page freed too early,
// shared wrongly, reused before it was written, or copied while somebody wrote to it.
//
// It plays the backend's part in compressions too: which KV entries are kept is drawn, within what was asked
// for.

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

// Who knows the token at a position of a request: equal values mean equal tokens after equal prefixes.
class TokenSource {
 public:
  virtual ~TokenSource() = default;
  virtual uint64_t token(RequestId request, uint32_t position) const = 0;
};

// What one compression left.
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

  // `tokens`: the last of the pages may be partly filled (from another engine, or back from the host).
  void reused(const PrefixHit& prefix_hit, uint32_t tokens);
  // Placement resident: homes of a prefix, then gpu pages that hold the same.
  void reused_resident(const PrefixHit& prefix_hit, uint32_t tokens);
  void allocated(RequestId request, uint32_t group, PageId page);
  void begins(RequestId request);
  // One entry of one step ran: writes its tokens (`staged`: not to pages), then reads everything up to them.
  void wrote(const PlanEntry& entry, bool staged);
  void reads(const PlanEntry& entry, bool staged) const;
  RetainedEntries compressed(const PlanEntry& entry, const Compression& compression);
  // What is left of the request can be reused as `prefix_checkpoint` from now on: nobody writes to its pages
  // any more. Where the backend has said the counts (`known` is false), the request's next entry tells
  // whether the policy took it.
  void prefix_checkpoint(RequestId request, uint32_t prefix_checkpoint, bool known);

  void transfer_started(const StartTransfer& start);
  // From another engine's pages: a prompt, whose last page may be partly filled, or nothing at all.
  void receive_started(TransferId transfer, const PageChecker& from, std::span<const PageId> source,
                       std::span<const PageId> target);
  void transfer_ended(TransferId transfer, bool arrived);

 private:
  using Content = std::vector<uint64_t>;  // by slot; shorter: the rest was never written
  struct Copy {
    std::vector<PageId> source, target;
    std::vector<Content> at_start;
    const PageChecker* from = nullptr;  // null: this one
    bool leaves_disk = false;
  };
  // One request's KV entries in one head group: KV entry i is the token of positions[i], in slot i of the
  // table. Where KV entries keep their places, positions[i] is i or kDropped.
  struct Table {
    std::vector<PageId> pages;
    std::vector<uint32_t> positions;
  };
  static constexpr uint32_t kDropped = UINT32_MAX;

  void continued(const PrefixHit& prefix_hit);
  std::vector<Table>& tables(RequestId request);
  void write(Table* table, uint32_t slot, RequestId request, uint32_t position);
  // Of `candidates`, which ones stay: `count` of them, drawn.
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
  std::set<PageId> sealed_;                           // of prefix checkpoints
  std::map<RequestId, std::vector<PageId>> untaken_;  // of these, by request: perhaps not
  std::map<std::pair<RequestId, uint32_t>, std::vector<PageId>>
      copied_;  // by group: pages still to be copied
};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_PAGE_CHECKER_H_
