// PagedKvManager lays out KV by position: page i of a request holds tokens [i P, (i + 1) P). Full pages are
// shared through the prefix index, on up to three tiers. Requests can be swapped out to the host, and be
// handed over to other engines. In layouts that drop KV entries in place, DroppedSlots counts them.

#ifndef KVTWIN_ENGINE_KV_MANAGERS_PAGED_KV_MANAGER_H_
#define KVTWIN_ENGINE_KV_MANAGERS_PAGED_KV_MANAGER_H_

#include <memory>
#include <vector>

#include "engine/kv/managers/dropped_slots.h"
#include "engine/kv/managers/kv_manager.h"
#include "engine/kv/managers/kv_parts.h"
#include "engine/kv/managers/page_crossings.h"
#include "engine/kv/managers/paged_request.h"
#include "engine/kv/managers/paged_transfers.h"

namespace kvtwin {

class PagedKvManager final : public KvManager {
 public:
  explicit PagedKvManager(KvContext* context);

  void open(RequestIndex request, const RequestReady& event) override;
  Admission admit(RequestIndex request, const AdmissionAsk& ask) override;
  Room grow(RequestIndex request, uint32_t tokens) override;
  void publish(RequestIndex request, uint32_t tokens) override;
  void write_entry(RequestIndex request, uint32_t entry, Launch* launch) override;
  uint32_t coalescible_steps(const Launch& launch) const override;
  uint32_t take_ahead(uint32_t steps, Launch* launch) override;
  void undo_ahead(Launch* launch, uint32_t left) override;
  HeldEntries held_by(const Launch& launch) const override;
  void answered(const StepDone& event, const Launch& launch) override;
  void launch_ended(const Launch&) override {}

  bool preempt(RequestIndex request, const PreemptionAsk& ask) override;
  void finish(RequestIndex request) override { release(request, false); }
  void abandon(RequestIndex request) override;
  void hand_over(RequestIndex request) override;
  void taken(const PagesTaken& event) override { transfers_.taken(event); }

  Delivery deliver(RequestIndex request, const Transfer& transfer, bool arrived) override;
  void start_copies_down() override;

  TransferManager& transfers() override { return parts_.transfers; }
  PrefixIndex& prefixes() override { return parts_.index; }
  bool pages_return() const override { return parts_.transfers.live() > 0 || transfers_.hands_over(); }
  bool idle() const override { return !pages_return(); }
  uint32_t tokens_cached(const RequestReady& request) const override {
    return parts_.tokens_cached(context_, request);
  }
  KvUsage usage(std::span<const RequestIndex> running, const Launch* newest, uint32_t started) const override;
  void check_invariants(std::span<const RequestIndex> live,
                        std::span<const RequestIndex> running) const override;

 private:
  bool grow_from(RequestIndex request, uint32_t computed, uint32_t tokens);
  void hold(RequestIndex request, uint32_t tokens);
  void unhold(RequestIndex request, uint32_t tokens);
  void release(RequestIndex request, bool preempted);
  void publish_until(RequestIndex request, uint32_t limit);
  bool swap_out(RequestIndex request);
  Admission swap_in(RequestIndex request, const AdmissionAsk& ask);
  void roll_back(Launch* launch, uint32_t offset);
  // Leading pages with `tokens` tokens of KV whose KV entries have their final format. Other requests must
  // not reuse a page whose newest KV entries are still stored exactly outside it.
  uint32_t settled(uint32_t tokens) const {
    return (tokens - std::min(tokens, exact_tail_)) / context_.config.page_tokens;
  }
  uint32_t dropped_slots(RequestIndex request) const { return dropped_ ? dropped_->slots(request) : 0; }
  uint64_t entries(RequestIndex request, uint32_t tokens) const {
    return tokens - (dropped_ ? dropped_->tokens(request) : 0);
  }

  KvContext& context_;
  const uint32_t exact_tail_;  // newest tokens of a request that are not yet in its pages
  KvParts parts_;
  PageSupply supply_;
  HeldKv held_;
  std::vector<PagedRequest> requests_;  // by RequestIndex
  PagedTransfers transfers_;
  std::unique_ptr<DroppedSlots> dropped_;  // null: nothing is ever dropped
  PageCrossings crossings_;                // scratch
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_MANAGERS_PAGED_KV_MANAGER_H_
