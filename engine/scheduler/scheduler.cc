#include "engine/scheduler/scheduler.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin {

using Phase = Request::Phase;

Scheduler::Scheduler(KvContext* context, KvManager* kv)
    : context_(*context),
      kv_(*kv),
      transfers_(kv->transfers()),
      fit_(context->config, context->axes, context->retention),
      table_(context),
      hints_(context, &kv->prefixes()),
      planner_(context, kv, &table_),
      launches_(context, kv, &table_) {}

void Scheduler::apply(Instant now, const Event& event) {
  KVT_CHECK(now >= now_);
  now_ = now;
  if (!std::holds_alternative<StepDone>(event)) launches_.cut();
  std::visit([this](const auto& e) { on(e); }, event);
  while (plan_step()) {
  }
  kv_.start_copies_down();
}

bool Scheduler::plan_step() {
  const StepFence& steps = context_.steps;
  if (steps.launched - steps.done >= context_.config.steps_in_flight_max) return false;
  planner_.plan();
  if (!planner_.entries().empty()) {
    launches_.launch(planner_.entries(), !planner_.preempted());
    return true;
  }
  // The only request was preempted, and may start again without what it reused. No event would trigger that.
  return planner_.preempted() && table_.running().empty() && launches_.empty();
}

// --- requests come and go

void Scheduler::on(const RequestReady& event) {
  if (reject(event)) return;
  const RequestIndex index = table_.open(event);
  Request& request = table_[index];
  RequestProgress& progress = table_.progress(index);
  if (context_.config.prefill_only && event.output_tokens > 1) {
    progress.output = 1;
    request.hands_over = true;
  }
  // Output tokens exist already if the request arrives from another engine.
  progress.sampled = request.emitted = std::min(event.emitted, event.output_tokens);
  while (request.next_trigger < request.triggers.size() &&
         request.triggers[request.next_trigger] <= request.emitted)
    ++request.next_trigger;
  kv_.open(index, event);
  table_.enqueue(index);
  transfers_.allow_copies_down();
  hints_.begin_request(now_, event.session);
}

bool Scheduler::reject(const RequestReady& event) {
  const std::optional<Misfit> misfit = fit_.misfit(event);
  if (!misfit.has_value()) return false;
  const EngineId engine = context_.config.engine;
  context_.digest.add(DecisionDigest::kRejected, raw(event.request), static_cast<uint64_t>(misfit->reason));
  context_.out->push_back(
      RejectRequest{engine, event.request, misfit->reason, misfit->needed, misfit->limit});
  if (event.emitted > 0) context_.out->push_back(SourceRead{engine, event.request, event.from});
  return true;
}

void Scheduler::on(const RequestCancelled& event) {
  const RequestIndex request = table_.find(event.request);
  if (request == RequestTable::kNone) return;  // it ended at this instant
  table_[request].cancelled = table_.progress(request).ending = true;
  launches_.mark_decisive(event.request);
  if (table_[request].launches == 0) end_request(request);
}

void Scheduler::end_request(RequestIndex request) {
  const Request& r = table_[request];
  transfers_.allow_copies_down();
  table_.remove(request);
  r.phase == Phase::kRunning ? kv_.finish(request) : kv_.abandon(request);
  const EngineId engine = context_.config.engine;
  context_.digest.add(DecisionDigest::kEnded, context_.steps.done, raw(r.id), r.emitted);
  context_.out->push_back(FinishRequest{engine, r.id, r.emitted, r.cancelled});
  context_.out->push_back(DropRequestState{
      engine, r.id,
      r.cancelled ? DropRequestState::Reason::kCancelled : DropRequestState::Reason::kFinished});
  forget(request);
}

// The request continues on another engine.
void Scheduler::hand_over(RequestIndex request) {
  table_.remove(request);
  kv_.hand_over(request);
  context_.out->push_back(
      DropRequestState{context_.config.engine, table_[request].id, DropRequestState::Reason::kFinished});
  forget(request);
}

