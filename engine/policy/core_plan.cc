// What the next step does: which calls run, how many tokens each, and who must give way.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/policy/core_state.h"

namespace kvtwin {

bool Core::State::plan_step() {
  if (launched - done >= config.steps_in_flight_max) return false;
  planned.clear();
  granted.clear();
  adopted.clear();
  adopted_counts.clear();
  bits.clear();
  budget = config.step_tokens_max;
  preempted_now = evicted_now = false;
  admission_open = false;
  switch (config.batch_order) {
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
  // Formats by tag: the only call was sent away for what else lies in its prefix's pages; nothing that could
  // happen would ask again.
  if (planned.empty()) return preempted_now && running.empty() && launches.empty();
  launch_planned();
  return true;
}

void Core::State::plan_running(bool decodes, bool prefills) {
  for (size_t i = 0; i < running.size() && budget > 0; ++i) {
    const Slot slot = running[i];
    CallState& call = calls[slot];
    if (call.launched_out() || call.admitted_now) continue;  // admitted_now: it has its entry already
    const bool is_decode = call.decodes_next();
    if (is_decode ? !decodes : !prefills) continue;
    // Where its cells will lie is not known before the world has said how many are left.
    if (call.answers > 0 && retention.by_group()) continue;
    const uint32_t tokens = entry_tokens(call, call.kv, is_decode);
    if (tokens == 0) continue;
    const size_t granted_before = granted.size();
    bool grown = grow(&call, tokens);
    while (!grown) {
      // Alone, and others still hold the pages that it lacks: they return without its help, and preempting
      // itself would only repeat what it has computed.
      if (running.size() == 1 && pages_return()) return;
      if (demotes() && waits_for_pages(call, tokens)) break;
      const bool itself = running.back() == slot;
      if ((dual || snapshots) && running.size() == 1) call.reuse_barred = true;
      preempt_last();
      if (itself) return;
      grown = grow(&call, tokens);
    }
    if (grown) add_entry(slot, tokens, granted_before);
  }
}

void Core::State::plan_waiting() {
  // A preemption says that memory is short: who was just sent away must not be let in at the same step.
  while (!preempted_now && away == 0 && !waiting.empty() && budget > 0 &&
         running.size() + recalling < config.calls_max) {
    const Admitted admitted = admit(waiting.front());
    if (admitted == Admitted::kBlocked) return;
  }
}

uint32_t Core::State::prefill_budget() const {
  uint32_t limit = budget;
  if (config.chunk_tokens_max > 0) limit = std::min(limit, config.chunk_tokens_max);
  if (config.batch_order == BatchOrder::kMixed) {
    const bool decoding = std::any_of(planned.begin(), planned.end(),
                                      [this](const Planned& p) { return calls[p.slot].decodes_next(); });
    if (decoding) limit = std::min(limit, std::max(1u, config.step_tokens_max / 2));
  }
  return limit;
}

// Gives the call pages for `tokens` more tokens of KV; all or none.
bool Core::State::grow(CallState* call, uint32_t tokens) {
  if (arena) return grow_arena(call, tokens);
  if (dual) return grow_cells(call, tokens);
  if (retention.by_group()) return grow_groups(call, tokens);
  const uint32_t pages = div_ceil(call->kv + tokens, config.page_tokens);
  if (pages <= call->pages_span()) return true;
  const uint32_t more = pages - call->pages_span();
  if (more > pages_available(*call)) return false;
  for (uint32_t left = more; left > 0; --left) {
    const PageId page = take_page(left);
    call->pages.push_back(page);
    granted.push_back({page, 0});
  }
  note_taken(call, more);
  return true;
}

// Pages became the call's: from what was set aside for it, as long as there is some.
void Core::State::note_taken(CallState* call, uint32_t pages) {
  const uint32_t from_reserve = std::min(call->reserved, pages);
  call->reserved -= from_reserve;
  call->beyond += pages - from_reserve;
  reserved_total -= from_reserve;
  pages_running += pages;
}

void Core::State::note_untaken(CallState* call) {
  --pages_running;
  if (call->beyond > 0) {
    --call->beyond;
  } else {
    ++call->reserved;
    ++reserved_total;
  }
}

uint32_t Core::State::pages_available(const CallState& call) const {
  const uint64_t had = uint64_t{gpu.pages_free()} + pages_loose();
  const uint64_t others = reserved_total - call.reserved;
  return static_cast<uint32_t>(had > others ? had - others : 0);
}

bool Core::State::free_page_is_next() const {
  if (gpu.pages_free() == 0) return false;
  return config.page_order == PageOrder::kLowestFirst || pages_loose() == 0 ||
         gpu.oldest_stamp() <= index.next_eviction_rank();
}

// `more`: so many pages, this one included, are wanted now. REQUIRES: so many are free or evictable.
PageId Core::State::take_page(uint32_t more) {
  if (config.page_order == PageOrder::kOldestFirst) {
    if (free_page_is_next()) return gpu.acquire();
    evicted_now = true;
    return index.evict_gpu_page();
  }
  if (gpu.pages_free() == 0 && snapshots) {
    evict_snapshots(std::min(snapshots->pages_loose(), std::max(more, config.evict_batch_pages)));
  } else if (gpu.pages_free() == 0) {
    const uint32_t batch = std::min(index.pages_evictable(), std::max(more, config.evict_batch_pages));
    for (uint32_t i = 0; i < batch; ++i) give_page(index.evict_gpu_page());
    evicted_now = true;
  }
  return gpu.acquire();
}

// The newest running call gives its pages back and returns to the head of the queue.
void Core::State::preempt_last() {
  const Slot slot = running.back();
  running.pop_back();
  CallState& call = calls[slot];
  remove_entry(slot);
  note({kPreempted, launched, raw(call.id)});
  preempted_now = true;
  if (demotes() && demote(slot)) {
    out->push_back(DropCallState{config.engine, call.id, DropCallState::Reason::kPreempted});
    return;
  }
  let_go(&call, true);
  call.resumed = false;
  call.kv = 0;
  call.arrived_now = false;
  call.phase = CallState::Phase::kWaiting;
  waiting.push_front(slot);
  preempted_until = launched;
  out->push_back(DropCallState{config.engine, call.id, DropCallState::Reason::kPreempted});
}

void Core::State::add_entry(Slot slot, uint32_t tokens, size_t granted_before) {
  const auto end = [](const auto& list) { return static_cast<uint32_t>(list.size()); };
  CallState& call = calls[slot];
  Planned entry{slot,         tokens,       static_cast<uint32_t>(granted_before),
                end(granted), end(adopted), end(adopted),
                end(bits),    end(bits),    end(adopted_counts),
                call.snapshot};
  if (dual) {
    bits.insert(bits.end(), entry_bits.begin(), entry_bits.end());
    entry.bits_end = end(bits);
  }
  if (call.arrived_now) {
    arena ? adopt_fetched(&call) : adopt_arrived(&call, granted_before);
    entry.adopted_end = end(adopted);
  } else if (snapshots) {
    adopted.insert(adopted.end(), adopting.begin(), adopting.end());
    adopted_counts.insert(adopted_counts.end(), adopting_counts.begin(), adopting_counts.end());
    adopting.clear();
    adopting_counts.clear();
    entry.adopted_end = end(adopted);
  } else if (call.resumed) {
    adopt_resumed(call);
    entry.adopted_end = end(adopted);
  } else if (call.admitted_now) {
    if (dual) {
      adopted.insert(adopted.end(), adopting.begin(), adopting.end());
    } else {
      index.gpu_pages(call.lease, &adopted);
    }
    entry.adopted_end = end(adopted);
  }
  planned.push_back(entry);
  budget -= tokens;
  // Within a step all KV is written before any is read, so a later call of the same step may share it.
  // Where a planned call can still be sent away, publishing must wait until the plan is final.
  // So it must where copies would follow at once (arenas: publish_homes()).
  if (config.batch_order == BatchOrder::kDecodeFirst && !call.decodes_next() && retention.keeps_all() &&
      !arena) {
    publish_pages(&call, std::min(pages_settled(call, call.kv + tokens), call.pages_public));
  }
}

void Core::State::remove_entry(Slot slot) {
  const auto entry =
      std::find_if(planned.begin(), planned.end(), [slot](const Planned& p) { return p.slot == slot; });
  if (entry == planned.end()) return;
  KVT_CHECK(config.batch_order != BatchOrder::kDecodeFirst);
  budget += entry->tokens;
  planned.erase(entry);
}

}  // namespace kvtwin
