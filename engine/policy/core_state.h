// The inside of Core. Included by core*.cc only.
//
// One call's life: waiting -> (recalling -> waiting)* -> running -> ended, and from running back to
// waiting when it is preempted (by way of `away` where its pages are copied to the host). Counts run ahead of
// the world: `kv` and `sampled` say what will be true when every launched step has ended; `emitted` says what
// is true.

#ifndef KVTWIN_ENGINE_POLICY_CORE_STATE_H_
#define KVTWIN_ENGINE_POLICY_CORE_STATE_H_

#include <algorithm>
#include <deque>
#include <memory>
#include <vector>

#include "engine/policy/axes.h"
#include "engine/policy/core.h"
#include "engine/policy/core_work.h"
#include "engine/policy/dual_pool.h"
#include "engine/policy/group_tables.h"
#include "engine/policy/page_pool.h"
#include "engine/policy/prefix_index.h"
#include "engine/policy/request_fit.h"
#include "engine/policy/retention.h"
#include "engine/policy/session_store.h"
#include "engine/policy/snapshot_cache.h"

namespace kvtwin {

struct CallState {
  enum class Phase : uint8_t { kUnused, kWaiting, kRecalling, kRunning, kAway };

  CallId id{};
  RequestKey key{};
  uint64_t name_space = 0;
  Phase phase = Phase::kUnused;
  bool ending = false;  // cancelled, or sampled end-of-sequence: no further step
  bool cancelled = false;
  bool recall_barred = false;  // a recall failed: compute instead
  bool insert_barred = false;  // the index holds the same tokens from elsewhere
  bool admitted_now = false;   // its next entry is the first since admission
  bool resumed = false;        // its next entry is the first since it came back from the host
  bool in_arena = false;       // its prompt is complete: `pages` is an arena (core_arena.cc)
  bool hands_over = false;     // once its first token exists (core_handover.cc)
  bool arrives = false;        // its KV is on another engine and is to be fetched
  bool arrived_now = false;    // its KV came by a transfer, and no entry of it has been planned since
  uint32_t prompt = 0;
  uint32_t output = 0;
  uint32_t kv = 0;
  uint32_t sampled = 0;
  uint32_t emitted = 0;
  uint32_t launches = 0;       // in flight that include it
  uint32_t pages_public = 0;   // leading pages that another call could ever match
  uint32_t pages_known = 0;    // leading pages with an identity at all
  uint32_t reserved = 0;       // pages set aside and not taken yet
  uint32_t reserved_host = 0;  // likewise
  uint32_t beyond = 0;         // pages taken when nothing was set aside any more
  size_t next_trigger = 0;
  Lease lease;                // cached or inserted pages, from the start
  std::vector<PageId> pages;  // its own, behind the lease, by position; kNoPage: a hole
  // Placement arena: one for every page of its context behind the lease, which is then of host pages too
  // (core_arena.cc). A call that was demoted: its pages (core_demotion.cc).
  std::vector<PageId> host_pages;
  EngineId from{};  // arrives: whose pages `source` are
  std::vector<PageId> source;
  std::vector<UnitRun> identity;
  std::vector<uint32_t> triggers;

  // Retention: what has been dropped, or will be when every launched step has ended. At the end: a plain
  // paged engine does not touch it.
  GroupTables tables;   // its own, where pages belong to head groups: `pages` is empty then
  bool due = false;     // once its prompt is computed, it may be compressed
  uint32_t fill = 0;    // tokens that were known when it was admitted: its prompt, and what a preemption lost
  uint32_t ranked = 0;  // tokens that the last compression knew of
  uint32_t answers = 0;    // compressions whose counts or holes the world has yet to say
  uint32_t attempt = 0;    // admissions
  uint32_t dead = 0;       // tokens of which no cell is left, where cells keep their places (or in an arena)
  uint32_t dead_soon = 0;  // likewise, once the world has answered: how many is known before
  uint32_t holes = 0;      // positions, in pages, that have no page any more
  std::vector<uint16_t> page_dead;  // likewise, by page position; may be shorter

  // Compressed prefixes (core_snapshots.cc).
  uint32_t chunks_public = 0;  // leading chunks that another call could ever match
  Lease snapshots;             // of chunks: what it began with, and what it has added
  SnapshotId snapshot{};       // of the last of them