void Scheduler::forget(RequestIndex request) {
  const SessionId session = table_[request].key.session;
  table_.close(request);
  hints_.end_request(now_, session);
}

// --- ends of steps

void Scheduler::on(const StepDone& event) {
  KVT_CHECK(!launches_.empty());
  KVT_CHECK(raw(event.step) == context_.steps.done);
  const Launch& launch = launches_.oldest();
  const auto steps = static_cast<uint32_t>(event.ends.size());
  KVT_CHECK(steps > 0);
  KVT_CHECK(context_.steps.done + steps <= launch.end);
  context_.steps.done += steps;
  if (!launch.compressions.empty()) kv_.answered(event, launch);
  for (const Launch::Member& member : launch.members) {
    if (member.samples) emit(member, steps);
  }
  for (const RequestId request : event.eos) end_early(request);
  if (context_.steps.done == launch.end) close_launch();
}

void Scheduler::emit(const Launch::Member& member, uint32_t steps) {
  Request& request = table_[member.request_index];
  KVT_CHECK(request.id == member.request);
  // A token sampled after the request's end is ignored.
  if (table_.progress(member.request_index).ending) return;
  bool notify = request.emitted == 0;
  request.emitted += steps;
  while (request.next_trigger < request.triggers.size() &&
         request.triggers[request.next_trigger] <= request.emitted) {
    notify = true;
    ++request.next_trigger;
  }
  if (notify) context_.out->push_back(TokensEmitted{context_.config.engine, request.id, request.emitted});
}

// The backend ends the coalesced run here; with two steps in flight one more step of it was already launched.
void Scheduler::end_early(RequestId id) {
  const RequestIndex request = table_.find(id);
  if (request == RequestTable::kNone) return;
  table_.progress(request).ending = true;
  launches_.mark_decisive(id);
  launches_.cut_after_running();
}

void Scheduler::close_launch() {
  const Launch& launch = launches_.close();
  kv_.launch_ended(launch);
  ended_.clear();
  for (const Launch::Member& member : launch.members) {
    Request& request = table_[member.request_index];
    const RequestProgress& progress = table_.progress(member.request_index);
    KVT_CHECK(request.launches > 0);
    if (--request.launches > 0) continue;
    const bool complete = request.emitted == progress.output && progress.passes_left == 0 &&
                          (progress.output > 0 || progress.computed >= progress.prompt);
    if (progress.ending || complete) {
      ended_.push_back(member.request_index);
    } else if (request.phase == Phase::kSwappedOut) {
      transfers_.submit_swap_out(request.id, context_.out);  // no step writes its pages any more
    }
  }
  for (const RequestIndex request : ended_) {
    const RequestProgress& progress = table_.progress(request);
    if (!table_[request].hands_over || progress.ending) {
      end_request(request);
    } else if (table_[request].phase == Phase::kRunning && progress.computed >= progress.prompt) {
      hand_over(request);
    }  // else it was preempted after its last step: its prompt must be computed again first
  }
}

// --- ends of transfers

void Scheduler::end_transfer(TransferId id, bool arrived) {
  Transfer& transfer = transfers_.find(id);
  transfers_.settle(&transfer, arrived, context_.out);
  // They were at the head of the queue, and return there in the same order.
  for (auto waiter = transfer.waiting.rbegin(); waiter != transfer.waiting.rend(); ++waiter) {
    KVT_CHECK(table_[waiter->index].id == waiter->request);
    const Delivery delivery = kv_.deliver(waiter->index, transfer, arrived);
    table_.progress(waiter->index).computed = delivery.computed;
    delivery.runs ? table_.run(waiter->index) : table_.requeue(waiter->index);
  }
  transfers_.close(&transfer, arrived);
}

void Scheduler::check_invariants() const {
  std::vector<RequestIndex> live;
  table_.check_invariants(transfers_.requests_loading(), &live);
  KVT_CHECK(table_.running().size() <= context_.config.requests_max);
  KVT_CHECK(context_.steps.launched >= context_.steps.done);
  kv_.check_invariants(live, table_.running());
  hints_.check_invariants();
}

}  // namespace kvtwin
