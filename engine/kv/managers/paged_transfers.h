// PagedTransfers are the transfers that requests with pages by position wait for: loads of cached prefixes
// from lower tiers, swaps to the host and back, and hand-over between a prefilling and a decoding engine.
//
// Swapping (request_transfers.h): shared pages that the index still has are not copied back.
//
// Hand-over: the prefilling engine computes the prompt, samples the first token, keeps the pages and sends
// HandOver. The decoding engine takes pages when it has room, and fetches those that its index lacks
// (StartTransfer kReceive). It pulls, because only it knows its room and its prefixes; so a page is reused
// only after its transfer ended, and no page is promised twice. If it preempts the request, it computes
// everything again: the source is freed by then.

#ifndef KVTWIN_ENGINE_KV_MANAGERS_PAGED_TRANSFERS_H_
#define KVTWIN_ENGINE_KV_MANAGERS_PAGED_TRANSFERS_H_

#include <deque>
#include <vector>

#include "engine/kv/managers/kv_manager.h"
#include "engine/kv/managers/kv_parts.h"
#include "engine/kv/managers/paged_request.h"
#include "engine/kv/store/page_supply.h"

namespace kvtwin {

class PagedTransfers {
 public:
  // All must outlive it. `requests` by RequestIndex.
  PagedTransfers(KvContext* context, KvParts* parts, PageSupply* supply, std::vector<PagedRequest>* requests)
      : context_(*context),
        parts_(*parts),
        supply_(*supply),
        requests_(*requests),
        common_(context, parts, supply) {}

  // Part of the prefix is only on a lower tier: the request waits for the load.
  Admission::Kind load(RequestIndex request, const Match& match);
  void start_copies_down() { common_.start_copies_down(); }
  // The request's prompt is on another engine.
  Admission::Kind receive(RequestIndex request);
  // Whether the request, with `pages` pages, may be swapped out; and its swap-out.
  bool can_swap_out(RequestIndex request, uint32_t pages);
  void swap_out(RequestIndex request);
  // The request's pages are on the host. `tokens`: of its next entry; `gaps`: positions without a page. kNow:
  // nothing had to be copied.
  Admission::Kind swap_in(RequestIndex request, uint32_t tokens, uint32_t gaps, const AdmissionAsk& ask);

  // The request, whose KV is absent or on its way, has ended.
  void abandon(PagedRequest* request);
  // The request's pages remain until PagesTaken, and it forgets them.
  void hand_over(RequestIndex request);
  void taken(const PagesTaken& event);
  bool hands_over() const { return !handed_over_.empty(); }
  // Pages of handed-over requests, without shared ones.
  uint64_t pages_handed_over() const;

 private:
  // Pages that a handed-over request left on this engine, until PagesTaken.
  struct HeldPages {
    RequestId request{};
    Pin pin;
    std::vector<PageId> own;  // after the pin
    std::vector<PageId> all;
  };
  uint64_t pages_for_next(RequestIndex request, const TokenBudget& budget) const;
  Transfer::Waiter waiter(RequestIndex request) const { return {request, requests_[request].id}; }

  KvContext& context_;
  KvParts& parts_;
  PageSupply& supply_;
  std::vector<PagedRequest>& requests_;
  RequestTransfers common_;
  std::deque<HeldPages> handed_over_;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_MANAGERS_PAGED_TRANSFERS_H_
