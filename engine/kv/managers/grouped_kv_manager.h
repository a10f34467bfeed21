// GroupedKvManager lays out KV by head group: a page table per group (group_tables.h), whose KV entries are
// compacted after a compression, or a ring of pages whose content the backend chooses.
//
// Requests share prefix checkpoints (chunk_checkpoints.h), and can be swapped out to the host
// (request_transfers.h). A request that returns has copies of all its pages and makes no further prefix
// checkpoints.

#ifndef KVTWIN_ENGINE_KV_MANAGERS_GROUPED_KV_MANAGER_H_
#define KVTWIN_ENGINE_KV_MANAGERS_GROUPED_KV_MANAGER_H_

#include <vector>

#include "engine/kv/managers/grouped_demand.h"
#include "engine/kv/managers/grouped_request.h"
#include "engine/kv/managers/kv_parts.h"
#include "engine/kv/managers/local_kv_manager.h"
#include "engine/kv/store/page_supply.h"

namespace kvtwin {

class GroupedKvManager final : public LocalKvManager {
 public:
  explicit GroupedKvManager(KvContext* context);

  void open(RequestIndex request, const RequestReady& event) override;
  Admission admit(RequestIndex request, const AdmissionAsk& ask) override;
  Room grow(RequestIndex request, uint32_t tokens) override;
  void publish(RequestIndex, uint32_t) override {}  // write_entry() takes prefix checkpoints
  void write_entry(RequestIndex request, uint32_t entry, Launch* launch) override;
  uint32_t coalescible_steps(const Launch& launch) const override;
  uint32_t take_ahead(uint32_t steps, Launch* launch) override;
  void undo_ahead(Launch* launch, uint32_t left) override;
  HeldEntries held_by(const Launch& launch) const override;
  void answered(const StepDone& event, const Launch& launch) override;

  bool preempt(RequestIndex request, const PreemptionAsk& ask) override;
  void finish(RequestIndex request) override { release(request); }
  void abandon(RequestIndex request) override;
  Delivery deliver(RequestIndex request, const Transfer& transfer, bool arrived) override;
  void start_copies_down() override;
  bool pages_return() const override { return parts_.transfers.live() > 0; }

  TransferManager& transfers() override { return parts_.transfers; }
  PrefixIndex& prefixes() override { return parts_.index; }
  uint32_t tokens_cached(const RequestReady& request) const override {
    return checkpoints_.tokens_cached(request);
  }
  KvUsage usage(std::span<const RequestIndex> running, const Launch* newest, uint32_t started) const override;
  void check_invariants(std::span<const RequestIndex> live,
                        std::span<const RequestIndex> running) const override;

 private:
  Admission try_admit(RequestIndex request, const AdmissionAsk& ask);
  Admission load(RequestIndex request, const Match& match, const AdmissionAsk& ask);
  void grow_from(RequestIndex request, uint32_t computed);
  bool find_groups(const GroupedRequest& r, RequestIndex request, uint32_t computed, uint32_t tokens);
  void hold(RequestIndex request);
  void unhold(RequestIndex request);
  bool swap_out(RequestIndex request);
  Admission swap_in(RequestIndex request, const AdmissionAsk& ask);
  void release(RequestIndex request);
  void roll_back(Launch* launch, uint32_t offset);
  void compress(RequestIndex request, uint32_t entry, Launch* launch);
  void retain(RequestIndex request, std::span<const uint32_t> entries);
  void reserve_rest(RequestIndex request);
  void apply(RequestIndex request, const Launch& launch, const CompressionOutcome& retained,
             const PrefixCheckpoint* checkpoint);
  void list_pages(const GroupedRequest& r, uint32_t computed);
  void stop_borrowing(GroupedRequest* r, uint32_t computed);

  KvContext& context_;
  const Retention& retention_;
  const Compressions compressions_;
  ChunkCheckpoints checkpoints_;
  KvParts parts_;  // its index is that of the prefix checkpoints, if there are any
  PageSupply supply_;
  RequestTransfers transfers_;
  const GroupedDemand demand_;
  HeldKv held_;
  std::vector<GroupedRequest> requests_;  // by RequestIndex
  std::vector<uint32_t> wanted_;          // scratch: groups that need a page
  std::vector<uint32_t> after_;           // scratch: KV entries by group
  std::vector<PageId> spare_;             // scratch
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_MANAGERS_GROUPED_KV_MANAGER_H_
