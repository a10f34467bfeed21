// BatchPlanner chooses the entries of the next step: which requests run, how many tokens of each, who is
// admitted, and who is preempted for want of pages.
//
// Passes of probe tokens take a request's place among the running ones, as its prompt did, out of the whole
// budget of the step. A pass is never divided, so a step's other entries may leave too little for it: the
// next step then begins with it. Such steps alternate with others, so that decodes wait for one pass at a
// time. A pass with more tokens than step_tokens_max has a step of its own, the only one above that limit.

#ifndef KVTWIN_ENGINE_SCHEDULER_BATCH_PLANNER_H_
#define KVTWIN_ENGINE_SCHEDULER_BATCH_PLANNER_H_

#include <span>
#include <vector>

#include "engine/kv/managers/kv_manager.h"
#include "engine/scheduler/request_table.h"

namespace kvtwin {

// An entry of the step that is being planned, with its ranges of StepDraft's lists.
struct PlannedEntry {
  RequestIndex request;
  uint32_t tokens;
  // Four bytes each, because every request of every step has one of these.
  uint32_t allocated_begin, allocated_end;
  uint32_t hits_begin, hits_end;
  uint32_t bits_begin, bits_end;
};

class BatchPlanner {
 public:
  // All must outlive it.
  BatchPlanner(KvContext* context, KvManager* kv, RequestTable* table);

  void plan();
  std::span<const PlannedEntry> entries() const { return entries_; }
  // A request was preempted while the step was planned.
  bool preempted() const { return preempted_; }

 private:
  void plan_running(bool decodes, bool prompts);
  void lead_with_pass();
  bool add_pass(RequestIndex request);
  void plan_waiting();
  void preempt_last();
  TokenBudget token_budget() const;
  PlannedEntry begin_entry(RequestIndex request) const;
  void add_entry(PlannedEntry entry, uint32_t tokens);
  void remove_entry(RequestIndex request);

  KvContext& context_;
  const CoreConfig& config_;
  KvManager& kv_;
  TransferManager& transfers_;
  RequestTable& table_;
  const uint32_t whole_chunk_;
  std::vector<PlannedEntry> entries_;
  uint32_t budget_ = 0;  // tokens left
  bool preempted_ = false;
  bool pass_waits_ = false;                   // a pass had too little room: the next step begins with it
  RequestIndex leads_ = RequestTable::kNone;  // the step begins with its pass
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_SCHEDULER_BATCH_PLANNER_H_
