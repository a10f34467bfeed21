// RequestTransfers are what the copies that a request waits for have in common in all layouts: when a copy
// may start, loads of cached prefixes, and swapping. The KV manager supplies the pages, and decides how many
// a request needs to return.
//
// Swapping: a preempted request keeps its KV, on the host (docs/design/methods/composition.md#axes
// placement). Its pages are copied once no step in flight writes them, and are freed only when the copy
// completes. Shared pages are copied too, because they may be evicted before the request returns. What the
// backend knows of the request besides its pages stays there (engine/runtime/backend.h).
//
// The request is computed again instead (this is the only list of reasons)
//   if nothing of it is computed, or all its steps are launched;
//   if passes of probe tokens are left, whose scores so far would be lost;
//   if the entry that was planned for it begins with a cached prefix and was not launched;
//   if it awaits the outcome of a compression, which decides where its entries are;
//   if it holds no page;
//   if the host has no room, or a copy fails.
//
// No transfer starts while the fence is closed: steps in flight may still write free pages.

#ifndef KVTWIN_ENGINE_KV_MANAGERS_REQUEST_TRANSFERS_H_
#define KVTWIN_ENGINE_KV_MANAGERS_REQUEST_TRANSFERS_H_

#include <vector>

#include "engine/kv/managers/kv_manager.h"
#include "engine/kv/managers/kv_parts.h"
#include "engine/kv/store/page_supply.h"

namespace kvtwin {

// The part of a request's KV that transfers concern.
struct TransferState {
  Reservation reserved;
  bool in_transfer = false;        // it waits for a transfer
  std::vector<PageId> host_pages;  // swapped out: its pages
};

class RequestTransfers {
 public:
  // All must outlive it.
  RequestTransfers(KvContext* context, KvParts* parts, PageSupply* supply)
      : context_(*context), parts_(*parts), supply_(*supply) {}

  // Whether `pages` GPU pages are unavailable, or no copy may use them yet.
  bool must_wait(uint64_t pages, const TransferState& state);
  void wait(const Transfer::Waiter& who, TransferState* state, Transfer* transfer);
  // Part of the prefix is only on a lower tier: the request waits for the load. kBlocked: no room. The pin is
  // given up in either case.
  Admission::Kind load(const Transfer::Waiter& who, const Match& match, TransferState* state);
  // Copies of cached prefixes to lower tiers. REQUIRES: there is a host tier.
  void start_copies_down();

  // Whether the request, with `pages` pages, may be swapped out, as far as the layout does not matter. The
  // host drops old copies of prefixes to make room.
  bool can_swap_out(const RequestProgress& progress, uint64_t pages);
  // The shared pages and its `own`, which it gives away, are copied to the host once no step writes them.
  // REQUIRES: can_swap_out().
  void swap_out(const Transfer::Waiter& who, const SharedPages& shared, std::vector<PageId>* own,
                TransferState* state);
  // The pages are copied back, except those of `cached`, which the index still has on the GPU. kNow: nothing
  // had to be copied, and the request holds the pin. `pages`: that must be available, those copied included.
  Admission::Kind swap_in(const Transfer::Waiter& who, const Pin& cached, uint64_t pages,
                          TransferState* state);
  // The request, whose KV is absent or on its way, has ended.
  void abandon(RequestId request, TransferState* state);

 private:
  KvContext& context_;
  KvParts& parts_;
  PageSupply& supply_;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_MANAGERS_REQUEST_TRANSFERS_H_