  // Formats by tag (core_formats.cc): `pages` and the lease are frames then, and the pages are here.
  DualPool::Call cells;
  uint32_t narrow = 0;      // its int2 cells before the entry that was planned last
  uint32_t settled = 0;     // frames before this have all their cells in pages, once its launches have ended
  uint32_t reserved_2 = 0;  // int2 pages set aside; `reserved` are int4 pages
  bool reuse_barred = false;  // alone, it did not fit beside the pages that its prefix lies in

  // Page positions that are covered, and pages behind them.
  uint32_t pages_span() const { return lease.pages + static_cast<uint32_t>(pages.size()); }
  uint32_t pages_held() const { return pages_span() - holes + tables.pages(); }
  uint32_t known() const { return prompt + sampled; }
  bool decodes_next() const { return kv >= prompt && kv + 1 == known(); }
  // Every step it needs has been launched.
  bool launched_out() const { return ending || (sampled == output && kv >= prompt); }
};

struct Core::State {
  enum class Admitted : uint8_t { kYes, kElsewhere, kBlocked };

  State(const CoreConfig& config, PolicyAxes policies);

  // core.cc
  void apply(Instant now, const Event& event, std::vector<Command>* commands);
  void on(const CallReady& event);
  void on(const CallCancelled& event);
  void on(const SessionHint& event);  // core_hints.cc
  void on(const StepDone& event);     // core_steps.cc
  void on(const TransferDone& event);
  void on(const TransferFailed& event);
  void on(const Timer& event);
  void on(const PagesTaken& event);  // core_handover.cc
  // core_hints.cc
  PrefixIndex& prefixes();               // whichever tree this engine's prefixes stand in
  void session_here(SessionId session);  // a call of it has come
  void session_left(SessionId session);  // and has gone
  bool reject(const CallReady& event);
  void end_call(Slot slot);
  void forget(Slot slot);
  void drop_surplus_sessions();
  void let_go(CallState* call, bool preempted);
  void publish_pages(CallState* call, uint32_t pages_limit);
  // The call's own pages by position, behind the lease: what the index can be given.
  std::vector<PageId>& own_pages(CallState* call) const { return arena ? call->host_pages : call->pages; }
  // Leading pages of a call with `tokens` tokens of KV whose cells have all got the form in which they stay:
  // nobody else may start from a page whose newest cells its call still keeps exact beside it.
  uint32_t pages_settled(const CallState& call, uint32_t tokens) const {
    const uint32_t pages = (tokens - std::min(tokens, exact_tail)) / config.page_tokens;
    // Arenas: what a decode computed depends on where its prompt ended, because it read only some pages.
    if (arena) return std::min(pages, call.fill / config.page_tokens);
    return dual ? std::min(pages, frames_settled(call)) : pages;
  }
  Slot take_slot();
  Slot slot_of(CallId call) const;
  void check_invariants() const;

  // core_steps.cc
  void emit(const Launch::Member& member, uint32_t steps);
  void end_early(CallId call);
  void close_launch();
  void cut_stretch();
  void shorten_last(uint64_t end);
  void give_back_grants(Launch* launch, uint32_t offset);

  // core_retention.cc
  uint64_t cells_of(const CallState& call, uint32_t tokens) const;
  void add_tokens(CallState* call, uint32_t tokens) {
    const uint32_t before = call->kv;
    call->kv += tokens;
    cells_held += retention.keeps_all() ? tokens : cells_of(*call, call->kv) - cells_of(*call, before);
  }
  // Mean over heads, rounded up.
  uint32_t live_per_head(const CallState& call) const {
    if (retention.keeps_all()) return call.kv;
    const uint32_t groups = retention.by_group() ? call.tables.groups() : 1;
    return static_cast<uint32_t>(div_ceil<uint64_t>(cells_of(call, call.kv), groups));
  }
  // Tokens of the call's next entry after `context` ones; 0: it waits for a step with more room.
  uint32_t entry_tokens(const CallState& call, uint32_t context, bool decode) const {
    const uint32_t pending = call.known() - context;
    const uint32_t limit = decode ? budget : prefill_budget();
    if (!retention.by_chunk() || decode) return std::min(pending, limit);
    // Chunks that are compressed end at the same places whatever else runs (METHODS 7.10).
    const uint32_t whole = std::min(pending, retention.chunk_tokens() - context % retention.chunk_tokens());
    return whole <= limit ? whole : 0;
  }
  HeldCells held_by(const Launch& launch) const;
  void cells_after(const CallState& call, uint32_t tokens, std::vector<uint32_t>* cells) const;
  bool grow_groups(CallState* call, uint32_t tokens);
  uint64_t pages_to_admit(const CallState& call, uint32_t cached, uint32_t tokens) const;
  uint32_t longest(const CallState& call) const;
  bool compresses(const CallState& call, uint32_t context) const;
  void compress(CallState* call, uint32_t entry, Launch* launch);
  void keep_cells(CallState* call, uint32_t tokens, std::span<const uint32_t> cells);
  uint32_t quiet_steps_left(const CallState& call) const;
  uint32_t grant_ahead_groups(uint32_t steps, Launch* launch);
  void apply_kept(const StepDone& event, const Launch& launch);
  void apply_holes(CallState* call, const Compression& compression, const CellsKept& kept);
  void drop_page(CallState* call, uint32_t position);
  void adopt_holes(CallState* call);

