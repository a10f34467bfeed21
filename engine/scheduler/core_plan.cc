// Core: planning of the next step: its requests, the tokens of each, and preemption.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/scheduler/core_state.h"

namespace kvtwin {

bool Core::State::plan_step() {
  if (launched - done >= config.steps_in_flight_max) return false;
  planned.clear();
  allocated.clear();
  reused.clear();
  reused_counts.clear();
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
  // Mixed precision: the only request was preempted because of other content in its prefix's pages. No future
  // event would trigger another attempt.
  if (planned.empty()) return preempted_now && running.empty() && launches.empty();
  launch_planned();
  return true;
}

void Core::State::plan_running(bool decodes, bool prefills) {
  for (size_t i = 0; i < running.size() && budget > 0; ++i) {
    const RequestIndex request_index = running[i];
    RequestState& request = requests[request_index];
    if (request.launched_out() || request.admitted_now) continue;  // admitted_now: it already has its entry
    const bool is_decode = request.decodes_next();
    if (is_decode ? !decodes : !prefills) continue;
    // The slots of its KV entries are unknown until the backend has reported the retained counts.
    if (request.answers > 0 && retention.by_group()) continue;
    const uint32_t tokens = entry_tokens(request, request.kv, is_decode);
    if (tokens == 0) continue;
    const size_t allocated_before = allocated.size();
    bool grown = grow(&request, tokens);
    while (!grown) {
      // It runs alone, and pages that it lacks are held outside all requests: they return by themselves, and
      // preempting it would only repeat its work.
      if (running.size() == 1 && pages_return()) return;
      if (swaps() && waits_for_pages(request, tokens)) break;
      const bool itself = running.back() == request_index;
      if ((mixed || prefix_checkpoints) && running.size() == 1) request.reuse_barred = true;
      preempt_last();
      if (itself) return;
      grown = grow(&request, tokens);
    }
    if (grown) add_entry(request_index, tokens, allocated_before);
  }
}

void Core::State::plan_waiting() {
  // A preemption means that memory is short: the preempted request must not be admitted in the same step.
  while (!preempted_now && transfers.swaps_out() == 0 && !waiting.empty() && budget > 0 &&
         running.size() + transfers.requests_loading() < config.requests_max) {
    const Admitted admitted = admit(waiting.front());
    if (admitted == Admitted::kBlocked) return;
  }
}

uint32_t Core::State::prefill_budget() const {
  uint32_t limit = budget;
  if (config.chunk_tokens_max > 0) limit = std::min(limit, config.chunk_tokens_max);
  if (config.batch_order == BatchOrder::kMixed) {
    const bool decoding = std::any_of(planned.begin(), planned.end(), [this](const Planned& p) {
      return requests[p.request_index].decodes_next();
    });
    if (decoding) limit = std::min(limit, std::max(1u, config.step_tokens_max / 2));
  }
  return limit;
}

// Allocates pages for `tokens` more tokens of the request's KV; all or none.
bool Core::State::grow(RequestState* request, uint32_t tokens) {
  if (resident) return grow_resident(request, tokens);
  if (mixed) return grow_entries(request, tokens);
  if (retention.by_group()) return grow_groups(request, tokens);
  const uint32_t pages = div_ceil(request->kv + tokens, config.page_tokens);
  if (pages <= request->pages_span()) return true;
  const uint32_t more = pages - request->pages_span();
  if (more > pages_available(*request)) return false;
  for (uint32_t left = more; left > 0; --left) {
    const PageId page = take_page(left);
    request->pages.push_back(page);
    allocated.push_back({page, 0});
  }
  note_taken(request, more);
  return true;
}

// Accounts for pages that the request took: from its reservation, as long as there is one.
void Core::State::note_taken(RequestState* request, uint32_t pages) {
  const uint32_t from_reserve = std::min(request->reserved, pages);
  request->reserved -= from_reserve;
  request->beyond += pages - from_reserve;
  reserved_total -= from_reserve;
  pages_running += pages;
}

void Core::State::note_untaken(RequestState* request) {
  --pages_running;
  if (request->beyond > 0) {
    --request->beyond;
  } else {
    ++request->reserved;
    ++reserved_total;
  }
}

uint32_t Core::State::pages_available(const RequestState& request) const {
  const uint64_t had = uint64_t{gpu.pages_free()} + pages_evictable();
  const uint64_t others = reserved_total - request.reserved;
  return static_cast<uint32_t>(had > others ? had - others : 0);
}

bool Core::State::free_page_is_next() const {
  if (gpu.pages_free() == 0) return false;
  return config.page_order == PageOrder::kLowestFirst || pages_evictable() == 0 ||
         gpu.oldest_stamp() <= index.next_eviction_rank();
}

// `more`: pages needed now, this one included. REQUIRES: that many are free or evictable.
PageId Core::State::take_page(uint32_t more) {
  if (config.page_order == PageOrder::kOldestFirst) {
    if (free_page_is_next()) return gpu.acquire();
    evicted_now = true;
    return index.evict_gpu_page();
  }
  if (gpu.pages_free() == 0 && prefix_checkpoints) {
    evict_prefix_checkpoints(
        std::min(prefix_checkpoints->pages_evictable(), std::max(more, config.evict_batch_pages)));
  } else if (gpu.pages_free() == 0) {
    const uint32_t batch = std::min(index.pages_evictable(), std::max(more, config.evict_batch_pages));
    for (uint32_t i = 0; i < batch; ++i) free_page(index.evict_gpu_page());
    evicted_now = true;
  }
  return gpu.acquire();
}

// Appends `count` pages. REQUIRES: that many are free or evictable.
void Core::State::take_pages(uint32_t count, std::vector<PageId>* pages) {
  for (uint32_t left = count; left > 0; --left) pages->push_back(take_page(left));
}

// The newest running request releases its pages and returns to the head of the queue.
void Core::State::preempt_last() {
  const RequestIndex request_index = running.back();
  running.pop_back();
  RequestState& request = requests[request_index];
  remove_entry(request_index);
  digest.add(kPreempted, launched, raw(request.id));
  preempted_now = true;
  if (swaps() && swap_out(request_index)) {
    out->push_back(DropRequestState{config.engine, request.id, DropRequestState::Reason::kPreempted});
    return;
  }
  detach(&request, true);
  request.swapped_in = false;
  request.kv = 0;
  request.arrived_now = false;
  request.phase = RequestState::Phase::kWaiting;
  waiting.push_front(request_index);
  preempted_until = launched;
  out->push_back(DropRequestState{config.engine, request.id, DropRequestState::Reason::kPreempted});
}

void Core::State::add_entry(RequestIndex request_index, uint32_t tokens, size_t allocated_before) {
  const auto end = [](const auto& list) { return static_cast<uint32_t>(list.size()); };
  RequestState& request = requests[request_index];
  Planned entry{request_index,
                tokens,
                static_cast<uint32_t>(allocated_before),
                end(allocated),
                end(reused),
                end(reused),
                end(bits),
                end(bits),
                end(reused_counts),
                request.prefix_checkpoint};
  if (mixed) {
    bits.insert(bits.end(), entry_bits.begin(), entry_bits.end());
    entry.bits_end = end(bits);
  }
  if (request.arrived_now) {
    resident ? reuse_fetched(&request) : reuse_arrived(&request, allocated_before);
    entry.reused_end = end(reused);
  } else if (prefix_checkpoints) {
    reused.insert(reused.end(), reusing.begin(), reusing.end());
    reused_counts.insert(reused_counts.end(), reusing_counts.begin(), reusing_counts.end());
    reusing.clear();
    reusing_counts.clear();
    entry.reused_end = end(reused);
  } else if (request.swapped_in) {
    reuse_swapped_in(request);
    entry.reused_end = end(reused);
  } else if (request.admitted_now) {
    if (mixed) {
      reused.insert(reused.end(), reusing.begin(), reusing.end());
    } else {
      index.gpu_pages(request.pin, &reused);
    }
    entry.reused_end = end(reused);
  }
  planned.push_back(entry);
  budget -= tokens;
  // Within a step all KV is written before any is read, so a later request of the same step may share it.
  // If a planned request can still be preempted, publishing must wait until the plan is final; also if a copy
  // would follow at once (resident pages: publish_host_copies()).
  if (config.batch_order == BatchOrder::kDecodeFirst && !request.decodes_next() && retention.keeps_all() &&
      !resident) {
    publish_pages(&request, std::min(pages_settled(request, request.kv + tokens), request.pages_public));
  }
}

void Core::State::remove_entry(RequestIndex request_index) {
  const auto entry = std::find_if(planned.begin(), planned.end(), [request_index](const Planned& p) {
    return p.request_index == request_index;
  });
  if (entry == planned.end()) return;
  KVT_CHECK(config.batch_order != BatchOrder::kDecodeFirst);
  budget += entry->tokens;
  planned.erase(entry);
}

}  // namespace kvtwin
