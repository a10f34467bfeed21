// TransferManager owns every copy of KV pages between the tiers of an engine, and from another engine: its
// number, its pages while it is in flight, the requests that wait for it, and what its end does to the pools
// and the prefix index. The scheduler decides when a request's copy starts, and what its end means for the
// requests that wait.
//
//   kind      source                    target     the target pages, once they have arrived, belong to
//   load      copies on host or disk    GPU        the index; if to_request, the request
//   offload   GPU pages of the index    host       the index
//   spill     host pages of the index   disk       the index
//   receive   another engine's pages    GPU        the request
//   swap out  a request's GPU pages     host       the request
//   swap in   a request's host pages    GPU        the request
//
// The target of a copy that failed is freed, and so is a request's that has ended meanwhile.
//
// Invariants, verified by pages_in_flight():
//   (1) a transfer in flight owns its target, and of its source what a request owned: all pages of a swap-in,
//       those that were not shared of a swap-out;
//   (2) the counts equal what the transfers in flight add up to.

#ifndef KVTWIN_ENGINE_KV_STORE_TRANSFER_MANAGER_H_
#define KVTWIN_ENGINE_KV_STORE_TRANSFER_MANAGER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/commands.h"
#include "engine/kv/decision_digest.h"
#include "engine/kv/store/page_tiers.h"

namespace kvtwin {

struct Transfer {
  // A request, and its index in the scheduler's table.
  struct Waiter {
    uint32_t index = 0;
    RequestId request{};
  };

  TransferId id{};
  TransferKind kind{};
  Tier source_tier{}, target_tier{};
  bool to_request = false;  // kLoad
  bool submitted = false;   // false while steps in flight still write the pages (kSwapOut)
  bool live = false;
  Pin pin;             // pages of the index that it reads, or that precede those it copies
  uint32_t first = 0;  // position of the first page that it copies
  std::vector<PageId> source, target;
  // kLoad, kOffload: the numbers that the index has for the target (HoldWatch).
  std::vector<PageId> numbers;
  // GPU pages that it owns: those that a swapped-out request gave away, or else its target. They are logical
  // where pages hold KV entries of positions far apart (mixed_precision_pool.h).
  std::vector<PageId> own;
  std::vector<Waiter> waiting;
  EngineId from{};  // kReceive
  RequestId request{};
};

// Pages of a request that the index shares among requests and protects by a pin.
struct SharedPages {
  Pin pin;
  std::vector<PageId> pages;
  std::vector<PageId> copied{};  // the pages to copy, if these and the request's own are logical
};

// When prefixes are copied down, from CoreConfig.
struct CopyDownLimits {
  uint32_t offload_pages_target = 0;
  uint32_t spill_pages_target = 0;
  uint32_t batch_pages = 0;  // of the index, where a page may stand for several
};

class TransferManager {
 public:
  // `digest` must outlive it, and so must the tiers.
  TransferManager(EngineId engine, const PageTiers& tiers, const CopyDownLimits& limits,
                  DecisionDigest* digest)
      : engine_(engine), tiers_(tiers), limits_(limits), digest_(digest) {}

  // --- copies that a request waits for (transfer_manager.cc). Each is created, gets its target from the
  // caller unless it says otherwise, and is then submitted. A reference is valid until the next one.

  // Part of the prefix is on a lower tier. One tier at a time: pages on the disk come last on the path, and
  // are loaded by a later transfer. Its source are numbers of the index, which the caller resolves
  // (HoldWatch). REQUIRES: no load of it is in progress (Match::load).
  Transfer& load(const Match& match);
  // All pages of the prefix, from the index's host pages to GPU pages of the request's own.
  Transfer& fetch(const Pin& prefix);
  // The pages after `cached`, from engine `from`.
  Transfer& receive(const Pin& cached, EngineId from, std::span<const PageId> source, RequestId request);
  // All pages of the request: those that it shares, and its own, which it gives away. Takes the target.
  // REQUIRES: that many host pages are free.
  Transfer& swap_out(const SharedPages& shared, std::vector<PageId>* own);
  // The host pages that the request gives away, except those that the index still has on the GPU (`cached`).
  Transfer& swap_in(const Pin& cached, std::vector<PageId>* host_pages);

  void wait(Transfer* transfer, uint32_t index, RequestId request);
  void submit(Transfer* transfer, std::vector<Command>* out);
  // Forgets a transfer that nothing has to be copied for. REQUIRES: it is the newest, and was not submitted.
  void undo(Transfer* transfer);
  // No step writes the pages of the request any more: submits its swap-out.
  void submit_swap_out(RequestId request, std::vector<Command>* out);
  // The request has ended. Its copy continues without it; a swap-out that was not submitted is dropped.
  // REQUIRES: it waits for one.
  void leave(RequestId request);

  // --- copies down (transfer_copies_down.cc): prefixes are copied before their pages are needed, so that
  // evicting them later costs nothing.

  // Starts copies from each tier to the one below until no further one can start. `reserved`: GPU pages that
  // must remain available, by format. Returns whether cached pages were evicted or are unavailable during a
  // copy.
  bool start_copies_down(std::span<const uint64_t> reserved, bool offloads, std::vector<Command>* out);
  // Whether an offload is due once `newly_taken` more GPU pages are taken.
  bool below_offload_target(uint32_t newly_taken) const;
  // After a failed copy down, no further one starts until this.
  void allow_offloads() { offloads_.barred = false; }
  void allow_copies_down() { offloads_.barred = spills_.barred = false; }

  // --- ends

  Transfer& find(TransferId id);
  // Does what the end of the copy means for pools and index. If it has arrived, the target of a copy for a
  // request belongs to the one that waits.
  void settle(Transfer* transfer, bool arrived, std::vector<Command>* out);
  // Forgets a settled transfer.
  void close(Transfer* transfer, bool arrived);

  uint32_t live() const { return live_; }
  uint32_t requests_loading() const { return requests_loading_; }  // that wait for GPU pages
  uint32_t swaps_out() const { return swaps_out_; }
  uint32_t pages_coming() const { return pages_coming_; }  // GPU pages that swap-outs will free

  struct PagesInFlight {
    uint64_t gpu = 0, host = 0, disk = 0;
  };
  // Pages that transfers own. Checks the invariants.
  PagesInFlight pages_in_flight() const;

 private:
  // Copies to the tier below, in progress.
  struct CopiesDown {
    uint32_t live = 0;
    uint32_t pages = 0;
    bool barred = false;
  };

  Transfer& open(TransferKind kind, Tier source, Tier target);
  void drop(Transfer* transfer);
  void settle_load(const Transfer& transfer, bool arrived);
  void settle_to_request(const Transfer& transfer, bool arrived);
  void settle_swap_out(const Transfer& transfer, bool arrived);
  void settle_swap_in(const Transfer& transfer, bool arrived);
  void settle_offload(const Transfer& transfer, bool arrived);
  void settle_spill(const Transfer& transfer, bool arrived);
  bool start_offloads(std::span<const uint64_t> reserved, std::vector<Command>* out);
  bool start_spills(std::span<const uint64_t> reserved, bool* changed, std::vector<Command>* out);

  const EngineId engine_;
  const PageTiers tiers_;
  const CopyDownLimits limits_;
  DecisionDigest* const digest_;
  std::vector<Transfer> transfers_;  // closed ones are used again
  uint64_t next_ = 0;
  uint32_t live_ = 0, requests_loading_ = 0, swaps_out_ = 0, pages_coming_ = 0;
  CopiesDown offloads_, spills_;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_STORE_TRANSFER_MANAGER_H_
