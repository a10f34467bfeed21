// Work in progress of a Core: launches, handed-over pages. Included by core_state.h only.

#ifndef KVTWIN_ENGINE_SCHEDULER_CORE_WORK_H_
#define KVTWIN_ENGINE_SCHEDULER_CORE_WORK_H_

#include <cstdint>
#include <vector>

#include "engine/base/commands.h"
#include "engine/kv/prefix_index.h"

namespace kvtwin {

using RequestIndex = uint32_t;  // index into State::requests

struct Launch {
  struct Member {
    RequestIndex request_index;
    RequestId request;
    bool samples;
  };
  uint64_t first = 0;
  uint64_t end = 0;
  bool decisive = false;  // its end changes more than lengths
  std::vector<Member> members;
  std::vector<PlanEntry> entries;
  std::vector<PageAllocation> allocations;
  std::vector<PageId> reused;
  std::vector<PrefixHit> prefix_hits;  // with spans into `reused`
  // compressions[i] belongs to the request's attempt attempts[i]; its spans point into `keep` and `forced`.
  std::vector<Compression> compressions;
  std::vector<uint32_t> attempts;
  std::vector<uint32_t> keep;
  std::vector<Compression::Forced> forced;
  std::vector<FormatRun> formats;
  std::vector<Requantisation> requantisations;
  std::vector<uint32_t> reused_counts;  // of prefix checkpoints: KV entries, then shared pages, by group
  std::vector<PrefixCheckpoint> prefix_checkpoints;

  void clear(uint64_t step) {
    first = end = step;
    decisive = false;
    members.clear();
    entries.clear();
    allocations.clear();
    reused.clear();
    prefix_hits.clear();
    compressions.clear();
    attempts.clear();
    keep.clear();
    forced.clear();
    formats.clear();
    requantisations.clear();
    reused_counts.clear();
    prefix_checkpoints.clear();
  }
};

// Pages that a handed-over request left on this engine, until PagesTaken.
struct HeldPages {
  RequestId request{};
  Pin pin;
  std::vector<PageId> own;  // after the pin
  std::vector<PageId> all;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_SCHEDULER_CORE_WORK_H_
