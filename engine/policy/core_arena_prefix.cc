// Placement arena with a prefix cache: a call begins with what other calls have left of its prompt on the
// host.
//
// The prefix index holds homes (host pages) as it holds GPU pages elsewhere. A call leases those of its
// prefix; their content is copied to GPU pages of its own before its first step, because chunks read the
// whole context (METHODS 7.5, FreeKV x chunked prefill), and goes again when the prompt is complete. So a
// prefix costs its calls nothing on the host, and each of them GPU memory of its own.
//
// Homes are findable when the step that fills them has ended, not when it is planned: a copy starts at once.
// Only what prompts have computed is: a decode read some pages only, so its KV depends on where its prompt
// ended, and whoever began with it would sample something else than one that computed everything (7.3, X-5).
// A call that was preempted finds its prompt again.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/policy/core_state.h"

namespace kvtwin {

// The first of the waiting has room for its prefix and what comes next: the prefix is copied to the GPU.
void Core::State::fetch_prefix(Slot slot, const Lease& prefix) {
  CallState& call = calls[slot];
  TransferState& transfer = new_transfer(TransferKind::kRecall);
  transfer.lease = prefix;
  index.gpu_pages(prefix, &transfer.source);
  for (uint32_t left = prefix.pages; left > 0; --left) transfer.target.push_back(take_page(left));
  const uint32_t from_reserve = std::min(call.reserved, prefix.pages);
  call.reserved -= from_reserve;
  reserved_total -= from_reserve;
  waiting.pop_front();
  call.phase = CallState::Phase::kRecalling;
  ++recalling;
  transfer.waiting.emplace_back(slot, call.id);
  submit_transfer(transfer, Tier::kHost, Tier::kGpu);
}

void Core::State::finish_fetch(const TransferState& transfer, bool arrived) {
  const Slot slot = transfer.waiting.front().first;
  CallState& call = calls[slot];
  const bool expected = waits_for(transfer, CallState::Phase::kRecalling);
  if (expected) --recalling;
  if (!arrived || !expected) {
    for (auto page = transfer.target.rbegin(); page != transfer.target.rend(); ++page) give_page(*page);
    index.release(transfer.lease, false);
    if (!expected) return;  // cancelled meanwhile
    reserved_total -= call.reserved;
    reserved_host_total -= call.reserved_host;
    call.reserved = call.reserved_host = 0;
    call.recall_barred = true;
    call.phase = CallState::Phase::kWaiting;
    waiting.push_front(slot);
    return;
  }
  running.push_back(slot);
  call.phase = CallState::Phase::kRunning;
  call.lease = transfer.lease;
  call.pages.assign(transfer.target.begin(), transfer.target.end());
  call.kv = call.lease.pages * config.page_tokens;
  begin_retention(&call);
  call.arrived_now = true;
  call.insert_barred = call.recall_barred = false;
  cells_held += cells_of(call, call.kv);
  pages_running += table_pages(call);
}

// The first entry names the homes of its prefix, then the GPU pages with their content.
void Core::State::adopt_fetched(CallState* call) {
  index.gpu_pages(call->lease, &adopted);
  adopted.insert(adopted.end(), call->pages.begin(), call->pages.begin() + call->lease.pages);
  call->arrived_now = false;
  call->admitted_now = true;
}

// The launch has ended: what it computed of prompts is at its homes.
void Core::State::publish_homes(const Launch& launch) {
  for (size_t i = 0; i < launch.entries.size(); ++i) {
    const PlanEntry& entry = launch.entries[i];
    CallState& call = calls[launch.members[i].slot];
    // Preempted meanwhile: it gave the index what it had.
    if (entry.kind == EntryKind::kDecode || call.phase != CallState::Phase::kRunning) continue;
    publish_pages(&call, std::min(pages_settled(call, entry.context + entry.tokens), call.pages_public));
  }
}

// As take_page(), on the host. REQUIRES: `more` are free or evictable.
PageId Core::State::take_home(uint32_t more) {
  if (host->pages_free() == 0) {
    const uint32_t batch = std::min(index.pages_evictable(), std::max(more, config.evict_batch_pages));
    for (uint32_t i = 0; i < batch; ++i) {
      const PageId page = index.evict_gpu_page();
      host->release(page, index.tick());
    }
    evicted_now = true;
  }
  return host->acquire();
}

}  // namespace kvtwin
