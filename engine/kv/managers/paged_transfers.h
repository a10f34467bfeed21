// PagedTransfers are the transfers that requests with pages by position wait for: loads of cached prefixes
// from lower tiers, swaps to the host and back, and hand-over between a prefilling and a decoding engine.
//
// Swapping: a preempted request keeps its KV, on the host (docs/design/methods/composition.md#axes
// placement). All its pages are copied, shared ones too, because the index may evict them before it returns;
// those that the index still has are not copied back. Pages are freed only when the copy completes. If the
// host has no room, or a copy fails, the request is computed again.
//
// Hand-over: the prefilling engine computes the prompt, samples the first token, keeps the pages and sends
// HandOver. The decoding engine takes pages when it has room, and fetches those that its index lacks
// (StartTransfer kReceive). It pulls, because only it knows its room and its prefixes; so a page is reused
// only after its transfer ended, and no page is promised twice. If it preempts the request, it computes
// everything again: the source is freed by then.
//
// No transfer starts while the fence is closed: steps in flight may still write free pages.

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
      : context_(*context), parts_(*parts), supply_(*supply), requests_(*requests) {}

  // Part of the prefix is only on a lower tier: the request waits for the load.
  Admission::Kind load(RequestIndex request, const Match& match);
  // The request's prompt is on another engine.
  Admission::Kind receive(RequestIndex request);
  // All pages of the request are copied to the host once no step writes them any more.
  // REQUIRES: that many host pages are free.
  void swap_out(RequestIndex request);
  // The request's pages are on the host. `tokens`: of its next entry. kNow: nothing had to be copied.
  Admission::Kind swap_in(RequestIndex request, uint32_t tokens, const AdmissionAsk& ask);

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
  bool must_wait(uint64_t pages, const PagedRequest& request);
  void wait(RequestIndex request, Transfer* transfer);

  KvContext& context_;
  KvParts& parts_;
  PageSupply& supply_;
  std::vector<PagedRequest>& requests_;
  std::deque<HeldPages> handed_over_;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_MANAGERS_PAGED_TRANSFERS_H_
