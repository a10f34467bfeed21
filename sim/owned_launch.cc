#include "sim/owned_launch.h"

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
      grants_(step.grants.begin(), step.grants.end()),
      adoptions_(step.adoptions.begin(), step.adoptions.end()),
      compressions_(step.compressions.begin(), step.compressions.end()),
      formats_(step.formats.begin(), step.formats.end()),
      ageings_(step.ageings.begin(), step.ageings.end()),
      snapshots_(step.snapshots.begin(), step.snapshots.end()) {
  // First everything is copied, then spans are set: a vector that grows moves.
  for (const Adoption& adoption : step.adoptions) {
    append(&adopted_, adoption.pages);
    append(&adopted_counts_, adoption.cells);
    append(&adopted_counts_, adoption.shared);
  }
  for (const Compression& compression : step.compressions) {
    append(&forced_, compression.forced);
    append(&keep_, compression.keep);
  }
  size_t adopted = 0, counts = 0, forced = 0, keep = 0;
  const auto take_counts = [&](std::span<const uint32_t>* of) {
    *of = std::span<const uint32_t>(adopted_counts_).subspan(counts, of->size());
    counts += of->size();
  };
  for (Adoption& adoption : adoptions_) {
    adoption.pages = std::span<const PageId>(adopted_).subspan(adopted, adoption.pages.size());
    adopted += adoption.pages.size();
    take_counts(&adoption.cells);
    take_counts(&adoption.shared);
  }
  for (Compression& compression : compressions_) {
    compression.forced =
        std::span<const Compression::Forced>(forced_).subspan(forced, compression.forced.size());
    compression.keep = std::span<const uint32_t>(keep_).subspan(keep, compression.keep.size());
    forced += compression.forced.size();
    keep += compression.keep.size();
  }
  step_.entries = entries_;
  step_.grants = grants_;
  step_.adoptions = adoptions_;
  step_.compressions = compressions_;
  step_.formats = formats_;
  step_.ageings = ageings_;
  step_.snapshots = snapshots_;
}

}  // namespace kvtwin::sim
