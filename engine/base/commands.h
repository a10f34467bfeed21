// Commands are what the policy requests from a backend, the driver or the Client. A command carries no time
// and no duration: the backend decides how, and how fast, it is carried out, never what is done.
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

// Placeholder where a page is absent.
constexpr PageId kNoPage{UINT32_MAX};

enum class Tier : uint8_t { kGpu, kHost, kDisk };

enum class EntryKind : uint8_t {
  kChunk,   // `tokens` known tokens are computed; the last chunk samples one token
  kDecode,  // one token in, one token out
  kProbe,   // a pass of `tokens` probe tokens, which score KV entries and leave none (ProbePass)
};

// The part of a step that belongs to one request.
struct PlanEntry {
  RequestId request{};
  EntryKind kind{};
  bool first = false;    // first entry since the request was admitted or readmitted; `context` was reused
  bool samples = false;  // this step samples the request's next output token
  uint32_t tokens = 0;   // computed in this step
  uint32_t context = 0;  // tokens computed before this step: the position of the first new token
  uint32_t dropped = 0;  // tokens of `context` that a head can no longer read: mean over heads, rounded down
  uint32_t low_bit = 0;  // live KV entries in int2 pages; other packed ones are in int4 pages (triaxial)
  // (triaxial) reused int4 pages of which the request reads a part only: their other slots are gaps, or hold
  // KV entries of other requests. Pages that the request fills itself are not counted.
  uint32_t pages_reused_in_part = 0;
  bool grows = true;  // each further step of a coalesced run reads one more KV entry; false: the same number
  RequestKey key{};   // identifies `request` in outcomes and random draws
  // Positions whose queries the scorer remembers for the session, whichever entry computes them.
  TokenRange query{};
  uint32_t passes_left = 0;  // passes of probe tokens that precede its next decode, this one excluded
  // With `first`: the request was swapped out and continues where it was. Its PrefixHit lists the pages that
  // hold its KV entries now; everything else that the backend knows of it still holds (runtime/backend.h).
  bool swapped_in = false;

  uint32_t live() const { return context - dropped; }  // KV entries that a head reads, the new ones excluded
  uint32_t stored() const { return kind == EntryKind::kProbe ? 0 : tokens; }  // tokens that get KV entries
};

// Appends `page` to head group `group` of entries[entry]'s request before single step `step + offset` runs.
struct PageAllocation {
  uint32_t offset = 0;
  uint32_t entry = 0;
  PageId page{};
  uint32_t group = 0;
};

// The request starts with these pages already filled (a cached prefix), in order of position. kNoPage stands
// for a page that has no live KV entries.
//
// Mixed precision: for each range of page_tokens positions, `pages` lists every page that holds KV entries of
// the range, then kNoPage. Such a page also holds KV entries of other positions.
//
// Placement resident: `pages` lists the host pages that hold the prefix, then the same number of the
// request's own GPU pages, to which their content has been copied (kLoad).
//
// Layouts that move KV entries: `pages` are those of a prefix checkpoint, group by group,
// ceil(kv_entries[g] / page_tokens) of each. The KV entries of a head have the positions that they had when
// the checkpoint was taken. The first shared[g] pages of a group are read in place. The others remain the
// checkpoint's: before anything is written, they are copied to the first pages that this step allocates to
// the group. A request continues in the same way after its own prefix checkpoint was taken. A request that
// was swapped in lists its own pages, all of which are shared in this sense; no prefix checkpoint is
// involved.
struct PrefixHit {
  RequestId request{};
  std::span<const PageId> pages;
  uint32_t prefix_checkpoint = 0;
  std::span<const uint32_t> kv_entries{}, shared{};  // by head group; empty: no prefix checkpoint
};

// The KV entries that compressions have retained of entries[entry]'s request become reusable as checkpoint
// `prefix_checkpoint`. Numbers are recycled once unreferenced.
struct PrefixCheckpoint {
  uint32_t entry = 0;
  uint32_t prefix_checkpoint = 0;
};

// After the tokens of entries[entry] are computed (or before, if `before`), score KV entries with the
// engine's scorer and retain the best. Of the live KV entries at positions [begin, end), each KV head of
// group g retains the forced ones and the keep[g] best others. KV entries before `begin` are unchanged.
//
// Layouts that move KV entries: afterwards each group's KV entries fill its page table from the start, and
// pages beyond them are free. Answered by CompressionOutcome (events.h).
struct Compression {
  // Positions [begin, end) that are retained whatever their score (sinks, window, template, query span).
  struct Forced {
    uint32_t begin = 0;
    uint32_t end = 0;
  };
  uint32_t entry = 0;
  uint32_t begin = 0;
  uint32_t end = 0;
  // The entry's tokens were staged and are in no page: only retained KV entries are written to pages.
  bool staged = false;
  // Compress before the entry's tokens are computed. `end` is then the context that the request reused.
  bool before = false;
  std::span<const Forced> forced;  // ascending, disjoint, within [begin, end)
  TokenRange query{};              // of the forced positions, those of what the prompt asks
  std::span<const uint32_t> keep;  // by head group; empty: the backend decides (dynamic budget)
};

// entries[entry] is a pass of probe tokens, which follow the request's KV entries: a forward pass of its own,
// after the step's other tokens. It scores the KV entries at positions [begin, end) for the compression that
// follows its request's last pass. Probe tokens attend to all KV entries of the request and to one another;
// their own KV is discarded with the pass.
//
// end == repeated: the scorer's soft tokens. Otherwise an instruction, then the request's tokens [repeated,
// end) once more.
struct ProbePass {
  uint32_t entry = 0;
  uint32_t begin = 0;
  uint32_t end = 0;
  uint32_t repeated = 0;
  bool first = false;  // scores of earlier passes of the request are void

