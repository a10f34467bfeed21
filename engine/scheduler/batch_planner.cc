#include "engine/scheduler/batch_planner.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"

namespace kvtwin {

BatchPlanner::BatchPlanner(KvContext* context, KvManager* kv, RequestTable* table)
    : context_(*context),
      config_(context->config),
      kv_(*kv),
      transfers_(kv->transfers()),
      table_(*table),
      whole_chunk_(context->retention.whole_chunk_tokens()) {}

void BatchPlanner::plan() {
  entries_.clear();
  context_.draft.clear();
  budget_ = config_.step_tokens_max;
  preempted_ = false;
  leads_ = RequestTable::kNone;
  if (std::exchange(pass_waits_, false)) lead_with_pass();
  switch (config_.batch_order) {
    case BatchOrder::kDecodeFirst:
      plan_running(true, true);
      plan_waiting();
      break;
    case BatchOrder::kPrefillFirst:
      plan_running(false, true);
      plan_waiting();
      plan_running(true, false);
      break;
    case BatchOrder::kMixed:
      plan_running(true, false);
      plan_running(false, true);
      plan_waiting();
      break;
  }
}

void BatchPlanner::plan_running(bool decodes, bool prompts) {
  for (size_t i = 0; i < table_.running().size() && budget_ > 0; ++i) {
    const RequestIndex request = table_.running()[i];
    const RequestProgress& progress = table_.progress(request);
    if (progress.launched_out() || table_[request].entered || request == leads_) continue;
    const bool is_decode = progress.decodes_next();
    if (is_decode ? !decodes : !prompts) continue;
    if (progress.passes_left > 0) {
      const bool added = add_pass(request);
      pass_waits_ = pass_waits_ || (!added && leads_ == RequestTable::kNone);
      continue;
    }
    const uint32_t tokens =
        is_decode ? 1 : token_budget().entry_tokens(progress, progress.computed, is_decode);
    if (tokens == 0) continue;
    const PlannedEntry entry = begin_entry(request);
    Room room = kv_.grow(request, tokens);
    while (room == Room::kNo || room == Room::kComing) {
      const bool alone = table_.running().size() == 1;
      // It runs alone, and pages that it lacks are held outside all requests: they return by themselves, and
      // preempting it would only repeat its work.
      if (alone && kv_.pages_return()) return;
      if (room == Room::kComing) break;
      const bool itself = table_.running().back() == request;
      preempt_last();
      if (itself) return;
      room = kv_.grow(request, tokens);
    }
    if (room == Room::kYes) add_entry(entry, tokens);
  }
}

void BatchPlanner::lead_with_pass() {
  const auto next =
      std::find_if(table_.running().begin(), table_.running().end(), [this](RequestIndex request) {
        const RequestProgress& progress = table_.progress(request);
        return progress.passes_left > 0 && !progress.launched_out();
      });
  if (next == table_.running().end()) return;  // it has ended, or was preempted
  const bool added = add_pass(*next);
  KVT_CHECK(added);
  leads_ = *next;
}

// Returns false if the step has too little room left. Probe tokens need no pages.
bool BatchPlanner::add_pass(RequestIndex request) {
  const ProbePasses& passes = context_.retention.passes();
  const RequestProgress& progress = table_.progress(request);
  const uint32_t tokens = passes.tokens(passes.next(progress.computed, progress.passes_left));
  if (tokens > budget_ && !entries_.empty()) return false;
  add_entry(begin_entry(request), tokens);
  return true;
}

void BatchPlanner::plan_waiting() {
  // A preemption means that memory is short: the preempted request must not be admitted in the same step.
  // Pages that are being swapped out belong to requests that run.
  while (!preempted_ && transfers_.swaps_out() == 0 && !table_.waiting().empty() && budget_ > 0 &&
         table_.running().size() + transfers_.requests_loading() < config_.requests_max) {
    const RequestIndex request = table_.waiting().front();
    const PlannedEntry entry = begin_entry(request);
    const Admission admission = kv_.admit(request, {token_budget(), table_.running()});
    switch (admission.kind) {
      case Admission::Kind::kBlocked:
        return;
      case Admission::Kind::kAfterTransfer:
        table_.load_first();
        break;
      case Admission::Kind::kNow:
        table_.run_first();
        table_[request].entered = true;
        table_.progress(request).computed = admission.computed;
        add_entry(entry, admission.tokens);
        break;
    }
  }
}

TokenBudget BatchPlanner::token_budget() const {
  uint32_t prompt = budget_;
  if (config_.chunk_tokens_max > 0) prompt = std::min(prompt, config_.chunk_tokens_max);
  if (config_.batch_order == BatchOrder::kMixed) {
    const bool decoding = std::any_of(entries_.begin(), entries_.end(), [this](const PlannedEntry& entry) {
      return table_.progress(entry.request).decodes_next();
    });
    if (decoding) prompt = std::min(prompt, std::max(1u, config_.step_tokens_max / 2));
  }
  return {budget_, prompt, whole_chunk_};
}

// The newest running request gives up its pages, and returns to the head of the queue unless it is swapped
// out.
void BatchPlanner::preempt_last() {
  const bool alone = table_.running().size() == 1;
  const RequestIndex request = table_.stop_last();
  remove_entry(request);
  Request& r = table_[request];
  r.first = r.entered = false;
  if (leads_ == request) leads_ = RequestTable::kNone;
  context_.digest.add(DecisionDigest::kPreempted, context_.steps.launched, raw(r.id));
  preempted_ = true;
  if (kv_.preempt(request, {alone})) {
    r.phase = Request::Phase::kSwappedOut;
    if (r.launches == 0) transfers_.submit_swap_out(r.id, context_.out);
  } else {
    table_.progress(request).computed = table_.progress(request).passes_left = 0;
    table_.requeue(request);
    context_.steps.touched_until = context_.steps.launched;
  }
  context_.out->push_back(DropRequestState{config_.engine, r.id, DropRequestState::Reason::kPreempted});
}

// The lists of the entry begin where those of the draft end.
PlannedEntry BatchPlanner::begin_entry(RequestIndex request) const {
  const StepDraft& draft = context_.draft;
  const auto allocated = static_cast<uint32_t>(draft.allocated.size());
  const auto hits = static_cast<uint32_t>(draft.hits.size());
  const auto bits = static_cast<uint32_t>(draft.bits.size());
  return {request, 0, allocated, allocated, hits, hits, bits, bits};
}

void BatchPlanner::add_entry(PlannedEntry entry, uint32_t tokens) {
  const StepDraft& draft = context_.draft;
  entry.tokens = tokens;
  entry.allocated_end = static_cast<uint32_t>(draft.allocated.size());
  entry.hits_end = static_cast<uint32_t>(draft.hits.size());
  entry.bits_end = static_cast<uint32_t>(draft.bits.size());
  entries_.push_back(entry);
  budget_ -= std::min(tokens, budget_);
  // In the other orders a planned request can still be preempted: publishing waits until the plan is final.
  const RequestProgress& progress = table_.progress(entry.request);
  const bool chunk = progress.passes_left == 0 && !progress.decodes_next();
  if (config_.batch_order == BatchOrder::kDecodeFirst && chunk) kv_.publish(entry.request, tokens);
}

void BatchPlanner::remove_entry(RequestIndex request) {
  const auto entry = std::find_if(entries_.begin(), entries_.end(),
                                  [request](const PlannedEntry& e) { return e.request == request; });
  if (entry == entries_.end()) return;
  const bool pass = table_.progress(request).passes_left > 0;
  KVT_CHECK(pass || config_.batch_order != BatchOrder::kDecodeFirst);
  budget_ += entry->tokens;
  entries_.erase(entry);
}

}  // namespace kvtwin
