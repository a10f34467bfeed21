// What the policy asks for. Commands carry no times and no durations: a backend decides how and how
// fast, never what.
//
// Spans point into the Core's buffers and are valid until its next apply().

#ifndef KVTWIN_ENGINE_BASE_COMMANDS_H_
#define KVTWIN_ENGINE_BASE_COMMANDS_H_

#include <cstdint>
#include <span>
#include <variant>

#include "engine/base/events.h"
#include "engine/base/units.h"

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

// One request's share of a step.
struct PlanEntry {
  RequestId request{};
  EntryKind kind{};
  bool first = false;  // the request's first entry since it was admitted (or re-admitted): context was reused
  bool samples = false;  // the request's next output token leaves this step
  uint32_t tokens = 0;   // computed in this step
  uint32_t context = 0;  // tokens computed before this step: the position of the first new one
  uint32_t dropped = 0;  // of these, those that a head cannot read any more: mean over heads, rounded down
  uint32_t low_bit =
      0;  // of the live ones, those in int2 pages; the other packed ones are in int4 (triaxial)
  // (triaxial) int4 pages that hold some of its live KV entries beside KV entries of others, or gaps: no
  // kernel reads those as they lie, beside the page that the request fills itself.
  uint32_t shared_in_part = 0;
  bool grows = true;  // further single steps of a run of coalesced steps read one more KV entry each; else:
                      // as many as this
  RequestKey key{};   // names `request` for outcomes and draws

  uint32_t live() const { return context - dropped; }  // KV entries that a head reads besides the new ones
};

// `page` becomes the next page of head group `group` of entries[entry]'s request, before single step
// `step + offset` runs.
struct PageAllocation {
  uint32_t offset = 0;
  uint32_t entry = 0;
  PageId page{};
  uint32_t group = 0;
};

// The request starts with these pages already filled (a cached prefix), in order of position. kNoPage stands
// where nothing is left of a page. Formats by tag: the pages in which positions [0, page_tokens) have KV
// entries, and kNoPage, then those of the next page_tokens positions, and so on; such a page holds KV entries
// of others too. Placement resident: the host pages where the prefix has its home, then as many gpu pages,
// the request's own, to which their content has been copied (kLoad).
//
// Layouts that move KV entries: `pages` are a prefix checkpoint's, group by group, ceil(kv_entries[g] /
// page_tokens) of each; the KV entries of a head are at the positions where they were when it was taken. The
// first shared[g] pages of a group are read where they are. The others stay the prefix checkpoint's and are
// copied, before anything is written, to the first pages that this step grants to the group. A request whose
// own prefix checkpoint was taken goes on in the same way.
struct PrefixHit {
  RequestId request{};
  std::span<const PageId> pages;
  uint32_t prefix_checkpoint = 0;
  std::span<const uint32_t> kv_entries{}, shared{};  // by head group; empty: no prefix checkpoint
};

// What compressions have left of entries[entry]'s request may be reused from now on as number
// `prefix_checkpoint`. A number is given again once nobody can ask for what it meant before.
struct PrefixCheckpoint {
  uint32_t entry = 0;
  uint32_t prefix_checkpoint = 0;
};

// After the rows of entries[entry] are computed (or `before`), score KV entries with the engine's scorer and
// keep the best: of the live KV entries at positions [begin, end), the forced ones and the keep[g] best
// others of each KV head of group g. KV entries before `begin` stay as they are.
//
// Layouts that move KV entries: afterwards each group's KV entries fill its table from the start, and pages
// of the table that they do not reach are nobody's. Answered by CompressionOutcome (events.h).
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
  // Before the rows of the entry are computed: of what the request began with, `end` is its context.
  bool before = false;
  std::span<const Forced> forced;  // ascending, disjoint, within [begin, end)
  std::span<const uint32_t> keep;  // by head group; empty: the backend decides (a dynamic budget)
};

// The next `count` KV entries of entries[entry] get 2 or 4 bits (mixed_precision_pool.h says how they fill
// the entry's allocations, in their order). None: the prompt ends here, and what waits for its group goes to
// int4.
struct FormatRun {
  uint32_t entry = 0;
  uint32_t count = 0;
  bool four = false;
};