  bool repeats() const { return repeated < end; }
};

// The next `count` KV entries of entries[entry] get 4 bits if `four`, else 2 (kv/store/mixed_precision_pool.h
// defines how they fill the entry's allocations, in order). count == 0: the prompt ends here, and KV entries
// that still wait for a full group go to int4.
struct FormatRun {
  uint32_t entry = 0;
  uint32_t count = 0;
  bool four = false;
};

// Ageing (TriAxialKV, docs/design/methods/triaxialkv.md#serving): the int4 KV entries at positions [position,
// position + count) in `source` are packed again as the next KV entries of the int2 page `target`. Runs with
// the same target are consecutive and fill it. Later requests that reuse these positions find them in
// `target`. No running request reads them.
struct Requantisation {
  PageId source{};
  PageId target{};
  uint32_t position = 0;
  uint32_t count = 0;
};

// KV entries that the requests of a step hold when its first single step has ended; for metrics. Here a KV
// entry is one token in all heads of one group.
struct HeldEntries {
  // KV entries if nothing had been dropped. 0: the layout never drops any. If `slots` is 0 too, KV entries
  // are stored by position, and the other fields are not set.
  uint64_t full = 0;
  uint64_t kv_entries = 0;    // readable
  uint64_t slots = 0;         // slots of the pages held
  uint32_t growing = 0;       // added to `kv_entries` by each further single step of a coalesced run
  uint32_t growing_full = 0;  // added to `full` by each of them
};

// Run single steps [step, step + repeat). repeat > 1 only if every entry is a decode; each step after the
// first then decodes one token per entry, with one more token of context than the step before. `repeat` is an
// upper bound: see Backend::interrupt. Answered by one or several StepDone.
struct LaunchStep {
  EngineId engine{};
  StepId step{};
  uint32_t repeat = 1;
  uint32_t tokens = 0;  // sum over entries, passes of probe tokens included
  // Tokens that dense kernels process for chunks and decodes (CUDA-graph capture sizes).
  uint32_t tokens_padded = 0;
  std::span<const PlanEntry> entries;
  std::span<const PageAllocation> allocations;  // ascending by (offset, entry, group)
  // Of entries with first == true, and of entries that follow the request's own prefix checkpoint.
  std::span<const PrefixHit> prefix_hits;
  std::span<const Compression> compressions{};  // ascending by entry; only with repeat == 1
  HeldEntries held{};
  // Mixed precision: formats of the KV entries of chunks, by entry. Decoded KV entries get 4 bits.
  std::span<const FormatRun> formats{};
  // In order, before anything else of the first single step.
  std::span<const Requantisation> requantisations{};
  // Ascending by entry; each belongs to a chunk that is compressed.
  std::span<const PrefixCheckpoint> prefix_checkpoints{};
  std::span<const ProbePass> passes{};  // ascending by entry: of the entries of kind kProbe
};

enum class TransferKind : uint8_t {
  kLoad,     // a cached prefix, from the host or the disk
  kOffload,  // gpu to host
  kReceive,  // GPU pages of engine `from`: the prompt of `request`, which was computed there
  kSwapOut,  // all pages of a request preempted by swapping, to the host; the last of each head group may be
             // partly filled
  kSwapIn,   // the pages of it that the request still needs, from the host
  kSpill,    // cached prefixes, from the host to the disk
};

// Copy pages between tiers, in this order. Source and target are reserved until TransferDone or
// TransferFailed.
struct StartTransfer {
  EngineId engine{};
  TransferId transfer{};
  TransferKind kind{};
  Tier source_tier{};
  Tier target_tier{};
  std::span<const PageId> source;
  std::span<const PageId> target;
  EngineId from{};      // kReceive: owner of the `source` pages
  RequestId request{};  // kReceive
};

struct SetTimer {
  EngineId engine{};  // kClient: set by the Client
  TimerId timer{};
  Instant at{};
};

// To the Client: the request has `tokens` output tokens. Sent for the first token and for each trigger.
struct TokensEmitted {
  EngineId engine{};
  RequestId request{};
  uint32_t tokens = 0;
};

// To the Client: the request has ended with `tokens` output tokens.
struct FinishRequest {
  EngineId engine{};
  RequestId request{};
  uint32_t tokens = 0;
  bool cancelled = false;
};

// To the Client: the request can never run on this engine. Final.
struct RejectRequest {
  enum class Reason : uint8_t { kLongerThanWindow, kLargerThanPool, kPromptEmpty };
  EngineId engine{};
  RequestId request{};
  Reason reason{};
  uint64_t needed = 0;  // tokens or pages, by reason
  uint64_t limit = 0;
};

// To the backend: free the state of this request (masks, accumulators, page table). If it was preempted, its
// state may be needed again: its next entry either starts anew, or is swapped_in.
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

// Disaggregated prefill and decode. To the driver: the prompt of `request` is computed and its first token
// exists. Its KV stays in `pages`, by position, until PagesTaken (events.h). The driver sends RequestReady
// with `from` to a decoding engine, which fetches the pages that it lacks (kReceive).
struct HandOver {
  EngineId engine{};
  RequestId request{};
  std::span<const PageId> pages;
};

// To the driver, from the decoding engine: pages of `request` on `from` are no longer needed.
struct SourceRead {
  EngineId engine{};
  RequestId request{};
  EngineId from{};
};

using Command = std::variant<LaunchStep, StartTransfer, SetTimer, TokensEmitted, FinishRequest, RejectRequest,
                             DropRequestState, DropSessionState, HandOver, SourceRead>;

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_BASE_COMMANDS_H_
