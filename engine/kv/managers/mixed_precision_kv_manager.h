// MixedPrecisionKvManager stores the KV entries of a token in 2 or 4 bits by its tag (TriAxialKV), in int2
// and int4 pages (mixed_precision_pool.h).
//
// A request's table, its pin and the prefix index hold logical pages, which are never short; pages are. The
// number that a step takes follows from the bits of the prompt's tokens, which are known when the request
// arrives. An int2 page is available if it is free or only cached prefixes use it; otherwise 2-bit KV entries
// spill to int4. If an int4 page is missing, cached prefixes are evicted, then the newest request is
// preempted.
//
// A preempted request may be swapped out (request_transfers.h): all pages that hold its KV entries are copied
// whole, those of its prefix too, and return to pages of the same formats that are its own. A host page has
// room for a page of either format. A request whose KV entries wait for a full group is computed again, and
// so is one that alone does not fit with the gaps of its pages.
//
// With a host tier, cached prefixes are copied there before their pages are needed, and loaded when a request
// hits them (mixed_precision_pool.h).

#ifndef KVTWIN_ENGINE_KV_MANAGERS_MIXED_PRECISION_KV_MANAGER_H_
#define KVTWIN_ENGINE_KV_MANAGERS_MIXED_PRECISION_KV_MANAGER_H_

#include <vector>

#include "engine/kv/managers/cached_prefix.h"
#include "engine/kv/managers/kv_parts.h"
#include "engine/kv/managers/local_kv_manager.h"
#include "engine/kv/managers/page_crossings.h"
#include "engine/kv/reservations.h"
#include "engine/kv/store/mixed_precision_pool.h"

namespace kvtwin {

class MixedPrecisionKvManager final : public LocalKvManager {
 public:
  explicit MixedPrecisionKvManager(KvContext* context);

  void open(RequestIndex request, const RequestReady& event) override;
  Admission admit(RequestIndex request, const AdmissionAsk& ask) override;
  Room grow(RequestIndex request, uint32_t tokens) override;
  void publish(RequestIndex request, uint32_t tokens) override;
  void write_entry(RequestIndex request, uint32_t entry, Launch* launch) override;
  uint32_t coalescible_steps(const Launch&) const override;
  uint32_t take_ahead(uint32_t steps, Launch* launch) override;
  void undo_ahead(Launch* launch, uint32_t left) override;
  HeldEntries held_by(const Launch& launch) const override;
  void answered(const StepDone&, const Launch&) override {}

  bool preempt(RequestIndex request, const PreemptionAsk& ask) override;
  void finish(RequestIndex request) override { release(request, false); }
  void abandon(RequestIndex request) override;
  Delivery deliver(RequestIndex request, const Transfer& transfer, bool arrived) override;

  void start_copies_down() override;

  TransferManager& transfers() override { return parts_.transfers; }
  PrefixIndex& prefixes() override { return parts_.index; }
  bool pages_return() const override { return parts_.transfers.live() > 0; }
  uint32_t tokens_cached(const RequestReady& request) const override {
    return parts_.tokens_cached(context_, request);
  }
  KvUsage usage(std::span<const RequestIndex> running, const Launch* newest, uint32_t started) const override;
  void check_invariants(std::span<const RequestIndex> live,
                        std::span<const RequestIndex> running) const override;

 private:
  struct Request {
    RequestId id{};
    SessionId session{};
    CachedPrefix prefix;        // its places are logical pages
    std::vector<PageId> pages;  // its own logical pages, after the prefix
    MixedPrecisionPool::Request entries;
    uint32_t low_bit = 0;  // its int2 KV entries before the entry that was planned last
    // Leading logical pages whose KV entries are all in pages once its launches have ended.
    uint32_t settled = 0;
    Reservation reserved_2, reserved_4;
    bool reuse_barred = false;            // alone, it did not fit together with the pages of its prefix
    bool load_barred = false;             // a load of its prefix failed, or did not fit
    bool unlaunched = false;              // its planned entry lists pages that are filled
    bool swapped_in = false;              // its next entry lists its pages
    bool in_transfer = false;             // it waits for a transfer
    std::vector<PageId> host_pages;       // swapped out: its pages
    MixedPrecisionPool::SwappedOut away;  // swapped out: what they hold
    uint32_t coming_4 = 0;                // int4 pages that its swap-out will free

    uint32_t span() const { return prefix.pin.pages + static_cast<uint32_t>(pages.size()); }
    MixedPrecisionPool::LogicalPages logical_pages() const { return {pages, prefix.pin.pages}; }
  };

  Admission try_admit(RequestIndex request, const AdmissionAsk& ask);
  Admission load(RequestIndex request, const Match& match, const AdmissionAsk& ask);
  bool offloads() const { return pool_.copies() != nullptr; }
  // Appends logical pages, which are held.
  void take_logical_pages(size_t count, std::vector<PageId>* pages);
  bool swap_out(RequestIndex request);
  Admission swap_in(RequestIndex request, const AdmissionAsk& ask);
  uint64_t pages_4_for_next(const AdmissionAsk& ask) const;
  void forget(Request* r);
  bool grow_from(RequestIndex request, uint32_t computed, uint32_t tokens);
  void age(const Request& r, const Pin& prefix, uint32_t pages_2_wanted);
  void make_room(const MixedPrecisionDemand& demand);
  void add_logical_pages(Request* r, uint32_t tokens);
  void append_decoded(Request* r, uint32_t computed, uint32_t tokens);
  void roll_back(Launch* launch, uint32_t offset);
  void release(RequestIndex request, bool preempted);
  // Pages of one format that the request may take; pages reserved for others are excluded.
  uint32_t available(const Request& r, bool four) const;
  // Leading logical pages of a request with `tokens` tokens of KV whose KV entries are all in pages.
  uint32_t settled(const Request& r, uint32_t tokens) const;
  uint32_t settled_now(const Request& r) const {
    return r.entries.waiting.empty() ? UINT32_MAX : r.entries.waiting.front() / context_.config.page_tokens;
  }

  KvContext& context_;
  MixedPrecisionPool pool_;
  KvParts parts_;  // its GPU pages are logical pages
  Reservations reserved_2_, reserved_4_;
  HeldKv held_;
  uint32_t coming_4_ = 0;                                      // int4 pages that swap-outs will free
  std::vector<Request> requests_;                              // by RequestIndex
  PageCrossings crossings_;                                    // scratch
  std::vector<PageId> newly_taken_, logical_pages_, reusing_;  // scratch
  std::vector<BitRun> bits_;                                   // scratch
  std::vector<uint8_t> alone_;                                 // scratch
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_MANAGERS_MIXED_PRECISION_KV_MANAGER_H_