  // core_plan.cc
  bool plan_step();
  void plan_running(bool decodes, bool prefills);
  void plan_waiting();
  uint32_t prefill_budget() const;
  bool grow(CallState* call, uint32_t tokens);
  void note_taken(CallState* call, uint32_t pages);
  void note_untaken(CallState* call);
  uint32_t pages_available(const CallState& call) const;
  // On the gpu, to be had by evicting.
  uint32_t pages_loose() const {
    if (snapshots) return snapshots->pages_loose();
    return arena ? 0 : index.pages_evictable();
  }
  bool free_page_is_next() const;
  PageId take_page(uint32_t more);
  void give_page(PageId page) {
    if (dual) dual->release(page);
    gpu.release(page, index.tick());
  }
  // Pages outside all requests become available without any preemption: copies end, and other engines read
  // what was handed over to them.
  bool pages_return() const { return transfers_live > 0 || !handed_over.empty(); }
  void preempt_last();
  void add_entry(Slot slot, uint32_t tokens, size_t granted_before);
  void remove_entry(Slot slot);

  struct Planned {
    Slot slot;
    uint32_t tokens;
    // Four bytes each: every call of every step has one of these.
    uint32_t granted_begin, granted_end;  // in `granted`
    uint32_t adopted_begin, adopted_end;  // in `adopted`
    uint32_t bits_begin, bits_end;        // in `bits`
    uint32_t counts_begin;                // in `adopted_counts`
    SnapshotId snapshot;                  // whose pages these are
  };

  // core_launch.cc
  void launch_planned();
  void commit_entry(size_t index_planned, Launch* launch);
  void add_adoption(const Planned& entry, Launch* launch);
  uint32_t quiet_steps(const Launch& launch) const;
  uint32_t grant_ahead(uint32_t steps, Launch* launch);
  uint32_t padded(uint32_t tokens) const;

  // core_arena.cc
  struct PageDemand {
    uint32_t gpu = 0;
    uint32_t host = 0;
  };
  PageDemand arena_demand(const CallState& call, uint32_t tokens) const;
  PageDemand arena_reservation(const CallState& call) const;
  bool arena_has_room(const CallState& call, const PageDemand& demand) const;
  bool grow_arena(CallState* call, uint32_t tokens);
  Admitted admit_to_arena(Slot slot);
  void fetch_prefix(Slot slot, const Lease& prefix);
  void finish_fetch(const TransferState& transfer, bool arrived);
  void adopt_fetched(CallState* call);
  void publish_homes(const Launch& launch);
  PageId take_home(uint32_t more);
  void drop_before_arena(CallState* call);
  void shrink_to_arena(CallState* call);
  void let_go_of_host(CallState* call);
  bool grant_arena_page(uint32_t entry, uint32_t offset, Launch* launch);
  void give_back_arena_page(CallState* call, PageId page);
  uint32_t table_pages(const CallState& call) const {
    if (dual) return call.cells.pages();
    return arena ? call.lease.pages + static_cast<uint32_t>(call.host_pages.size()) : call.pages_held();
  }
  bool on_host(PageId page) const { return raw(page) >= config.pages_gpu; }
  bool tiered() const { return host != nullptr && !arena; }  // cached prefixes move to the host

