// Placement resident with a prefix cache: a request begins with what other requests have left of its prompt
// on the host.
//
// The prefix index holds homes (host pages) as it holds GPU pages elsewhere. A request pins those of its
// prefix; their content is copied to GPU pages of its own before its first step, because chunks read the
// whole context (docs/design/methods/composition.md#pairs, FreeKV x chunked prefill), and goes again when the
// prompt is complete. So a prefix costs its requests nothing on the host, and each of them GPU memory of its
// own.
//
// Homes are findable when the step that fills them has ended, not when it is planned: a copy starts at once.
// Only what prompts have computed is: a decode read some pages only, so its KV depends on where its prompt
// ended, and whoever began with it would sample something else than one that computed everything (7.3, X-5).
// A request that was preempted finds its prompt again.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/scheduler/core_state.h"

namespace kvtwin {

// The first of the waiting has room for its prefix and what comes next: the prefix is copied to the GPU.
void Core::State::fetch_prefix(RequestIndex request_index, const Pin& prefix) {
  RequestState& request = requests[request_index];
  TransferState& transfer = new_transfer(TransferKind::kLoad);
  transfer.pin = prefix;
  index.gpu_pages(prefix, &transfer.source);
  for (uint32_t left = prefix.pages; left > 0; --left) transfer.target.push_back(take_page(left));
  const uint32_t from_reserve = std::min(request.reserved, prefix.pages);
  request.reserved -= from_reserve;
  reserved_total -= from_reserve;
  waiting.pop_front();
  request.phase = RequestState::Phase::kLoading;
  ++recalling;
  transfer.waiting.emplace_back(request_index, request.id);
  submit_transfer(transfer, Tier::kHost, Tier::kGpu);
}

void Core::State::finish_fetch(const TransferState& transfer, bool arrived) {
  const RequestIndex request_index = transfer.waiting.front().first;
  RequestState& request = requests[request_index];
  const bool expected = waits_for(transfer, RequestState::Phase::kLoading);
  if (expected) --recalling;
  if (!arrived || !expected) {
    for (auto page = transfer.target.rbegin(); page != transfer.target.rend(); ++page) free_page(*page);
    index.release(transfer.pin, false);
    if (!expected) return;  // cancelled meanwhile
    reserved_total -= request.reserved;
    reserved_host_total -= request.reserved_host;
    request.reserved = request.reserved_host = 0;
    request.load_barred = true;
    request.phase = RequestState::Phase::kWaiting;
    waiting.push_front(request_index);
    return;
  }
  running.push_back(request_index);
  request.phase = RequestState::Phase::kRunning;
  request.pin = transfer.pin;
  request.pages.assign(transfer.target.begin(), transfer.target.end());
  request.kv = request.pin.pages * config.page_tokens;
  begin_retention(&request);
  request.arrived_now = true;
  request.insert_barred = request.load_barred = false;
  entries_held += kv_entries_of(request, request.kv);
  pages_running += table_pages(request);
}

// The first entry names the homes of its prefix, then the GPU pages with their content.
void Core::State::reuse_fetched(RequestState* request) {
  index.gpu_pages(request->pin, &reused);
  reused.insert(reused.end(), request->pages.begin(), request->pages.begin() + request->pin.pages);
  request->arrived_now = false;
  request->admitted_now = true;
}

// The launch has ended: what it computed of prompts is at its homes.
void Core::State::publish_host_copies(const Launch& launch) {
  for (size_t i = 0; i < launch.entries.size(); ++i) {
    const PlanEntry& entry = launch.entries[i];
    RequestState& request = requests[launch.members[i].request_index];
    // Preempted meanwhile: it gave the index what it had.
    if (entry.kind == EntryKind::kDecode || request.phase != RequestState::Phase::kRunning) continue;
    publish_pages(&request,
                  std::min(pages_settled(request, entry.context + entry.tokens), request.pages_public));
  }
}

// As take_page(), on the host. REQUIRES: `more` are free or evictable.
PageId Core::State::take_host_copy(uint32_t more) {
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
