// ResidentKvManager offloads every page of a request (docs/design/methods/freekv.md,
// docs/design/methods/composition.md#walk-throughs FreeKV). A page has a host page from the moment it is
// begun, so that it can be offloaded as soon as it is full. The GPU holds the whole prompt until the step
// that completes it; from then on only resident pages, whose content the backend chooses step by step.
//
// Page allocations name both: a GPU page becomes one of the request's resident pages, a host page (recognised
// by its number) is for the next page of its context. Pages that are freed at the end of the prompt may be
// allocated to the next step: that step begins when they have been offloaded (the step graph's port
// offload_done).
//
// The prefix index holds host pages where it holds GPU pages otherwise. A request pins those of its prefix.
// Their content is copied to GPU pages of its own before its first step, because chunks read the whole
// context (docs/design/methods/composition.md#pairs, FreeKV x chunked prefill); these are freed when the
// prompt is complete. So a shared prefix takes host memory once, and GPU memory in each request.
//
// Host pages become findable when the step that fills them has ended, not when it is planned, because a copy
// starts at once. Only KV that prompts computed is shared: a decode read some pages only, so its KV depends
// on where its prompt ended, and a request that reused it would sample other tokens than one that computed
// everything. A preempted request finds its prompt again.

#ifndef KVTWIN_ENGINE_KV_MANAGERS_RESIDENT_KV_MANAGER_H_
#define KVTWIN_ENGINE_KV_MANAGERS_RESIDENT_KV_MANAGER_H_

#include <vector>

#include "engine/kv/managers/cached_prefix.h"
#include "engine/kv/managers/compressions.h"
#include "engine/kv/managers/kv_manager.h"
#include "engine/kv/managers/kv_parts.h"
#include "engine/kv/managers/page_crossings.h"
#include "engine/kv/store/page_supply.h"

namespace kvtwin {

class ResidentKvManager final : public KvManager {
 public:
  explicit ResidentKvManager(KvContext* context);

  void open(RequestIndex request, const RequestReady& event) override;
  Admission admit(RequestIndex request, const AdmissionAsk& ask) override;
  Room grow(RequestIndex request, uint32_t tokens) override;
  void publish(RequestIndex, uint32_t) override {}  // launch_ended() does
  void write_entry(RequestIndex request, uint32_t entry, Launch* launch) override;
  uint32_t coalescible_steps(const Launch&) const override { return UINT32_MAX; }
  uint32_t take_ahead(uint32_t steps, Launch* launch) override;
  void undo_ahead(Launch* launch, uint32_t left) override;
  HeldEntries held_by(const Launch& launch) const override;
  void answered(const StepDone&, const Launch&) override {}
  void launch_ended(const Launch& launch) override;

  bool preempt(RequestIndex request, const PreemptionAsk& ask) override;
  void finish(RequestIndex request) override { release(request, false); }
  void abandon(RequestIndex request) override;
  void hand_over(RequestIndex request) override;
  void taken(const PagesTaken&) override {}

  Delivery deliver(RequestIndex request, const Transfer& transfer, bool arrived) override;
  void start_copies_down() override {}

  TransferManager& transfers() override { return parts_.transfers; }
  PrefixIndex& prefixes() override { return parts_.index; }
  bool pages_return() const override { return parts_.transfers.live() > 0; }
  bool idle() const override { return !pages_return(); }
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
    CachedPrefix prefix;             // host pages
    std::vector<PageId> host_pages;  // of its context, after the prefix
    std::vector<PageId> pages;       // on the GPU: its own
    Reservation reserved, reserved_host;
    CompressionState compression;
    uint32_t dropped = 0;       // tokens without retained KV entries
    bool shrunk = false;        // its prompt is complete: `pages` are the resident pages
    bool fetched = false;       // its prefix was copied, and no entry has been planned since
    bool fetch_barred = false;  // a copy failed: compute instead
    bool in_transfer = false;
    bool holds = false;  // it runs

    uint32_t context_pages() const { return prefix.pin.pages + static_cast<uint32_t>(host_pages.size()); }
  };
  struct Demand {
    uint32_t gpu = 0;
    uint32_t host = 0;
  };

  Demand demand(const Request& r, uint32_t tokens) const;
  bool has_room(const Request& r, const Demand& more) const;
  void reserve(Request* r, const Demand& pages);
  bool grow_from(RequestIndex request, uint32_t computed, uint32_t tokens);
  void fetch(RequestIndex request, const Pin& prefix);
  void hold(RequestIndex request, uint32_t tokens);
  void shrink(RequestIndex request);
  bool take_page_ahead(RequestIndex request, uint32_t entry, uint32_t offset, Launch* launch);
  void roll_back(Launch* launch, uint32_t offset);
  void publish_until(Request* r, uint32_t tokens, uint32_t limit);
  void release(RequestIndex request, bool preempted);
  void free_host_pages(Request* r);
  bool on_host(PageId page) const { return raw(page) >= context_.config.pages_gpu; }
  uint64_t host_pages_after(const Launch& launch, uint32_t started) const;

  KvContext& context_;
  const RetrievalSpec& spec_;
  const Compressions compressions_;
  KvParts parts_;
  PageSupply gpu_, host_;
  HeldKv held_;
  std::vector<Request> requests_;  // by RequestIndex
  PageCrossings crossings_;        // scratch
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_MANAGERS_RESIDENT_KV_MANAGER_H_
