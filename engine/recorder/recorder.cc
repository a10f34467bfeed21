#include "engine/recorder/recorder.h"

#include <algorithm>
#include <deque>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/prng.h"
#include "engine/recorder/recorder_formats.h"
#include "engine/recorder/recorder_log.h"
#include "engine/recorder/recorder_records.h"
#include "traces/proto/run.pb.h"

namespace kvtwin {
namespace {

// Fingerprint of the plan of a launch's first step. Its later steps follow from the first.
uint32_t fingerprint(const LaunchStep& step) {
  uint64_t sum = draw({step.tokens_padded, step.entries.size()});
  for (const PlanEntry& entry : step.entries) {
    const uint64_t flags = (entry.first ? 1u : 0u) | (entry.samples ? 2u : 0u);
    sum = draw(
        {sum, raw(entry.request), static_cast<uint64_t>(entry.kind), flags, entry.tokens, entry.context});
  }
  return static_cast<uint32_t>(sum);
}

}  // namespace

struct Recorder::Engine {
  struct Start {
    uint64_t step = 0;
    uint32_t plan = 0;
  };
  uint16_t id = 0;
  v1::LogRecord coalesced;  // the run being collected; empty until its first step has ended
  bool collecting = false;
  std::deque<Start> starts;           // launched runs whose first step has not ended
  std::vector<RequestId> last_batch;  // of the last launch, if it only decodes
  bool outside_since_launch = true;
  Instant last_end{};
  uint64_t steps = 0;
  uint64_t outside = 0;
  bool checkpoint_due = false;
  std::string coalesced_runs, checkpoints;
  std::vector<std::pair<uint64_t, std::string>> transfers;

  void flush() {
    if (collecting) append_record(coalesced, &coalesced_runs);
    collecting = false;
    coalesced.Clear();
  }
};

struct Recorder::State {
  v1::LogRecord header;
  std::vector<Engine> engines;
  std::string client_events;
  Instant last_client_event{};
  std::unique_ptr<Watch> watch;
};

// Forwards to the Client and records its events.
class Recorder::Watch : public Client {
 public:
  Watch(Client* client, State* state) : client_(client), state_(state) {}

  Instant wake_at() const override { return client_->wake_at(); }
  void wake(Instant now, ClientEvents* events) override {
    const size_t before = events->size();
    client_->wake(now, events);
    note(now, *events, before, true);
  }
  void tokens_emitted(Instant now, RequestId request, uint32_t tokens, ClientEvents* events) override {
    const size_t before = answered(events);
    client_->tokens_emitted(now, request, tokens, events);
    note(now, *events, before, false);
  }
  void request_finished(Instant now, RequestId request, uint32_t tokens, bool cancelled,
                        ClientEvents* events) override {
    const size_t before = answered(events);
    client_->request_finished(now, request, tokens, cancelled, events);
    note(now, *events, before, false);
  }
  void request_rejected(Instant now, RequestId request, ClientEvents* events) override {
    const size_t before = answered(events);
    client_->request_rejected(now, request, events);
    note(now, *events, before, false);
  }

 private:
  size_t answered(const ClientEvents* events) {
    ++answers_;
    return events->size();
  }

  void note(Instant now, const ClientEvents& events, size_t first, bool from_wake) {
    for (size_t i = first; i < events.size(); ++i) {
      v1::LogRecord record;
      v1::ClientEvent& out = *record.mutable_client();
      out.set_after_ns((now - state_->last_client_event).ns);
      out.set_answers(answers_);
      out.set_from_wake(from_wake);
      if (const auto* ready = std::get_if<RequestReady>(&events[i])) note_ready(*ready, out.mutable_ready());
      if (const auto* cancelled = std::get_if<RequestCancelled>(&events[i]))
        out.set_cancelled_request(raw(cancelled->request));
      if (const auto* hint = std::get_if<SessionHint>(&events[i])) {
        out.mutable_hint()->set_session(raw(hint->session));
        out.mutable_hint()->set_kind(static_cast<uint32_t>(hint->kind));
        out.mutable_hint()->set_expected_gap_ns(hint->expected_gap.ns);
        out.mutable_hint()->set_tool(hint->tool);
      }
      KVT_CHECK(out.kind_case() != v1::ClientEvent::KIND_NOT_SET);
      append_record(record, &state_->client_events);
      state_->last_client_event = now;
    }
  }

  static void note_ready(const RequestReady& request, v1::ClientEvent::Ready* out) {
    out->set_request(raw(request.request));
    out->set_session(raw(request.session));
    out->set_prompt_tokens(request.prompt_tokens);
    out->set_output_tokens(request.output_tokens);
    for (const UnitRun& run : request.identity) {
      out->add_space(run.space);
      out->add_first(run.first);
      out->add_count(run.count);
    }
    for (const uint32_t trigger : request.triggers) out->add_trigger(trigger);
    write_roles(request.roles, out);
    write_spans(request.spans, out);
    out->set_turn(request.turn);
    out->set_index(request.index);
  }

