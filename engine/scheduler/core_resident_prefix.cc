// Core: placement resident with a prefix cache. A request starts with the part of its prompt that other
// requests left on the host.
//
// The prefix index holds host pages where it holds GPU pages otherwise. A request pins those of its prefix.
// Their content is copied to GPU pages of its own before its first step, because chunks read the whole
// context (docs/design/methods/composition.md#pairs, FreeKV x chunked prefill); these are freed when the
// prompt is complete. So a shared prefix takes host memory once, and GPU memory in each request.
//
// Host pages become findable when the step that fills them has ended, not when it is planned, because a copy
// starts at once. Only KV that prompts computed is shared: a decode read some pages only, so its KV depends
// on where its prompt ended, and a request that reused it would sample other tokens than one that computed
// everything. A preempted request finds its prompt again.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/scheduler/core_state.h"

namespace kvtwin {

// The first waiting request has room for its prefix and its next entry: copies the prefix to the GPU.
void Core::State::fetch_prefix(RequestIndex request_index, const Pin& prefix) {
  RequestState& request = requests[request_index];
  Transfer& transfer = transfers.fetch(prefix);
  take_pages(prefix.pages, &transfer.target);
  const uint32_t from_reserve = std::min(request.reserved, prefix.pages);
  request.reserved -= from_reserve;
  reserved_total -= from_reserve;
  begin_loading(request_index, &transfer);
  transfers.submit(&transfer, out);
}

// The request has GPU pages with the content of its prefix.
void Core::State::attach_fetched(RequestState* request) {
  request->kv = request->pin.pages * config.page_tokens;
  begin_retention(request);
  request->arrived_now = true;
  request->insert_barred = request->load_barred = false;
  entries_held += kv_entries_of(*request, request->kv);
  pages_running += table_pages(*request);
}

// The first entry lists the host pages of its prefix, then the GPU pages with their content.
void Core::State::reuse_fetched(RequestState* request) {
  index.gpu_pages(request->pin, &reused);
  reused.insert(reused.end(), request->pages.begin(), request->pages.begin() + request->pin.pages);
  request->arrived_now = false;
  request->admitted_now = true;
}

// The launch has ended: the pages that it computed for prompts are on the host.
void Core::State::publish_host_copies(const Launch& launch) {
  for (size_t i = 0; i < launch.entries.size(); ++i) {
    const PlanEntry& entry = launch.entries[i];
    RequestState& request = requests[launch.members[i].request_index];
    // A request that was preempted meanwhile has already published its pages.
    if (entry.kind == EntryKind::kDecode || request.phase != RequestState::Phase::kRunning) continue;
    publish_pages(&request,
                  std::min(pages_settled(request, entry.context + entry.tokens), request.pages_public));
  }
}

// take_page() for the host. REQUIRES: `more` pages are free or evictable.
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
