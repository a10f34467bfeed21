// Private state of Core. Included by core*.cc only.
//
// The life of a request: waiting -> (loading -> waiting)* -> running -> ended; from running back to waiting
// when it is preempted (through kSwappedOut if its pages are copied to the host). Counts run ahead of the
// backend: `kv` and `sampled` will be true when every launched step has ended; `emitted` is true now.

#ifndef KVTWIN_ENGINE_SCHEDULER_CORE_STATE_H_
#define KVTWIN_ENGINE_SCHEDULER_CORE_STATE_H_

#include <algorithm>
#include <deque>
#include <memory>
#include <vector>

#include "engine/kv/decision_digest.h"
#include "engine/kv/group_tables.h"
#include "engine/kv/mixed_precision_pool.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/prefix_checkpoint_cache.h"
#include "engine/kv/prefix_index.h"
#include "engine/kv/session_store.h"
#include "engine/kv/transfer_manager.h"
#include "engine/methods/axes.h"
#include "engine/methods/retention.h"
#include "engine/scheduler/core.h"
#include "engine/scheduler/core_work.h"
#include "engine/scheduler/request_fit.h"

namespace kvtwin {

struct RequestState {
  enum class Phase : uint8_t { kUnused, kWaiting, kLoading, kRunning, kSwappedOut };

  RequestId id{};
  RequestKey key{};
  uint64_t name_space = 0;
  Phase phase = Phase::kUnused;
  bool ending = false;  // cancelled, or sampled end-of-sequence: no further step
  bool cancelled = false;
  bool load_barred = false;    // a load failed: compute instead
  bool insert_barred = false;  // the index has the same tokens from another request
  bool admitted_now = false;   // its next entry is the first since admission
  bool swapped_in = false;     // its next entry is the first since it was swapped in
  bool in_resident = false;    // its prompt is complete: `pages` are the resident pages (core_resident.cc)
  bool hands_over = false;     // hand over once its first token exists (core_handover.cc)
  bool arrives = false;        // its KV is on another engine and must be fetched
  bool arrived_now = false;    // its KV was fetched, and no entry of it has been planned since
  uint32_t prompt = 0;
  uint32_t output = 0;
  uint32_t kv = 0;
  uint32_t sampled = 0;
  uint32_t emitted = 0;
  uint32_t launches = 0;       // launches in flight that include it
  uint32_t pages_public = 0;   // leading pages that another request could ever match
  uint32_t pages_known = 0;    // leading pages with an identity
  uint32_t reserved = 0;       // reserved pages not taken yet
  uint32_t reserved_host = 0;  // reserved host pages not taken yet
  uint32_t beyond = 0;         // pages taken after the reservation was used up
  size_t next_trigger = 0;
  Pin pin;                    // cached or inserted pages, from the start
  std::vector<PageId> pages;  // its own, after the pin, by position; kNoPage: a dropped slot
  // Placement resident: host pages of its context after the pin, which then pins host pages too
  // (core_resident.cc). A swapped-out request: its pages (core_swap.cc).
  std::vector<PageId> host_pages;
  EngineId from{};  // arrives: owner of the `source` pages
  std::vector<PageId> source;
  std::vector<UnitRun> identity;
  std::vector<uint32_t> triggers;

  // Retention: KV entries that have been dropped, or will be when every launched step has ended. Last in the
  // struct, because a plain paged engine does not use it.
  GroupTables tables;    // its own, if pages belong to head groups; `pages` is then empty
  bool due = false;      // compress once its prompt is computed
  uint32_t fill = 0;     // tokens known at admission: its prompt, and what a preemption discarded
  uint32_t ranked = 0;   // tokens at the last compression
  uint32_t answers = 0;  // compressions whose counts or dropped slots the backend has not reported yet
  uint32_t attempt = 0;  // admissions
  // Tokens without retained KV entries, if KV entries keep their slots (or in resident pages).
  uint32_t dropped_tokens = 0;
  uint32_t dropped_soon = 0;   // the same after the backend's report, where the number is known before
  uint32_t dropped_slots = 0;  // positions, in pages, that no longer have a page
  std::vector<uint16_t> page_dropped;  // dropped tokens by page position; may be shorter