  // core_formats.cc
  Admitted admit_to_pools(Slot slot);
  void age_prefix(const CallState& call, const Lease& prefix, uint32_t pages_2_wanted);
  bool grow_cells(CallState* call, uint32_t tokens);
  void extend_cells(CallState* call, uint32_t tokens);
  void shrink_cells(CallState* call, uint32_t tokens);
  void add_frames(CallState* call, uint32_t tokens);
  void make_room(const DualDemand& demand);
  uint32_t cells_available(const CallState& call, bool four) const;
  uint32_t grant_ahead_cells(uint32_t steps, Launch* launch);
  void check_reserves() const;
  static uint32_t frames_settled_of(const DualPool::Call& cells, uint32_t page_tokens) {
    return cells.waiting.empty() ? UINT32_MAX : cells.waiting.front() / page_tokens;
  }
  uint32_t frames_settled(const CallState& call) const {
    return frames_settled_of(call.cells, config.page_tokens);
  }
  static DualPool::Frames frames_of(const CallState& call) { return {call.pages, call.lease.pages}; }

  // core_handover.cc
  void hand_over(Slot slot);
  void begin_arrival(const CallReady& event, CallState* call);
  Admitted receive_first(Slot slot);
  void finish_receive(const TransferState& transfer, bool arrived);
  void drop_source(CallState* call);
  void adopt_arrived(CallState* call, size_t granted_before);
  uint64_t pages_handed_over() const;
  // core_snapshots.cc
  uint64_t tail_pages(uint32_t tokens) const;
  uint64_t tails_ahead(const CallState& call, uint32_t tokens) const;
  uint64_t pages_behind_snapshot(const CallState& call, uint32_t cached, uint32_t tokens) const;
  Admitted admit_from_snapshot(Slot slot);
  void stop_borrowing(CallState* call);
  void plan_snapshot(CallState* call, uint32_t entry, Launch* launch);
  bool take_snapshot(CallState* call, SnapshotId id);
  void bar_snapshots(CallState* call);
  void evict_snapshots(uint32_t pages);

  // core_demotion.cc
  bool demotes() const { return config.preemption == PreemptionKind::kDemote; }
  bool demote(Slot slot);
  void ask_for(TransferState* transfer, Tier source, Tier target);
  TransferState* unasked_demotion(Slot slot);
  void start_demotion(Slot slot);
  void cancel_demotion(Slot slot);
  void finish_demotion(TransferState* transfer, bool arrived);
  bool waits_for(const TransferState& transfer, CallState::Phase phase) const;
  uint32_t pages_for_next(const CallState& call) const;
  Admitted resume(Slot slot);
  void finish_resume(TransferState* transfer, bool arrived);
  void adopt_resumed(const CallState& call);
  void check_transfers(uint64_t* pages_gpu, uint64_t* pages_host, uint64_t* pages_disk) const;
  bool waits_for_pages(const CallState& call, uint32_t tokens) const;

  // core_admission.cc
  Admitted admit(Slot slot);
  void begin_retention(CallState* call);
  void let_in(Slot slot, uint32_t cached);
  void start(Slot slot, uint32_t cached, uint32_t tokens, uint64_t pages);
  Admitted recall_first(Slot slot, const Match& match);
  bool below_clean_target(uint32_t newly_taken) const;
  void start_copies_down();
  void start_cleaning();
  bool start_spilling();
  void finish_spill(const TransferState& transfer, bool arrived);
  void finish_transfer(TransferId id, bool arrived);
  TransferState& new_transfer(TransferKind kind);
  void undo_transfer(TransferState* transfer);
  TransferState& transfer_of(TransferId id);
  void submit_transfer(const TransferState& transfer, Tier source, Tier target);

