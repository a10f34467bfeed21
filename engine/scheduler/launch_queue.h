// LaunchQueue holds the launches in flight of one engine. It turns planned entries into one LaunchStep,
// coalesced over as many steps as are certain to be alike, and undoes the rest of a coalesced run when an
// external event ends it.
//
// Coalesced runs end before anything that single steps could decide differently: a finish, a trigger, an
// eviction, a copy that could start, a decision about some request's KV.

#ifndef KVTWIN_ENGINE_SCHEDULER_LAUNCH_QUEUE_H_
#define KVTWIN_ENGINE_SCHEDULER_LAUNCH_QUEUE_H_

#include <span>
#include <vector>

#include "engine/kv/launch_digest.h"
#include "engine/kv/managers/kv_manager.h"
#include "engine/scheduler/batch_planner.h"
#include "engine/scheduler/request_table.h"

namespace kvtwin {

class LaunchQueue {
 public:
  // All must outlive it.
  LaunchQueue(KvContext* context, KvManager* kv, RequestTable* table)
      : context_(*context), kv_(*kv), table_(*table), digest_(&context->digest) {}

  bool empty() const { return launches_.empty(); }
  const Launch& oldest() const { return launches_.front(); }
  // Launches the planned entries. `steady`: the next plan may be the same.
  void launch(std::span<const PlannedEntry> planned, bool steady);
  // The oldest launch has ended. Valid until the next call.
  const Launch& close();
  // The end of a step with this request changes more than lengths.
  void mark_decisive(RequestId request);
  // An external event is about to be delivered. The backend completes the running step, and with two in
  // flight the one after it; the rest of a coalesced run never runs (backend.h, interrupt).
  void cut();
  // The newest launch ends with the step that is running, and with two in flight the one after it.
  void cut_after_running();

  // The newest launch if it has steps that the backend could not have started yet, else null; *started: its
  // steps before these.
  const Launch* ahead(uint32_t* started) const;

 private:
  void commit(const PlannedEntry& planned, Launch* launch);
  void add_hits(const PlannedEntry& planned, Launch* launch) const;
  uint32_t steps_alike(const Launch& launch) const;
  void shorten_last(uint64_t end);
  void find_decisive(Launch* launch) const;
  uint32_t padded(uint32_t tokens) const;

  KvContext& context_;
  KvManager& kv_;
  RequestTable& table_;
  LaunchDigest digest_;
  std::vector<Launch> launches_;  // oldest first (a deque would allocate as it advances)
  std::vector<Launch> spare_;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_SCHEDULER_LAUNCH_QUEUE_H_
