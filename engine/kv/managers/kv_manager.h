// KvManager owns the KV of all requests of an engine: which pages each holds, what it may share, what is
// reserved for it, and what a compression leaves of it. Each way to lay out KV is one implementation; the
// scheduler never learns which.
//
//   PagedKvManager            pages by position; slots may be dropped in place
//   GroupedKvManager          a page table per head group; rings; prefix checkpoints
//   MixedPrecisionKvManager   int2 and int4 pages by token tag
//   ResidentKvManager         every page on the host, resident pages on the GPU
//
// A request is named by its place in the engine's tables. Its KV is absent, held (the request runs), or on
// its way (a transfer that it waits for). Each manager keeps a state of its own per request. Pages of entries
// that are being planned are written to KvContext::draft, and what a launch says of them to the Launch.
//
// The calls of one step, in order:
//   grow() or admit()   for each entry, while the step is planned; publish() once the entry is final
//   write_entry()       for each entry of the launch, when its tokens count as computed
//   take_ahead()        for the launch, if further steps may be coalesced
//   undo_ahead()        if the launch is cut
//   answered(), launch_ended()

#ifndef KVTWIN_ENGINE_KV_MANAGERS_KV_MANAGER_H_
#define KVTWIN_ENGINE_KV_MANAGERS_KV_MANAGER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "engine/base/commands.h"
#include "engine/base/events.h"
#include "engine/kv/kv_usage.h"
#include "engine/kv/launch.h"
#include "engine/kv/request_progress.h"
#include "engine/kv/store/transfer_manager.h"

namespace kvtwin {

struct AdmissionAsk {
  TokenBudget budget;
  std::span<const RequestIndex> running;
};

struct Admission {
  enum class Kind : uint8_t {
    kNow,            // it holds its prefix, and the pages of its first entry
    kAfterTransfer,  // it waits for a transfer, and others may pass it
    kBlocked,        // not yet, and no later request may pass it
  };
  Kind kind = Kind::kBlocked;
  uint32_t computed = 0;  // tokens whose KV it has now
  uint32_t tokens = 0;    // of its first entry
};

// Delivery is the consequence of a transfer's end for a request that waited for it.
struct Delivery {
  bool runs = false;  // it holds its KV; otherwise it returns to the queue
  uint32_t computed = 0;
};

enum class Room : uint8_t {
  kYes,
  kNo,
  kComing,   // pages that are being copied away will cover the demand
  kAwaited,  // unknown before the backend has answered
};

struct PreemptionAsk {
  bool alone = false;  // it is the only running request
};

class KvManager {
 public:
  virtual ~KvManager() = default;

  virtual void open(RequestIndex request, const RequestReady& event) = 0;
  // REQUIRES: the KV of the request is absent.
  virtual Admission admit(RequestIndex request, const AdmissionAsk& ask) = 0;
  // Pages for `tokens` more tokens; all or none. REQUIRES: its KV is held, here and below.
  virtual Room grow(RequestIndex request, uint32_t tokens) = 0;
  // The entry of `tokens` prompt tokens that was just planned is final: within a step all KV is written
  // before any is read, so a later entry of the same step may reuse its pages.
  virtual void publish(RequestIndex request, uint32_t tokens) = 0;
  // Completes launch->entries[entry], and adds compressions, formats, prefix checkpoints. The progress of the
  // request includes the entry.
  virtual void write_entry(RequestIndex request, uint32_t entry, Launch* launch) = 0;
  // Steps of the launch, the first included, in which nothing of its requests' KV must be decided.
  virtual uint32_t coalescible_steps(const Launch& launch) const = 0;
  // Pages and KV entries for steps 1 .. steps-1 of the launch, in step-major order, as long as that evicts
  // nothing and starts no copy. Returns the number of steps that have all their pages.
  virtual uint32_t take_ahead(uint32_t steps, Launch* launch) = 0;
  // Undoes take_ahead() exactly for the last steps: `left` of them remain. The progress of the requests still
  // includes all.
  virtual void undo_ahead(Launch* launch, uint32_t left) = 0;
  virtual HeldEntries held_by(const Launch& launch) const = 0;
  // The backend's answers to the launch's compressions.
  virtual void answered(const StepDone& event, const Launch& launch) = 0;
  virtual void launch_ended(const Launch& launch) = 0;

  // The request stops running and gives up its pages. Returns whether its KV is kept: it is swapped out by a
  // transfer that the request waits for.
  virtual bool preempt(RequestIndex request, const PreemptionAsk& ask) = 0;
  // The request has ended while it ran; or while its KV was absent or on its way.
  virtual void finish(RequestIndex request) = 0;
  virtual void abandon(RequestIndex request) = 0;
  // The request continues on another engine, which reads its pages until PagesTaken.
  virtual void hand_over(RequestIndex request) = 0;
  virtual void taken(const PagesTaken& event) = 0;

  // The transfer that the request waits for has ended, and is settled.
  virtual Delivery deliver(RequestIndex request, const Transfer& transfer, bool arrived) = 0;
  // Copies of cached prefixes to lower tiers, before their pages are needed.
  virtual void start_copies_down() = 0;

  virtual TransferManager& transfers() = 0;
  // The index that knows which sessions use a prefix.
  virtual PrefixIndex& prefixes() = 0;
  // Whether pages outside all requests become available without preemption.
  virtual bool pages_return() const = 0;
  virtual bool idle() const = 0;
  // Core::tokens_cached().
  virtual uint32_t tokens_cached(const RequestReady& request) const = 0;
  // Without the last steps of the newest launch: `started` of its steps are counted.
  virtual KvUsage usage(std::span<const RequestIndex> running, const Launch* newest,
                        uint32_t started) const = 0;
  // `live`: all requests; `running`: those whose KV is held.
  virtual void check_invariants(std::span<const RequestIndex> live,
                                std::span<const RequestIndex> running) const = 0;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_MANAGERS_KV_MANAGER_H_
