// What the policy asks for. Commands carry no times and no durations: a world decides how and how
// fast, never what.
//
// Spans point into the Core's buffers and are valid until its next apply().

#ifndef KVTWIN_ENGINE_POLICY_COMMANDS_H_
#define KVTWIN_ENGINE_POLICY_COMMANDS_H_

#include <cstdint>
#include <span>
#include <variant>

#include "engine/base/units.h"
#include "engine/policy/events.h"

namespace kvtwin {

// Stands where there is no page.
constexpr PageId kNoPage{UINT32_MAX};

enum class Tier : uint8_t { kGpu, kHost, kDisk };

enum class EntryKind : uint8_t {
  kChunk,     // `tokens` known tokens are computed; the last chunk samples one token
  kDecode,    // one token in, one token out
  kProbe,     // rows that capture queries and keep nothing (Judge Q, KVzip)
  kMaintain,  // requantise, re-pack, copy on write
};

// One call's share of a step.
struct PlanEntry {
  CallId call{};
  EntryKind kind{};
  bool first = false;    // the call's first entry since it was admitted (or re-admitted): context was reused
  bool samples = false;  // the call's next output token leaves this step
  uint32_t tokens = 0;   // computed in this step
  uint32_t context = 0;  // tokens computed before this step: the position of the first new one
  uint32_t gone = 0;     // of these, those that a head cannot read any more: mean over heads, rounded down
  uint32_t narrow = 0;  // of the live ones, those in int2 pages; the other packed ones are in int4 (triaxial)
  // (triaxial) int4 pages that hold some of its live cells beside cells of others, or gaps: no kernel reads
  // those as they lie, beside the page that the call fills itself.
  uint32_t shared_in_part = 0;
  bool grows = true;  // further single steps of a stretch read one more cell each; else: as many as this
  RequestKey key{};   // names `call` for outcomes and draws