  // Compressed prefixes (core_prefix_checkpoints.cc).
  uint32_t chunks_public = 0;              // leading chunks that another request could ever match
  Pin prefix_checkpoints;                  // of chunks: those it reused and those it added
  PrefixCheckpointId prefix_checkpoint{};  // the last of them

  // Mixed precision (core_formats.cc): `pages` and the pin hold logical pages; the pages are here.
  MixedPrecisionPool::Request kv_entries;
  uint32_t low_bit = 0;  // its int2 KV entries before the entry that was planned last
  uint32_t settled =
      0;  // leading logical pages whose KV entries are all in pages once its launches have ended
  uint32_t reserved_2 = 0;    // reserved int2 pages; `reserved` are int4 pages
  bool reuse_barred = false;  // alone, it did not fit together with the pages of its prefix

  // Page positions that are covered: pinned pages and those after them.
  uint32_t pages_span() const { return pin.pages + static_cast<uint32_t>(pages.size()); }
  uint32_t pages_held() const { return pages_span() - dropped_slots + tables.pages(); }
  uint32_t known() const { return prompt + sampled; }
  bool decodes_next() const { return kv >= prompt && kv + 1 == known(); }
  // All steps that it needs have been launched.
  bool launched_out() const { return ending || (sampled == output && kv >= prompt); }
};

struct Core::State {
  using enum DecisionDigest::Record;
  enum class Admitted : uint8_t { kYes, kNotHere, kBlocked };

  State(const CoreConfig& config, PolicyAxes policies);

  // core.cc
  void apply(Instant now, const Event& event, std::vector<Command>* commands);
  void on(const RequestReady& event);
  void on(const RequestCancelled& event);
  void on(const SessionHint& event);  // core_hints.cc
  void on(const StepDone& event);     // core_steps.cc
  void on(const TransferDone& event);
  void on(const TransferFailed& event);
  void on(const Timer& event);
  void on(const PagesTaken& event);  // core_handover.cc
  // core_hints.cc
  PrefixIndex& prefixes();               // the index that holds this engine's prefixes
  void session_here(SessionId session);  // a request of the session arrived
  void session_left(SessionId session);  // and ended
  bool reject(const RequestReady& event);
  void end_request(RequestIndex request_index);
  void forget(RequestIndex request_index);
  void drop_surplus_sessions();
  void detach(RequestState* request, bool preempted);
  void publish_pages(RequestState* request, uint32_t pages_limit);
  // The request's own pages by position, after the pin: those that can be inserted into the index.
  std::vector<PageId>& own_pages(RequestState* request) const {
    return resident ? request->host_pages : request->pages;
  }
  // Leading pages of a request with `tokens` tokens of KV whose KV entries have their final format. Other
  // requests must not reuse a page whose newest KV entries are still stored exactly outside it.
  uint32_t pages_settled(const RequestState& request, uint32_t tokens) const {
    const uint32_t pages = (tokens - std::min(tokens, exact_tail)) / config.page_tokens;
    // Resident pages: KV computed by a decode depends on where the prompt ended, because it read some pages
    // only.
    if (resident) return std::min(pages, request.fill / config.page_tokens);
    return mixed ? std::min(pages, logical_pages_settled(request)) : pages;
  }
  RequestIndex take_request_index();
  RequestIndex request_index_of(RequestId request) const;
  void check_invariants() const;
  void check_running(const RequestState& request) const;

  // core_steps.cc
  void emit(const Launch::Member& member, uint32_t steps);
  void end_early(RequestId request);
  void close_launch();
  void cut_coalesced();
  void shorten_last(uint64_t end);
  void roll_back_allocations(Launch* launch, uint32_t offset);

