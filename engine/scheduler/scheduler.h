// Scheduler runs the requests of one engine: it answers each event, plans steps while any can be launched,
// and ends requests. It knows requests, budgets and order; how KV is laid out is its KvManager's business.
//
// Two steps in flight follow vLLM v1: step n+1 is planned when step n starts. A request whose last token is
// already in flight is not scheduled again; it keeps its pages until the token exists.

#ifndef KVTWIN_ENGINE_SCHEDULER_SCHEDULER_H_
#define KVTWIN_ENGINE_SCHEDULER_SCHEDULER_H_

#include <vector>

#include "engine/kv/managers/kv_manager.h"
#include "engine/kv/managers/request_fit.h"
#include "engine/scheduler/batch_planner.h"
#include "engine/scheduler/launch_queue.h"
#include "engine/scheduler/request_table.h"
#include "engine/scheduler/session_hints.h"

namespace kvtwin {

class Scheduler {
 public:
  // Both must outlive it.
  Scheduler(KvContext* context, KvManager* kv);

  // Appends the commands that follow from the event to *context->out.
  void apply(Instant now, const Event& event);

  const RequestTable& requests() const { return table_; }
  const LaunchQueue& launches() const { return launches_; }
  void check_invariants() const;

 private:
  void on(const RequestReady& event);
  void on(const RequestCancelled& event);
  void on(const SessionHint& event) { hints_.hint(now_, event); }
  void on(const StepDone& event);
  void on(const TransferDone& event) { end_transfer(event.transfer, true); }
  void on(const TransferFailed& event) { end_transfer(event.transfer, false); }
  void on(const Timer&) {}  // no policy sets one yet
  void on(const PagesTaken& event) { kv_.taken(event); }

  bool reject(const RequestReady& event);
  void emit(const Launch::Member& member, uint32_t steps);
  void end_early(RequestId request);
  void close_launch();
  void end_transfer(TransferId id, bool arrived);
  void end_request(RequestIndex request);
  void hand_over(RequestIndex request);
  void forget(RequestIndex request);
  bool plan_step();

  KvContext& context_;
  KvManager& kv_;
  TransferManager& transfers_;
  const RequestFit fit_;
  RequestTable table_;
  SessionHints hints_;
  BatchPlanner planner_;
  LaunchQueue launches_;
  Instant now_{};
  std::vector<RequestIndex> ended_;  // scratch
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_SCHEDULER_SCHEDULER_H_