// Ageing (TriAxialKV, docs/design/methods/triaxialkv.md#serving): the int4 KV entries of positions [position,
// position + count) in `source` are packed again, as the next KV entries of the int2 page `target`. Runs of
// one target follow one another and fill it. Whoever reuses those positions from now on finds them there; no
// running request has them.
struct Requantisation {
  PageId source{};
  PageId target{};
  uint32_t position = 0;
  uint32_t count = 0;
};

// What the requests of a step hold once its first single step has ended, where layouts drop KV entries; for
// metrics. A KV entry is one token in all heads of one group.
struct HeldEntries {
  // If nothing had been dropped; 0: nothing ever is. Without `slots` too, KV entries lie by position, and the
  // rest is left out.
  uint64_t full = 0;
  uint64_t kv_entries = 0;    // that can be read
  uint64_t slots = 0;         // in pages
  uint32_t growing = 0;       // KV entries that each further single step of a run of coalesced steps adds
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
  std::span<const PageAllocation> allocations;  // ascending by (offset, entry, group)
  std::span<const PrefixHit> prefix_hits;  // of entries with first == true, or behind a prefix checkpoint
  std::span<const Compression> compressions{};  // ascending by entry; only with repeat == 1
  HeldEntries held{};
  // Of chunks, by entry, where formats go by tag; decoded KV entries get 4 bits.
  std::span<const FormatRun> formats{};
  std::span<const Requantisation>
      requantisations{};  // in order, before anything else of the first single step
  std::span<const PrefixCheckpoint> prefix_checkpoints{};  // ascending by entry; each of a compressed chunk
};

enum class TransferKind : uint8_t {
  kLoad,  // a cached prefix, from the host or the disk
  kOffload,
  kReceive,  // gpu pages of another engine, `from`: the prompt of `request`, which was computed there
  kSwapOut,  // all pages of a request that was sent away, to the host; the last one may be filled in part
  kSwapIn,   // those of them that the request needs again
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
  EngineId from{};      // kReceive: whose pages `source` are
  RequestId request{};  // kReceive
};

struct SetTimer {
  EngineId engine{};  // kClient: asked for by the Client
  TimerId timer{};
  Instant at{};
};

// To the Client: `tokens` output tokens exist now. Sent for the first token and for each trigger.
struct TokensEmitted {
  EngineId engine{};
  RequestId request{};
  uint32_t tokens = 0;
};

// To the Client: the request has ended; `tokens` output tokens exist.
struct FinishRequest {
  EngineId engine{};
  RequestId request{};
  uint32_t tokens = 0;
  bool cancelled = false;
};

// To the Client: the request can never run here. Final.
struct RejectRequest {
  enum class Reason : uint8_t { kLongerThanWindow, kLargerThanPool, kPromptEmpty };
  EngineId engine{};
  RequestId request{};
  Reason reason{};
  uint64_t needed = 0;  // tokens or pages, by reason
  uint64_t limit = 0;
};

// To the backend: what it keeps for this request (masks, accumulators, page table) is no longer needed.
struct DropRequestState {
  enum class Reason : uint8_t { kFinished, kPreempted, kCancelled };
  EngineId engine{};
  RequestId request{};
  Reason reason{};
};

struct DropSessionState {
  EngineId engine{};
  SessionId session{};
};

// Prefill and decode on engines of their own. To the driver: the prompt of `request` is computed and its
// first token exists; its KV lies in `pages`, by position, until PagesTaken (events.h). The driver tells a
// decoding engine (RequestReady with `from`), which fetches what it lacks by a transfer (kReceive).
struct HandOver {
  EngineId engine{};
  RequestId request{};
  std::span<const PageId> pages;
};

// To the driver, from the decoding engine: pages of `request` on `from` are not needed any longer.
struct SourceRead {
  EngineId engine{};
  RequestId request{};
  EngineId from{};
};

using Command = std::variant<LaunchStep, StartTransfer, SetTimer, TokensEmitted, FinishRequest, RejectRequest,
                             DropRequestState, DropSessionState, HandOver, SourceRead>;

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_BASE_COMMANDS_H_