  // The digest is a sum over records, each keyed by the step it belongs to: what is planned ahead can be
  // taken back, and folded runs add the same records as unfolded ones.
  enum Record : uint64_t {
    kEntry,
    kStep,
    kGrant,
    kAdopted,
    kPreempted,
    kEnded,
    kRejected,
    kTransfer,
    kTransferEnded,
    kCompressed,
    kKept,
    kShrunk,
    kSessionDropped,
    kHandedOver,
    kTaken,
    kSnapshot,
    kAged,
    kDemoted
  };
  static uint64_t draw_record(std::initializer_list<uint64_t> record);
  static uint64_t digest_of(std::span<const PageId> pages);
  void note(std::initializer_list<uint64_t> record) { digest += draw_record(record); }
  uint64_t grant_record(const Launch& launch, const PageGrant& grant) const {
    const uint64_t step = launch.first + grant.offset;
    const uint32_t call = raw(launch.members[grant.entry].call);
    if (grant.group == 0) return draw_record({kGrant, step, call, raw(grant.page)});
    return draw_record({kGrant, step, call, raw(grant.page), grant.group});
  }
  void note_grant(const Launch& launch, const PageGrant& grant) { digest += grant_record(launch, grant); }
  void note_launch(const Launch& launch, uint32_t tokens);

  const CoreConfig config;
  const PolicyAxes axes;
  const Retention retention;
  const RequestFit fit;
  const bool arena;                // placement arena
  const uint32_t exact_tail;       // newest tokens of a call that are not in its pages yet
  std::unique_ptr<DualPool> dual;  // formats by tag: then `gpu` and `index` hold frames
  PagePool gpu;
  std::unique_ptr<PagePool> host, disk;
  PrefixIndex index;                         // placement arena: of host pages, as if the host were its gpu
  std::unique_ptr<SnapshotCache> snapshots;  // layouts that move cells: instead of `index`
  SessionStore sessions;
  Instant now{};
  std::vector<Command>* out = nullptr;

  std::vector<CallState> calls;
  std::vector<Slot> unused;
  std::vector<Slot> slots;  // by CallId
  std::deque<Slot> waiting;
  std::vector<Slot> running;  // in order of admission
  uint32_t recalling = 0;
  uint32_t away = 0;          // transfers of calls that were sent away
  uint32_t pages_coming = 0;  // gpu pages that become free when they have ended
  uint32_t calls_live = 0;

  std::vector<Launch> launches;  // in flight, oldest first (a deque would allocate as it moves along)
  std::vector<Launch> spare;
  uint64_t launched = 0;  // single steps, ever
  uint64_t done = 0;
  // Steps before this may still use pages that are free by now, or findable before they are written: of
  // preempted calls, of prompts that were cut to an arena. No copy may touch them yet.
  uint64_t preempted_until = 0;

  std::deque<HeldPages> handed_over;
  std::vector<TransferState> transfers;
  uint64_t transfer_next = 0;
  uint32_t transfers_live = 0;
  uint32_t cleaning = 0;  // demotions under way
  uint32_t cleaning_pages = 0;
  bool cleaning_barred = false;  // one failed: none until a call comes or goes
  uint32_t spilling = 0;         // likewise, of copies to the disk
  uint32_t spilling_pages = 0;
  bool spilling_barred = false;

  std::vector<Planned> planned;  // of the step being planned
  struct Granted {
    PageId page;
    uint32_t group;
  };
  std::vector<Granted> granted;
  std::vector<PageId> adopted;           // of the step being planned
  std::vector<uint32_t> adopted_counts;  // likewise
  uint32_t budget = 0;
  bool preempted_now = false;
  bool evicted_now = false;     // the index lost pages: the head of the queue may match less now
  bool admission_open = false;  // the next step might admit without anything happening first
  size_t entries_last = 0;      // of the step before
  std::vector<std::pair<uint32_t, uint32_t>> crossings;  // first step that needs a page, entry
  std::vector<Slot> ended;
  std::vector<uint32_t> wanted;  // scratch: groups that lack a page
  std::vector<uint32_t> after;   // scratch: cells by group
  std::vector<PageId> spare_pages;
  uint64_t snapshots_evicted = 0;                     // pages, so far
  std::vector<BitRun> bits, entry_bits;               // of the step being planned, and scratch
  std::vector<PageId> newly_taken, frames, adopting;  // scratch
  std::vector<CellAgeing> ageings;                    // that the next launch tells
  std::vector<uint8_t> alone;                         // scratch
  std::vector<uint32_t> adopting_counts;              // scratch

  uint64_t reserved_total = 0;
  uint64_t reserved_host_total = 0;
  uint64_t reserved_2_total = 0;
  uint64_t cells_held = 0;     // of running calls: sum of cells_of()
  uint64_t pages_running = 0;  // of running calls: sum of table_pages()
  uint64_t digest = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_POLICY_CORE_STATE_H_