  // core_retention.cc
  uint64_t kv_entries_of(const RequestState& request, uint32_t tokens) const;
  void add_tokens(RequestState* request, uint32_t tokens) {
    const uint32_t before = request->kv;
    request->kv += tokens;
    entries_held += retention.keeps_all()
                        ? tokens
                        : kv_entries_of(*request, request->kv) - kv_entries_of(*request, before);
  }
  // Mean over heads, rounded up.
  uint32_t live_per_head(const RequestState& request) const {
    if (retention.keeps_all()) return request.kv;
    const uint32_t groups = retention.by_group() ? request.tables.groups() : 1;
    return static_cast<uint32_t>(div_ceil<uint64_t>(kv_entries_of(request, request.kv), groups));
  }
  // Tokens of the request's next entry after `context` tokens; 0: it waits for a step with more budget.
  uint32_t entry_tokens(const RequestState& request, uint32_t context, bool decode) const {
    const uint32_t pending = request.known() - context;
    const uint32_t limit = decode ? budget : prefill_budget();
    if (!retention.by_chunk() || decode) return std::min(pending, limit);
    // Chunks that are compressed end at the same places whatever else runs
    // (docs/design/methods/composition.md#serving-facts).
    const uint32_t whole = std::min(pending, retention.chunk_tokens() - context % retention.chunk_tokens());
    return whole <= limit ? whole : 0;
  }
  HeldEntries held_by(const Launch& launch) const;
  void entries_after(const RequestState& request, uint32_t tokens, std::vector<uint32_t>* kv_entries) const;
  bool grow_groups(RequestState* request, uint32_t tokens);
  uint64_t pages_to_admit(const RequestState& request, uint32_t cached, uint32_t tokens) const;
  uint32_t longest(const RequestState& request) const;
  bool compresses(const RequestState& request, uint32_t context) const;
  void compress(RequestState* request, uint32_t entry, Launch* launch);
  void retain_entries(RequestState* request, uint32_t tokens, std::span<const uint32_t> kv_entries);
  uint32_t coalescible_steps_left(const RequestState& request) const;
  uint32_t allocate_ahead_groups(uint32_t steps, Launch* launch);
  void apply_retained(const StepDone& event, const Launch& launch);
  void apply_dropped_slots(RequestState* request, const Compression& compression,
                           const CompressionOutcome& retained);
  void drop_page(RequestState* request, uint32_t position);
  void reuse_dropped_slots(RequestState* request);

  // core_plan.cc
  bool plan_step();
  void plan_running(bool decodes, bool prefills);
  void plan_waiting();
  uint32_t prefill_budget() const;
  bool grow(RequestState* request, uint32_t tokens);
  void note_taken(RequestState* request, uint32_t pages);
  void note_untaken(RequestState* request);
  uint32_t pages_available(const RequestState& request) const;
  // Evictable pages on the GPU.
  uint32_t pages_evictable() const {
    if (prefix_checkpoints) return prefix_checkpoints->pages_evictable();
    return resident ? 0 : index.pages_evictable();
  }
  bool free_page_is_next() const;
  PageId take_page(uint32_t more);
  void take_pages(uint32_t count, std::vector<PageId>* pages);
  void free_page(PageId page) { tiers.free_gpu(page); }
  // Whether pages outside all requests become available without preemption: copies end, and other engines
  // read handed-over pages.
  bool pages_return() const { return transfers.live() > 0 || !handed_over.empty(); }
  void preempt_last();
  void add_entry(RequestIndex request_index, uint32_t tokens, size_t allocated_before);
  void remove_entry(RequestIndex request_index);

  struct Planned {
    RequestIndex request_index;
    uint32_t tokens;
    // Four bytes each, because every request of every step has one of these.
    uint32_t allocated_begin, allocated_end;  // in `allocated`
    uint32_t reused_begin, reused_end;        // in `reused`
    uint32_t bits_begin, bits_end;            // in `bits`
    uint32_t counts_begin;                    // in `reused_counts`
    PrefixCheckpointId prefix_checkpoint;     // the checkpoint that the reused pages belong to
  };

  // core_launch.cc
  void launch_planned();
  void commit_entry(size_t index_planned, Launch* launch);
  void add_prefix_hit(const Planned& entry, Launch* launch);
  uint32_t coalesced_steps(const Launch& launch) const;
  uint32_t allocate_ahead(uint32_t steps, Launch* launch);
  uint32_t padded(uint32_t tokens) const;