  uint32_t live() const { return context - gone; }  // cells that a head reads besides the new ones
};

// `page` becomes the next page of head group `group` of entries[entry]'s call, before single step
// `step + offset` runs.
struct PageGrant {
  uint32_t offset = 0;
  uint32_t entry = 0;
  PageId page{};
  uint32_t group = 0;
};

// The call starts with these pages already filled (a cached prefix), in order of position. kNoPage stands
// where nothing is left of a page. Formats by tag: the pages in which positions [0, page_tokens) have cells,
// and kNoPage, then those of the next page_tokens positions, and so on; such a page holds cells of others
// too. Placement arena: the host pages where the prefix has its home, then as many gpu pages, the call's own,
// to which their content has been copied (kRecall).
//
// Layouts that move cells: `pages` are a snapshot's, group by group, ceil(cells[g] / page_tokens) of each;
// the cells of a head are at the positions where they were when it was taken. The first shared[g] pages of a
// group are read where they are. The others stay the snapshot's and are copied, before anything is written,
// to the first pages that this step grants to the group. A call whose own snapshot was taken goes on in the
// same way.
struct Adoption {
  CallId call{};
  std::span<const PageId> pages;
  uint32_t snapshot = 0;
  std::span<const uint32_t> cells{}, shared{};  // by head group; empty: no snapshot
};

// What compressions have left of entries[entry]'s call may be adopted from now on as number `snapshot`. A
// number is given again once nobody can ask for what it meant before.
struct Snapshot {
  uint32_t entry = 0;
  uint32_t snapshot = 0;
};

// After the rows of entries[entry] are computed (or `before`), score cells with the engine's scorer and keep
// the best: of the live cells at positions [begin, end), the forced ones and the keep[g] best others of each
// KV head of group g. Cells before `begin` stay as they are.
//
// Layouts that move cells: afterwards each group's cells fill its table from the start, and pages of the
// table that they do not reach are nobody's. Answered by CellsKept (events.h).
struct Compression {
  // Positions [begin, end) that are kept whatever their score (sinks, window, template, query span).
  struct Forced {
    uint32_t begin = 0;
    uint32_t end = 0;
  };
  uint32_t entry = 0;
  uint32_t begin = 0;
  uint32_t end = 0;
  // The rows of this entry were never in pages (staging): only what is kept is written to them.
  bool staged = false;
  // Before the rows of the entry are computed: of what the call began with, `end` is its context.
  bool before = false;
  std::span<const Forced> forced;  // ascending, disjoint, within [begin, end)
  std::span<const uint32_t> keep;  // by head group; empty: the world decides (a dynamic budget)
};

// The next `count` cells of entries[entry] get 2 or 4 bits (dual_pool.h says how they fill the entry's
// grants, in their order). None: the prompt ends here, and what waits for its group goes to int4.
struct CellRun {
  uint32_t entry = 0;
  uint32_t count = 0;
  bool four = false;
};

// Ageing (TriAxialKV, METHODS 4.6): the int4 cells of positions [position, position + count) in `source` are
// packed again, as the next cells of the int2 page `target`. Runs of one target follow one another and fill
// it. Whoever adopts those positions from now on finds them there; no running call has them.
struct CellAgeing {
  PageId source{};
  PageId target{};
  uint32_t position = 0;
  uint32_t count = 0;
};

// What the calls of a step hold once its first single step has ended, where layouts drop cells; for metrics.
// A cell is one token in all heads of one group.
struct HeldCells {
  // If nothing had been dropped; 0: nothing ever is. Without `slots` too, cells lie by position, and the rest
  // is left out.
  uint64_t full = 0;
  uint64_t cells = 0;         // that can be read
  uint64_t slots = 0;         // in pages
  uint32_t growing = 0;       // cells that each further single step of a stretch adds
  uint32_t growing_full = 0;  // to `full`
};

// Run single steps [step, step + repeat). In each step after the first, every entry is a decode of one
// token with one more token of context than in the step before; repeat > 1 only if all entries are.
// `repeat` is an upper bound: see Backend::interrupt. Answered by StepDone, in one piece or several.
struct LaunchStep {
  EngineId engine{};
  StepId step{};
  uint32_t repeat = 1;
  uint32_t tokens = 0;         // sum over entries
  uint32_t tokens_padded = 0;  // what dense kernels run on (CUDA-graph capture sizes)
  std::span<const PlanEntry> entries;
  std::span<const PageGrant> grants;            // ascending by (offset, entry, group)
  std::span<const Adoption> adoptions;          // of entries with first == true, or behind a snapshot
  std::span<const Compression> compressions{};  // ascending by entry; only with repeat == 1
  HeldCells held{};
  // Of chunks, by entry, where formats go by tag; decoded cells get 4 bits.
  std::span<const CellRun> formats{};
  std::span<const CellAgeing> ageings{};  // in order, before anything else of the first single step
  std::span<const Snapshot> snapshots{};  // ascending by entry; each of a compressed chunk
};

enum class TransferKind : uint8_t {
  kRecall,  // a cached prefix, from the host or the disk
  kDemote,
  kReceive,  // gpu pages of another engine, `from`: the prompt of `call`, which was computed there
  kPreempt,  // all pages of a call that was sent away, to the host; the last one may be filled in part
  kResume,   // those of them that the call needs again
  kSpill,    // cached prefixes, from the host to the disk
};

// Copy pages between tiers, in this order. Both sides are reserved until TransferDone/TransferFailed.
struct StartTransfer {
  EngineId engine{};
  TransferId transfer{};
  TransferKind kind{};
  Tier source_tier{};
  Tier target_tier{};
  std::span<const PageId> source;
  std::span<const PageId> target;
  EngineId from{};  // kReceive: whose pages `source` are
  CallId call{};    // kReceive
};

struct SetTimer {
  EngineId engine{};  // kClient: asked for by the Client
  TimerId timer{};
  Instant at{};
};

// To the Client: `tokens` output tokens exist now. Sent for the first token and for each trigger.
struct TokensEmitted {
  EngineId engine{};
  CallId call{};
  uint32_t tokens = 0;
};

// To the Client: the call has ended; `tokens` output tokens exist.
struct FinishCall {
  EngineId engine{};
  CallId call{};
  uint32_t tokens = 0;
  bool cancelled = false;
};

// To the Client: the call can never run here. Final.
struct RejectCall {
  enum class Reason : uint8_t { kLongerThanWindow, kLargerThanPool, kPromptEmpty };
  EngineId engine{};
  CallId call{};
  Reason reason{};
  uint64_t needed = 0;  // tokens or pages, by reason
  uint64_t limit = 0;
};

// To the world: what it keeps for this call (masks, accumulators, page table) is no longer needed.
struct DropCallState {
  enum class Reason : uint8_t { kFinished, kPreempted, kCancelled };
  EngineId engine{};
  CallId call{};
  Reason reason{};
};

struct DropSessionState {
  EngineId engine{};
  SessionId session{};
};

// Prefill and decode on engines of their own. To the driver: the prompt of `call` is computed and its first
// token exists; its KV lies in `pages`, by position, until PagesTaken (events.h). The driver tells a decoding
// engine (CallReady with `from`), which fetches what it lacks by a transfer (kReceive).
struct HandOver {
  EngineId engine{};
  CallId call{};
  std::span<const PageId> pages;
};

// To the driver, from the decoding engine: pages of `call` on `from` are not needed any longer.
struct SourceRead {
  EngineId engine{};
  CallId call{};
  EngineId from{};
};

using Command = std::variant<LaunchStep, StartTransfer, SetTimer, TokensEmitted, FinishCall, RejectCall,
                             DropCallState, DropSessionState, HandOver, SourceRead>;

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_POLICY_COMMANDS_H_
