// What a Core has under way: launches, transfers, pages that it handed over. Included by core_state.h only.

#ifndef KVTWIN_ENGINE_POLICY_CORE_WORK_H_
#define KVTWIN_ENGINE_POLICY_CORE_WORK_H_

#include <cstdint>
#include <utility>
#include <vector>

#include "engine/policy/commands.h"
#include "engine/policy/prefix_index.h"

namespace kvtwin {

using Slot = uint32_t;  // index into State::calls

struct Launch {
  struct Member {
    Slot slot;
    CallId call;
    bool samples;
  };
  uint64_t first = 0;
  uint64_t end = 0;
  bool decisive = false;  // when it ends, something changes besides lengths
  std::vector<Member> members;
  std::vector<PlanEntry> entries;
  std::vector<PageGrant> grants;
  std::vector<PageId> adopted;
  std::vector<Adoption> adoptions;  // parts of `adopted`
  // Of compressions[i], which is the call's attempt number attempts[i]; parts of `keep` and `forced`.
  std::vector<Compression> compressions;
  std::vector<uint32_t> attempts;
  std::vector<uint32_t> keep;
  std::vector<Compression::Forced> forced;
  std::vector<CellRun> formats;
  std::vector<CellAgeing> ageings;
  std::vector<uint32_t> adopted_counts;  // of snapshots: cells, then shared pages, by group
  std::vector<Snapshot> snapshots;

  void clear(uint64_t step) {
    first = end = step;
    decisive = false;
    members.clear();
    entries.clear();
    grants.clear();
    adopted.clear();
    adoptions.clear();
    compressions.clear();
    attempts.clear();
    keep.clear();
    forced.clear();
    formats.clear();
    ageings.clear();
    adopted_counts.clear();
    snapshots.clear();
  }
};

struct TransferState {
  TransferId id{};
  TransferKind kind{};
  Lease lease;
  uint32_t first = 0;  // page of the lease
  std::vector<PageId> source;
  std::vector<PageId> target;
  std::vector<std::pair<Slot, CallId>> waiting;  // calls that wait for it
  EngineId from{};                               // kReceive
  bool asked = true;  // of the world; not yet where steps in flight still write the pages
  bool live = false;
};

// What a call that was handed over left behind, until PagesTaken.
struct HeldPages {
  CallId call{};
  Lease lease;
  std::vector<PageId> own;  // behind the lease
  std::vector<PageId> all;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_POLICY_CORE_WORK_H_