  // core_resident.cc
  struct PageDemand {
    uint32_t gpu = 0;
    uint32_t host = 0;
  };
  PageDemand resident_demand(const RequestState& request, uint32_t tokens) const;
  PageDemand resident_reservation(const RequestState& request) const;
  bool resident_has_room(const RequestState& request, const PageDemand& demand) const;
  bool grow_resident(RequestState* request, uint32_t tokens);
  Admitted admit_to_resident(RequestIndex request_index);
  void fetch_prefix(RequestIndex request_index, const Pin& prefix);
  void attach_fetched(RequestState* request);
  void reuse_fetched(RequestState* request);
  void publish_host_copies(const Launch& launch);
  PageId take_host_copy(uint32_t more);
  void drop_before_resident(RequestState* request);
  void shrink_to_resident(RequestState* request);
  void detach_from_host(RequestState* request);
  bool allocate_resident_page(uint32_t entry, uint32_t offset, Launch* launch);
  void roll_back_resident_page(RequestState* request, PageId page);
  uint32_t table_pages(const RequestState& request) const {
    if (mixed) return request.kv_entries.pages();
    return resident ? request.pin.pages + static_cast<uint32_t>(request.host_pages.size())
                    : request.pages_held();
  }
  bool on_host(PageId page) const { return raw(page) >= config.pages_gpu; }
  bool tiered() const { return host != nullptr && !resident; }  // cached prefixes move to the host

  // core_formats.cc
  Admitted admit_to_pools(RequestIndex request_index);
  void age_prefix(const RequestState& request, const Pin& prefix, uint32_t pages_2_wanted);
  bool grow_entries(RequestState* request, uint32_t tokens);
  void extend_entries(RequestState* request, uint32_t tokens);
  void shrink_entries(RequestState* request, uint32_t tokens);
  void add_logical_pages(RequestState* request, uint32_t tokens);
  void make_room(const MixedPrecisionDemand& demand);
  uint32_t entries_available(const RequestState& request, bool four) const;
  uint32_t allocate_ahead_entries(uint32_t steps, Launch* launch);
  void check_reserves() const;
  static uint32_t logical_pages_settled_of(const MixedPrecisionPool::Request& kv_entries,
                                           uint32_t page_tokens) {
    return kv_entries.waiting.empty() ? UINT32_MAX : kv_entries.waiting.front() / page_tokens;
  }
  uint32_t logical_pages_settled(const RequestState& request) const {
    return logical_pages_settled_of(request.kv_entries, config.page_tokens);
  }
  static MixedPrecisionPool::LogicalPages logical_pages_of(const RequestState& request) {
    return {request.pages, request.pin.pages};
  }

  // core_handover.cc
  void hand_over(RequestIndex request_index);
  void begin_arrival(const RequestReady& event, RequestState* request);
  Admitted receive_first(RequestIndex request_index);
  void attach_received(RequestState* request);
  void drop_source(RequestState* request);
  void reuse_arrived(RequestState* request, size_t allocated_before);
  uint64_t pages_handed_over() const;
  // core_prefix_checkpoints.cc
  uint64_t tail_pages(uint32_t tokens) const;
  uint64_t tails_ahead(const RequestState& request, uint32_t tokens) const;
  uint64_t pages_behind_prefix_checkpoint(const RequestState& request, uint32_t cached,
                                          uint32_t tokens) const;
  Admitted admit_from_prefix_checkpoint(RequestIndex request_index);
  void stop_borrowing(RequestState* request);
  void plan_prefix_checkpoint(RequestState* request, uint32_t entry, Launch* launch);
  bool take_prefix_checkpoint(RequestState* request, PrefixCheckpointId id);
  void bar_prefix_checkpoints(RequestState* request);
  void evict_prefix_checkpoints(uint32_t pages);

  // core_swap.cc
  bool swaps() const { return config.preemption == PreemptionKind::kSwap; }
  bool swap_out(RequestIndex request_index);
  uint32_t pages_for_next(const RequestState& request) const;
  Admitted swap_in(RequestIndex request_index);
  void attach_swapped_in(RequestState* request);
  void reuse_swapped_in(const RequestState& request);
  bool waits_for_pages(const RequestState& request, uint32_t tokens) const;

  // core_admission.cc
  Admitted admit(RequestIndex request_index);
  void begin_retention(RequestState* request);
  void let_in(RequestIndex request_index, uint32_t cached);
  void start(RequestIndex request_index, uint32_t cached, uint32_t tokens, uint64_t pages);
  Admitted recall_first(RequestIndex request_index, const Match& match);

