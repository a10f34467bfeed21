// Launch is one LaunchStep in flight: the entries and pages of its first step, and what further steps of a
// coalesced run take. The scheduler opens and closes it; KV managers add what the plan says of their pages.

#ifndef KVTWIN_ENGINE_KV_LAUNCH_H_
#define KVTWIN_ENGINE_KV_LAUNCH_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/base/commands.h"
#include "engine/kv/precision_spec.h"
#include "engine/kv/request_progress.h"

namespace kvtwin {

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
  // compressions[i] belongs to the request's attempt attempts[i]; its spans point into `keep` and `forced`
  // once the plan is complete (point_compressions()).
  std::vector<Compression> compressions;
  std::vector<uint32_t> attempts;
  std::vector<uint32_t> keep;
  std::vector<Compression::Forced> forced;
  std::vector<FormatRun> formats;
  std::vector<Requantisation> requantisations;
  std::vector<uint32_t> reused_counts;  // of prefix checkpoints: KV entries, then shared pages, by group
  std::vector<PrefixCheckpoint> prefix_checkpoints;
  std::vector<ProbePass> passes;

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
    passes.clear();
  }

  // Steps of the launch after the first `started`, and pages that only they use.
  uint64_t steps_after(uint32_t started) const { return end - first - started; }
  uint64_t pages_after(uint32_t started) const {
    const auto ahead = std::find_if(allocations.rbegin(), allocations.rend(),
                                    [started](const auto& page) { return page.offset < started; });
    return static_cast<uint64_t>(ahead - allocations.rbegin());
  }

  // The vectors no longer grow: sets the spans of the compressions.
  void point_compressions() {
    size_t keep_at = 0, forced_at = 0;
    for (Compression& compression : compressions) {
      compression.keep = {keep.data() + keep_at, compression.keep.size()};
      compression.forced = {forced.data() + forced_at, compression.forced.size()};
      keep_at += compression.keep.size();
      forced_at += compression.forced.size();
    }
  }
};

// StepDraft holds the decisions of KV managers for entries while a step is planned. An entry has a range of
// each list: the elements appended between its begin and its end. Lists of an entry that is removed from the
// plan are skipped.
struct StepDraft {
  struct Allocated {
    PageId page;
    uint32_t group;
  };
  struct Hit {
    uint32_t begin, end;        // in `reused`
    uint32_t counts_begin = 0;  // in `reused_counts`
    uint32_t groups = 0;        // of the prefix checkpoint; 0: there is none
    uint32_t prefix_checkpoint = 0;
  };
  std::vector<Allocated> allocated;
  std::vector<PageId> reused;
  std::vector<uint32_t> reused_counts;
  std::vector<Hit> hits;
  std::vector<BitRun> bits;
  std::vector<Requantisation> requantisations;  // sent with the next launch
  bool evicted = false;         // cached prefixes were lost: the head of the queue may now match less
  bool admission_open = false;  // the next step might admit a request without a further event

  void clear() {
    allocated.clear();
    reused.clear();
    reused_counts.clear();
    hits.clear();
    bits.clear();
    evicted = admission_open = false;
  }
  // The pages from reused[begin] on are those that the entry being planned starts with.
  void add_hit(size_t begin, size_t counts_begin = 0, uint32_t groups = 0, uint32_t prefix_checkpoint = 0) {
    if (begin == reused.size()) return;
    hits.push_back({static_cast<uint32_t>(begin), static_cast<uint32_t>(reused.size()),
                    static_cast<uint32_t>(counts_begin), groups, prefix_checkpoint});
  }
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_LAUNCH_H_
