// Layouts that move cells, with a prefix cache: calls begin with what another call has kept of the same
// prefix (snapshot_cache.h, METHODS 7.3, 7.5 "TANGRAM x prefix cache").
//
// At the end of every whole chunk a call's pages become a snapshot's, and the call goes on with copies of
// those that it is going to write to. A copy belongs to the step that needs it: until then the call borrows.
//
// What a call sets aside for its prompt counts these copies, because its own lease keeps every snapshot that
// it made: a page is never missing that was promised. Alone, a call that does not fit beside its
// snapshots is computed without any.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/policy/core_state.h"

namespace kvtwin {

// Pages of the snapshot at the end of `tokens` tokens that others copy; budgets that are known.
uint64_t Core::State::tail_pages(uint32_t tokens) const {
  uint64_t pages = 0;
  for (uint32_t g = 0; g < retention.shape().groups; ++g) {
    const uint32_t cells = retention.cells_after(g, tokens);
    pages += div_ceil(cells, config.page_tokens) -
             SnapshotCache::settled_pages(cells, retention.carried(tokens), config.page_tokens);
  }
  return pages;
}

// Of all snapshots that the call takes of its first `tokens` tokens, behind those that it began with.
uint64_t Core::State::tails_ahead(const CallState& call, uint32_t tokens) const {
  if (call.insert_barred) return 0;
  const uint32_t chunks = std::min(call.chunks_public, tokens / retention.chunk_tokens());
  uint64_t pages = 0;
  for (uint32_t chunk = call.snapshots.pages + 1; chunk <= chunks; ++chunk) {
    pages += tail_pages(chunk * retention.chunk_tokens());
  }
  return pages;
}

// As pages_to_admit(), behind what the call's tables hold already.
uint64_t Core::State::pages_behind_snapshot(const CallState& call, uint32_t cached, uint32_t tokens) const {
  const GroupTables& tables = call.tables;
  if (retention.staged()) {
    const bool reserves = retention.reserves() || config.admission == AdmissionKind::kFullReservation;
    const uint64_t all = pages_to_admit(call, cached, tokens) - tables.shared();
    return reserves ? all + tails_ahead(call, call.known()) : all;
  }
  return tables.pages_until(config.admission == AdmissionKind::kFullPrompt ? call.known() : cached + tokens);
}

// As admit().
Core::State::Admitted Core::State::admit_from_snapshot(Slot slot) {
  CallState& call = calls[slot];
  const uint32_t chunk = retention.chunk_tokens();
  call.insert_barred = call.reuse_barred;
  call.tables.open(&retention.shape());
  if (call.chunks_public > 0 && !call.reuse_barred) {
    const uint32_t most = std::min((call.known() - 1) / chunk, call.chunks_public);
    call.snapshots = snapshots->acquire(call.name_space, call.identity, most);
  }
  const uint32_t cached = call.snapshots.pages * chunk;
  if (cached > 0) call.snapshot = snapshots->stand_behind(call.snapshots, cached, &call.tables);
  const uint32_t tokens = entry_tokens(call, cached, false);
  const uint64_t pages = pages_behind_snapshot(call, cached, tokens);
  // The lease itself may have taken what others have set aside.
  const bool robs = reserved_total > uint64_t{gpu.pages_free()} + snapshots->pages_loose();
  if (tokens == 0 || robs || pages + config.watermark_pages > pages_available(call)) {
    call.tables.clear(&spare_pages);
    snapshots->release(call.snapshots, false);
    call.snapshots = {};
    if (!running.empty() || call.chunks_public == 0 || call.reuse_barred || tokens == 0) {
      return Admitted::kBlocked;
    }
    call.reuse_barred = true;
    return admit_from_snapshot(slot);
  }
  if (cached > 0) snapshots->adopt(call.snapshots, &call.tables);
  const bool barred = call.insert_barred;
  let_in(slot, cached);
  call.insert_barred = barred;
  begin_retention(&call);
  call.ranked = cached;
  start(slot, cached, tokens, pages);
  return Admitted::kYes;
}

// The call's next tokens have pages: those that it borrowed are copied to the first of these.
void Core::State::stop_borrowing(CallState* call) {
  GroupTables& tables = call->tables;
  if (!tables.borrows()) return;
  adopting.clear();
  adopting_counts.clear();
  for (uint32_t g = 0; g < tables.groups(); ++g) {
    for (uint32_t i = 0; i < tables.pages(g); ++i) adopting.push_back(tables.page(g, i));
    adopting_counts.push_back(tables.cells(g, call->kv));
  }
  for (uint32_t g = 0; g < tables.groups(); ++g) adopting_counts.push_back(tables.shared(g));
  pages_running -= tables.pages() - tables.shared();
  tables.drop_borrowed();
}

// The call has just been compressed at the end of a whole chunk: a snapshot of it is taken, or may be once
// the world has said how much is left.
void Core::State::plan_snapshot(CallState* call, uint32_t entry, Launch* launch) {
  if (call->insert_barred || call->kv % retention.chunk_tokens() != 0) return;
  const uint32_t chunk = call->kv / retention.chunk_tokens();
  if (chunk > call->chunks_public) return;
  KVT_CHECK(call->snapshots.pages + 1 == chunk);
  SnapshotId id{};
  if (!snapshots->take_number(&id)) return bar_snapshots(call);
  if (!retention.known() || take_snapshot(call, id)) launch->snapshots.push_back({entry, raw(id)});
}

bool Core::State::take_snapshot(CallState* call, SnapshotId id) {
  if (!snapshots->insert(call->name_space, call->identity, id, call->kv, retention.carried(call->kv),
                         &call->tables, &call->snapshots)) {
    snapshots->give_back(id);
    bar_snapshots(call);
    return false;
  }
  call->snapshot = id;
  note({kSnapshot, call->kv, raw(call->id), raw(id)});
  return true;
}

// Somebody else has the same tokens, or there is nothing to keep: the call keeps what is its own.
void Core::State::bar_snapshots(CallState* call) {
  if (retention.known()) {
    const auto spared = std::min<uint64_t>(call->reserved, tails_ahead(*call, call->fill));
    call->reserved -= static_cast<uint32_t>(spared);
    reserved_total -= spared;
  }
  call->insert_barred = true;
}

// So many pages at least become free. REQUIRES: they are free or loose.
void Core::State::evict_snapshots(uint32_t pages) {
  evicted_now = true;
  spare_pages.clear();
  while (spare_pages.size() < pages) snapshots->evict(&spare_pages);
  snapshots_evicted += spare_pages.size();
  for (const PageId page : spare_pages) give_page(page);
}

}  // namespace kvtwin