  // core_transfers.cc
  void start_copies_down();
  void begin_loading(RequestIndex request_index, Transfer* transfer);
  void finish_transfer(TransferId id, bool arrived);
  void deliver(const Transfer& transfer, RequestIndex request_index, bool arrived);
  void return_to_queue(RequestIndex request_index);
  void attach(RequestIndex request_index, const Transfer& transfer);
  void drop_reservation(RequestState* request);

  void note_allocation(const Launch& launch, const PageAllocation& allocation, bool taken) {
    const uint64_t step = launch.first + allocation.offset;
    const uint64_t request = raw(launch.members[allocation.entry].request);
    const uint64_t page = request << 32 | raw(allocation.page);
    taken ? digest.add(kAllocation, step, page, allocation.group)
          : digest.subtract(kAllocation, step, page, allocation.group);
  }
  void note_launch(const Launch& launch, uint32_t tokens);
  void note_compression(const Launch& launch, const Compression& compression);

  const CoreConfig config;
  const PolicyAxes axes;
  const Retention retention;
  const RequestFit fit;
  const bool resident;                        // placement resident
  const uint32_t exact_tail;                  // newest tokens of a request that are not yet in its pages
  std::unique_ptr<MixedPrecisionPool> mixed;  // mixed precision: `gpu` and `index` then hold logical pages
  PagePool gpu;
  std::unique_ptr<PagePool> host, disk;
  PrefixIndex index;  // placement resident: holds host pages in the role of GPU pages
  // Layouts that move KV entries: used instead of `index`.
  std::unique_ptr<PrefixCheckpointCache> prefix_checkpoints;
  SessionStore sessions;
  DecisionDigest digest;
  const PageTiers tiers;
  TransferManager transfers;
  Instant now{};
  std::vector<Command>* out = nullptr;

  std::vector<RequestState> requests;
  std::vector<RequestIndex> unused;
  std::vector<RequestIndex> slots;  // by RequestId
  std::deque<RequestIndex> waiting;
  std::vector<RequestIndex> running;  // in order of admission
  uint32_t requests_live = 0;

  std::vector<Launch> launches;  // in flight, oldest first (a deque would allocate as it advances)
  std::vector<Launch> spare;
  uint64_t launched = 0;  // single steps, ever
  uint64_t done = 0;
  // Steps before this one may still use pages that are free or findable by now: of preempted requests, and of
  // prompts that were reduced to resident pages. No copy may use these pages until then.
  uint64_t preempted_until = 0;

  std::deque<HeldPages> handed_over;

  std::vector<Planned> planned;  // of the step being planned
  struct Allocated {
    PageId page;
    uint32_t group;
  };
  std::vector<Allocated> allocated;
  std::vector<PageId> reused;           // of the step being planned
  std::vector<uint32_t> reused_counts;  // of the step being planned
  uint32_t budget = 0;
  bool preempted_now = false;
  bool evicted_now = false;     // the index lost pages: the head of the queue may now match less
  bool admission_open = false;  // the next step might admit a request without a further event
  uint64_t batch_last = 0;      // fingerprint of the entries of the step before
  std::vector<std::pair<uint32_t, uint32_t>> crossings;  // first step that needs a page, entry
  std::vector<RequestIndex> ended;
  std::vector<uint32_t> wanted;  // scratch: groups that need a page
  std::vector<uint32_t> after;   // scratch: KV entries by group
  std::vector<PageId> spare_pages;
  uint64_t prefix_checkpoints_evicted = 0;                  // their pages, so far
  std::vector<BitRun> bits, entry_bits;                     // of the step being planned; scratch
  std::vector<PageId> newly_taken, logical_pages, reusing;  // scratch
  std::vector<Requantisation> requantisations;              // to be sent with the next launch
  std::vector<uint8_t> alone;                               // scratch
  std::vector<uint32_t> reusing_counts;                     // scratch

  uint64_t reserved_total = 0;
  uint64_t reserved_host_total = 0;
  uint64_t reserved_2_total = 0;
  uint64_t entries_held = 0;   // of running requests: sum of kv_entries_of()
  uint64_t pages_running = 0;  // of running requests: sum of table_pages()
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_SCHEDULER_CORE_STATE_H_
