#include "engine/scheduler/launch_queue.h"

#include <algorithm>
#include <utility>

#include "engine/base/check.h"

namespace kvtwin {

void LaunchQueue::launch(std::span<const PlannedEntry> planned, bool steady) {
  size_t able = 0;  // requests that could have been in this step
  for (const RequestIndex request : table_.running()) able += table_.progress(request).launched_out() ? 0 : 1;
  if (spare_.empty()) spare_.emplace_back();
  launches_.push_back(std::move(spare_.back()));
  spare_.pop_back();
  Launch& launch = launches_.back();
  launch.clear(context_.steps.launched);
  for (const PlannedEntry& entry : planned) commit(entry, &launch);
  launch.reused.swap(context_.draft.reused);
  launch.requantisations.swap(context_.draft.requantisations);
  launch.reused_counts.swap(context_.draft.reused_counts);
  for (const PlannedEntry& entry : planned) add_hits(entry, &launch);
  launch.point_compressions();
  // Before pages are taken ahead: an uncoalesced run would decide here, after this step's allocations.
  kv_.start_copies_down();

  const HeldEntries held = kv_.held_by(launch);
  uint32_t repeat = steady && able == planned.size() ? steps_alike(launch) : 1;
  if (repeat > 1) repeat = kv_.take_ahead(repeat, &launch);
  for (const Launch::Member& member : launch.members) {
    RequestProgress& progress = table_.progress(member.request_index);
    progress.computed += repeat - 1;
    progress.sampled += repeat - 1;
  }
  find_decisive(&launch);
  launch.end = context_.steps.launched = launch.first + repeat;
  uint32_t tokens = 0, stored = 0;
  for (const PlanEntry& entry : launch.entries) tokens += entry.tokens, stored += entry.stored();
  digest_.add(launch, tokens, padded(stored));
  context_.out->push_back(LaunchStep{context_.config.engine, StepId{launch.first}, repeat, tokens,
                                     padded(stored), launch.entries, launch.allocations, launch.prefix_hits,
                                     launch.compressions, held, launch.formats, launch.requantisations,
                                     launch.prefix_checkpoints, launch.passes});
}

void LaunchQueue::commit(const PlannedEntry& planned, Launch* launch) {
  const StepDraft& draft = context_.draft;
  Request& request = table_[planned.request];
  RequestProgress& progress = table_.progress(planned.request);
  const bool decode = progress.decodes_next(), pass = progress.passes_left > 0;
  const auto entry = static_cast<uint32_t>(launch->entries.size());
  const uint32_t context = progress.computed;
  progress.computed += pass ? 0 : planned.tokens;
  const bool samples = !pass && progress.computed == progress.known() && progress.sampled < progress.output;
  progress.sampled += samples ? 1 : 0;
  ++request.launches;
  PlanEntry& e = launch->entries.emplace_back();
  e.request = request.id;
  e.kind = pass ? EntryKind::kProbe : decode ? EntryKind::kDecode : EntryKind::kChunk;
  e.first = request.first;
  e.samples = samples;
  e.tokens = planned.tokens;
  e.context = context;
  e.key = request.key;
  launch->members.push_back({planned.request, request.id, samples});
  for (uint32_t i = planned.allocated_begin; i < planned.allocated_end; ++i) {
    launch->allocations.push_back({0, entry, draft.allocated[i].page, draft.allocated[i].group});
  }
  for (uint32_t i = decode ? planned.bits_end : planned.bits_begin; i < planned.bits_end; ++i)
    launch->formats.push_back({entry, draft.bits[i].count, draft.bits[i].four});
  if (pass) {
    launch->passes.push_back(context_.retention.passes().next(context, progress.passes_left));
    launch->passes.back().entry = entry;
    --progress.passes_left;
  }
  kv_.write_entry(planned.request, entry, launch);
  launch->entries[entry].passes_left = progress.passes_left;
  request.first = request.entered = false;
}

void LaunchQueue::add_hits(const PlannedEntry& planned, Launch* launch) const {
  for (uint32_t i = planned.hits_begin; i < planned.hits_end; ++i) {
    const StepDraft::Hit& hit = context_.draft.hits[i];
    const uint32_t* const counts = launch->reused_counts.data() + hit.counts_begin;
    launch->prefix_hits.push_back({table_[planned.request].id,
                                   {launch->reused.data() + hit.begin, hit.end - hit.begin},
                                   hit.prefix_checkpoint,
                                   {counts, hit.groups},
                                   {counts + hit.groups, hit.groups}});
  }
}

// Number of steps, this one included, that are certain to have the same entries, each one token later.
uint32_t LaunchQueue::steps_alike(const Launch& launch) const {
  if (context_.draft.evicted || context_.draft.admission_open || !launch.compressions.empty()) return 1;
  for (size_t i = 0; i + 1 < launches_.size(); ++i) {
    if (launches_[i].decisive) return 1;
  }
  uint32_t steps = context_.config.repeat_max;
  for (size_t i = 0; i < launch.entries.size(); ++i) {
    if (launch.entries[i].kind != EntryKind::kDecode || launch.entries[i].passes_left > 0) return 1;
    // It was planned as a waiting request. From the next step on it has another position in the plan, and
    // pages are allocated in that order.
    if (launch.entries[i].first) return 1;
    const Request& request = table_[launch.members[i].request_index];
    const RequestProgress& progress = table_.progress(launch.members[i].request_index);
    steps = std::min(steps, progress.output - progress.sampled + 1);
    for (size_t t = request.next_trigger; t < request.triggers.size(); ++t) {
      if (request.triggers[t] < progress.sampled) continue;
      steps = std::min(steps, request.triggers[t] - progress.sampled + 1);
      break;
    }
  }
  return std::min(steps, kv_.coalescible_steps(launch));
}

const Launch& LaunchQueue::close() {
  spare_.push_back(std::move(launches_.front()));
  launches_.erase(launches_.begin());
  return spare_.back();
}

void LaunchQueue::mark_decisive(RequestId request) {
  for (Launch& launch : launches_) {
    for (const Launch::Member& member : launch.members) {
      if (member.request == request) launch.decisive = true;
    }
  }
}

// --- cutting a coalesced run

void LaunchQueue::cut() {
  if (launches_.empty()) return;
  const uint64_t end =
      std::max(context_.steps.done + context_.config.steps_in_flight_max, launches_.back().first + 1);
  if (end < launches_.back().end) shorten_last(end);
}

void LaunchQueue::cut_after_running() {
  const uint64_t end = context_.steps.done + context_.config.steps_in_flight_max - 1;
  if (launches_.back().end > end) shorten_last(end);
}

// Undoes the plan of steps [end, last.end) exactly.
void LaunchQueue::shorten_last(uint64_t end) {
  Launch& last = launches_.back();
  KVT_CHECK(end > last.first);
  KVT_CHECK(end >= context_.steps.done);
  const auto left = static_cast<uint32_t>(end - last.first), steps = static_cast<uint32_t>(last.end - end);
  digest_.subtract_from(last, left);
  kv_.undo_ahead(&last, left);
  for (const Launch::Member& member : last.members) {
    RequestProgress& progress = table_.progress(member.request_index);
    progress.computed -= steps;
    progress.sampled -= steps;
  }
  last.end = context_.steps.launched = end;
  last.decisive = false;
  find_decisive(&last);
}

void LaunchQueue::find_decisive(Launch* launch) const {
  for (const Launch::Member& member : launch->members) {
    launch->decisive = launch->decisive || table_.progress(member.request_index).launched_out();
  }
}

const Launch* LaunchQueue::ahead(uint32_t* started) const {
  if (launches_.empty()) return nullptr;
  const Launch& last = launches_.back();
  const uint64_t first = std::max(last.first + 1, context_.steps.done + context_.config.steps_in_flight_max);
  *started = static_cast<uint32_t>(first - last.first);
  return first < last.end ? &last : nullptr;
}

uint32_t LaunchQueue::padded(uint32_t tokens) const {
  if (tokens == 0) return 0;  // passes of probe tokens alone
  const std::vector<uint32_t>& sizes = context_.config.capture_sizes;
  const auto size = std::lower_bound(sizes.begin(), sizes.end(), tokens);
  return size == sizes.end() ? tokens : *size;
}

}  // namespace kvtwin