  Client* const client_;
  State* const state_;
  uint64_t answers_ = 0;
};

Recorder::Recorder(const RunOptions& options, const RecordedAbout& about)
    : state_(std::make_unique<State>()) {
  *state_->header.mutable_header() = log_header(options, about);
  state_->engines.resize(options.engines.size());
  for (size_t i = 0; i < options.engines.size(); ++i) state_->engines[i].id = static_cast<uint16_t>(i);
}
Recorder::~Recorder() = default;

Client* Recorder::watch(Client* client) {
  KVT_CHECK(state_->watch == nullptr);
  state_->watch = std::make_unique<Watch>(client, state_.get());
  return state_->watch.get();
}

void Recorder::saw_event(Instant now, EngineId engine, const Event& event) {
  Engine& here = state_->engines[raw(engine)];
  const auto* done = std::get_if<StepDone>(&event);
  if (done == nullptr) {
    ++here.outside;
    here.outside_since_launch = true;
    here.checkpoint_due = true;
    const auto note = [&](TransferId transfer, bool failed) {
      v1::LogRecord record;
      v1::TransferEnd& out = *record.mutable_transfer();
      out.set_engine(here.id);
      out.set_transfer(raw(transfer));
      out.set_at_ns(now.ns);
      out.set_failed(failed);
      std::string bytes;
      append_record(record, &bytes);
      here.transfers.emplace_back(raw(transfer), std::move(bytes));
    };
    if (const auto* ok = std::get_if<TransferDone>(&event)) note(ok->transfer, false);
    if (const auto* bad = std::get_if<TransferFailed>(&event)) note(bad->transfer, true);
    return;
  }
  for (size_t i = 0; i < done->ends.size(); ++i) {
    const int64_t gap = (done->ends[i] - here.last_end).ns;
    v1::CoalescedSteps* coalesced = here.coalesced.mutable_coalesced();
    const bool starts = !here.starts.empty() && here.starts.front().step == raw(done->step) + i;
    if (starts || !here.collecting) {
      here.flush();
      coalesced = here.coalesced.mutable_coalesced();
      coalesced->set_engine(here.id);
      coalesced->set_step(raw(done->step) + i);
      coalesced->set_plan(starts ? here.starts.front().plan : 0);
      coalesced->set_first_end_ns(gap);
      if (starts) here.starts.pop_front();
      here.collecting = true;
    } else {
      coalesced->add_gap_ns(gap);
    }
    here.last_end = done->ends[i];
    ++here.steps;
  }
  v1::CoalescedSteps* coalesced = here.coalesced.mutable_coalesced();
  coalesced->set_host_ns(coalesced->host_ns() + done->outcome.host.ns);
  coalesced->set_exposed_ns(coalesced->exposed_ns() + done->outcome.exposed.ns);
  coalesced->set_hidden_ns(coalesced->hidden_ns() + done->outcome.hidden.ns);
  coalesced->set_bytes_in(coalesced->bytes_in() + done->outcome.bytes_in);
  coalesced->set_bytes_out(coalesced->bytes_out() + done->outcome.bytes_out);
  for (const RequestId request : done->eos) coalesced->add_eos(raw(request));
  for (const CompressionOutcome& retained : done->retained) {
    v1::CoalescedSteps::Retained* out = coalesced->add_retained();
    out->set_request(raw(retained.request));
    out->mutable_count()->Add(retained.counts.begin(), retained.counts.end());
    out->mutable_live()->Add(retained.live.begin(), retained.live.end());
  }
  // They belong to the last step of their run.
  if (!done->eos.empty() || !done->retained.empty()) here.flush();
}

void Recorder::saw_command(Instant, const Command& command) {
  const auto* step = std::get_if<LaunchStep>(&command);
  if (step == nullptr) return;
  Engine& here = state_->engines[raw(step->engine)];
  here.checkpoint_due = false;  // the digest now includes steps planned ahead, so it depends on coalescing
  const auto decodes = [](const PlanEntry& entry) {
    return entry.kind == EntryKind::kDecode && entry.tokens == 1;
  };
  const bool only_decodes = std::all_of(step->entries.begin(), step->entries.end(), decodes);
  const auto same_request = [](const PlanEntry& entry, RequestId request) {
    return entry.request == request;
  };
  const bool goes_on = only_decodes && !here.outside_since_launch &&
                       std::equal(step->entries.begin(), step->entries.end(), here.last_batch.begin(),
                                  here.last_batch.end(), same_request);
  here.outside_since_launch = false;
  if (goes_on) return;
  here.starts.push_back({raw(step->step), fingerprint(*step)});
  here.last_batch.clear();
  if (!only_decodes) return;
  for (const PlanEntry& entry : step->entries) here.last_batch.push_back(entry.request);
}

void Recorder::saw_state(Instant now, EngineId engine, const Core& core) {
  Engine& here = state_->engines[raw(engine)];
  if (!here.checkpoint_due) return;
  here.checkpoint_due = false;
  v1::LogRecord record;
  v1::Checkpoint& out = *record.mutable_checkpoint();
  out.set_engine(here.id);
  out.set_steps(here.steps);
  out.set_outside(here.outside);
  out.set_at_ns(now.ns);
  out.set_digest(core.digest());
  append_record(record, &here.checkpoints);
}

std::string Recorder::finish(const RunEnd& end) {
  std::string bytes;
  append_record(state_->header, &bytes);
  bytes += state_->client_events;
  v1::LogRecord last;
  for (Engine& engine : state_->engines) {
    engine.flush();
    bytes += engine.coalesced_runs;
    std::sort(engine.transfers.begin(), engine.transfers.end());
    for (const auto& [number, record] : engine.transfers) bytes += record;
    bytes += engine.checkpoints;
    last.mutable_end()->set_steps(last.end().steps() + engine.steps);
  }
  last.mutable_end()->set_digest(end.digest);
  last.mutable_end()->set_ended_at_ns(end.ended_at.ns);
  append_record(last, &bytes);
  return bytes;
}

}  // namespace kvtwin
