#include "sim/clock/owned_launch.h"

namespace kvtwin::sim {
namespace {

template <typename T>
void append(std::vector<T>* all, std::span<const T> more) {
  all->insert(all->end(), more.begin(), more.end());
}

}  // namespace

OwnedLaunch::OwnedLaunch(const LaunchStep& step)
    : step_(step),
      entries_(step.entries.begin(), step.entries.end()),
      allocations_(step.allocations.begin(), step.allocations.end()),
      prefix_hits_(step.prefix_hits.begin(), step.prefix_hits.end()),
      compressions_(step.compressions.begin(), step.compressions.end()),
      formats_(step.formats.begin(), step.formats.end()),
      ageings_(step.requantisations.begin(), step.requantisations.end()),
      prefix_checkpoints_(step.prefix_checkpoints.begin(), step.prefix_checkpoints.end()),
      passes_(step.passes.begin(), step.passes.end()) {
  // Copy everything first and set spans afterwards: a vector that grows moves its buffer.
  for (const PrefixHit& prefix_hit : step.prefix_hits) {
    append(&reused_, prefix_hit.pages);
    append(&reused_counts_, prefix_hit.kv_entries);
    append(&reused_counts_, prefix_hit.shared);
  }
  for (const Compression& compression : step.compressions) {
    append(&forced_, compression.forced);
    append(&keep_, compression.keep);
  }
  size_t reused = 0, counts = 0, forced = 0, keep = 0;
  const auto take_counts = [&](std::span<const uint32_t>* of) {
    *of = std::span<const uint32_t>(reused_counts_).subspan(counts, of->size());
    counts += of->size();
  };
  for (PrefixHit& prefix_hit : prefix_hits_) {
    prefix_hit.pages = std::span<const PageId>(reused_).subspan(reused, prefix_hit.pages.size());
    reused += prefix_hit.pages.size();
    take_counts(&prefix_hit.kv_entries);
    take_counts(&prefix_hit.shared);
  }
  for (Compression& compression : compressions_) {
    compression.forced =
        std::span<const Compression::Forced>(forced_).subspan(forced, compression.forced.size());
    compression.keep = std::span<const uint32_t>(keep_).subspan(keep, compression.keep.size());
    forced += compression.forced.size();
    keep += compression.keep.size();
  }
  step_.entries = entries_;
  step_.allocations = allocations_;
  step_.prefix_hits = prefix_hits_;
  step_.compressions = compressions_;
  step_.formats = formats_;
  step_.requantisations = ageings_;
  step_.prefix_checkpoints = prefix_checkpoints_;
  step_.passes = passes_;
}

}  // namespace kvtwin::sim
