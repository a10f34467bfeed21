// Core: prefix cache for layouts that move KV entries. Requests start with the KV entries that another
// request retained of the same prefix (prefix_checkpoint_cache.h,
// docs/design/methods/composition.md#causality, #pairs "TANGRAM x prefix cache").
//
// At the end of every whole chunk a request's pages become a prefix checkpoint's, and the request continues
// with copies of those that it will write to. A copy belongs to the step that needs it: until then the
// request borrows the pages.
//
// A request's reservation for its prompt includes these copies, because its own pin protects every prefix
// checkpoint that it made: a promised page is never missing. A request that alone does not fit together
// with its prefix checkpoints is computed without any.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/scheduler/core_state.h"

namespace kvtwin {

// Pages of the prefix checkpoint at `tokens` tokens that other requests copy; for known budgets.
uint64_t Core::State::tail_pages(uint32_t tokens) const {
  uint64_t pages = 0;
  for (uint32_t g = 0; g < retention.shape().groups; ++g) {
    const uint32_t kv_entries = retention.entries_after(g, tokens);
    pages += div_ceil(kv_entries, config.page_tokens) -
             PrefixCheckpointCache::settled_pages(kv_entries, retention.carried(tokens), config.page_tokens);
  }
  return pages;
}

// The same, summed over the prefix checkpoints that the request makes within its first `tokens` tokens, after
// those that it reused.
uint64_t Core::State::tails_ahead(const RequestState& request, uint32_t tokens) const {
  if (request.insert_barred) return 0;
  const uint32_t chunks = std::min(request.chunks_public, tokens / retention.chunk_tokens());
  uint64_t pages = 0;
  for (uint32_t chunk = request.prefix_checkpoints.pages + 1; chunk <= chunks; ++chunk) {
    pages += tail_pages(chunk * retention.chunk_tokens());
  }
  return pages;
}

// pages_to_admit(), without the pages that the request's tables hold already.
uint64_t Core::State::pages_behind_prefix_checkpoint(const RequestState& request, uint32_t cached,
                                                     uint32_t tokens) const {
  const GroupTables& tables = request.tables;
  if (retention.staged()) {
    const bool reserves = retention.reserves() || config.admission == AdmissionKind::kFullReservation;
    const uint64_t all = pages_to_admit(request, cached, tokens) - tables.shared();
    return reserves ? all + tails_ahead(request, request.known()) : all;
  }
  return tables.pages_until(config.admission == AdmissionKind::kFullPrompt ? request.known()
                                                                           : cached + tokens);
}

// admit() for layouts with prefix checkpoints.
Core::State::Admitted Core::State::admit_from_prefix_checkpoint(RequestIndex request_index) {
  RequestState& request = requests[request_index];
  const uint32_t chunk = retention.chunk_tokens();
  request.insert_barred = request.reuse_barred;
  request.tables.open(&retention.shape());
  if (request.chunks_public > 0 && !request.reuse_barred) {
    const uint32_t most = std::min((request.known() - 1) / chunk, request.chunks_public);
    request.prefix_checkpoints = prefix_checkpoints->acquire(request.name_space, request.identity, most);
  }
  const uint32_t cached = request.prefix_checkpoints.pages * chunk;
  if (cached > 0)
    request.prefix_checkpoint =
        prefix_checkpoints->stand_behind(request.prefix_checkpoints, cached, &request.tables);
  const uint32_t tokens = entry_tokens(request, cached, false);
  const uint64_t pages = pages_behind_prefix_checkpoint(request, cached, tokens);
  // The pin itself may have taken pages that are reserved for others.
  const bool robs = reserved_total > uint64_t{gpu.pages_free()} + prefix_checkpoints->pages_evictable();
  if (tokens == 0 || robs || pages + config.watermark_pages > pages_available(request)) {
    request.tables.clear(&spare_pages);
    prefix_checkpoints->release(request.prefix_checkpoints, false);
    request.prefix_checkpoints = {};
    if (!running.empty() || request.chunks_public == 0 || request.reuse_barred || tokens == 0) {
      return Admitted::kBlocked;
    }
    request.reuse_barred = true;
    return admit_from_prefix_checkpoint(request_index);
  }
  if (cached > 0) prefix_checkpoints->reuse(request.prefix_checkpoints, &request.tables);
  const bool barred = request.insert_barred;
  let_in(request_index, cached);
  request.insert_barred = barred;
  begin_retention(&request);
  request.ranked = cached;
  start(request_index, cached, tokens, pages);
  return Admitted::kYes;
}

// The request's next tokens have pages: borrowed pages are copied to the first of these.
void Core::State::stop_borrowing(RequestState* request) {
  GroupTables& tables = request->tables;
  if (!tables.borrows()) return;
  reusing.clear();
  reusing_counts.clear();
  for (uint32_t g = 0; g < tables.groups(); ++g) {
    for (uint32_t i = 0; i < tables.pages(g); ++i) reusing.push_back(tables.page(g, i));
    reusing_counts.push_back(tables.kv_entries(g, request->kv));
  }
  for (uint32_t g = 0; g < tables.groups(); ++g) reusing_counts.push_back(tables.shared(g));
  pages_running -= tables.pages() - tables.shared();
  tables.drop_borrowed();
}

// The request was just compressed at the end of a whole chunk: a prefix checkpoint of it is taken now, or
// once the backend has reported the retained counts.
void Core::State::plan_prefix_checkpoint(RequestState* request, uint32_t entry, Launch* launch) {
  if (request->insert_barred || request->kv % retention.chunk_tokens() != 0) return;
  const uint32_t chunk = request->kv / retention.chunk_tokens();
  if (chunk > request->chunks_public) return;
  KVT_CHECK(request->prefix_checkpoints.pages + 1 == chunk);
  PrefixCheckpointId id{};
  if (!prefix_checkpoints->take_number(&id)) return bar_prefix_checkpoints(request);
  if (!retention.known() || take_prefix_checkpoint(request, id))
    launch->prefix_checkpoints.push_back({entry, raw(id)});
}

bool Core::State::take_prefix_checkpoint(RequestState* request, PrefixCheckpointId id) {
  if (!prefix_checkpoints->insert(request->name_space, request->identity, id, request->kv,
                                  retention.carried(request->kv), &request->tables,
                                  &request->prefix_checkpoints)) {
    prefix_checkpoints->roll_back(id);
    bar_prefix_checkpoints(request);
    return false;
  }
  request->prefix_checkpoint = id;
  uint64_t counts = 0;
  for (uint32_t g = 0; g < request->tables.groups(); ++g) {
    counts = chained(counts, request->tables.kv_entries(g, request->kv), request->tables.shared(g));
  }
  digest.add(kPrefixCheckpoint, request->kv, raw(request->id), raw(id), counts);
  return true;
}

// Another request inserted the same tokens, or there is nothing to share: the request keeps its own pages.
void Core::State::bar_prefix_checkpoints(RequestState* request) {
  if (retention.known()) {
    const auto spared = std::min<uint64_t>(request->reserved, tails_ahead(*request, request->fill));
    request->reserved -= static_cast<uint32_t>(spared);
    reserved_total -= spared;
  }
  request->insert_barred = true;
}

// Evicts until at least `pages` pages are free. REQUIRES: they are free or evictable.
void Core::State::evict_prefix_checkpoints(uint32_t pages) {
  evicted_now = true;
  spare_pages.clear();
  while (spare_pages.size() < pages) prefix_checkpoints->evict(&spare_pages);
  prefix_checkpoints_evicted += spare_pages.size();
  for (const PageId page : spare_pages) free_page(page);
}

}  // namespace kvtwin
