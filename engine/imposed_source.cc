#include "engine/imposed_source.h"

#include <algorithm>

namespace kvtwin {
namespace {

bool says_something(const CellsKept& kept) { return !kept.counts.empty() || !kept.live.empty(); }

// Bits behind the last position may be there or not.
bool same_bits(std::span<const uint64_t> a, std::span<const uint64_t> b) {
  for (size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    if ((i < a.size() ? a[i] : 0) != (i < b.size() ? b[i] : 0)) return false;
  }
  return true;
}

bool same(const LayerRecall& a, const LayerRecall& b) {
  return a.blocking == b.blocking && a.background == b.background && a.corrected == b.corrected;
}

}  // namespace

const CellsKept* imposed_kept(const StepValues* given, CallId call) {
  if (given == nullptr) return nullptr;
  for (const CellsKept& kept : given->kept) {
    if (kept.call == call && says_something(kept)) return &kept;
  }
  return nullptr;
}

uint32_t imposed_keep(uint32_t left, uint32_t fixed, uint32_t candidates) {
  return left <= fixed ? 0 : std::min(left - fixed, candidates);
}

void ImposedSource::prepare(const LaunchStep& launch, uint32_t offset) {
  says_.step(launch, offset, &given_);
  prepared_ = true;
}

void ImposedSource::step(const LaunchStep& launch, uint32_t offset, StepValues* values) {
  if (!prepared_) prepare(launch, offset);
  prepared_ = false;
  engine_.impose(&given_);
  engine_.step(launch, offset, values);
  engine_.impose(nullptr);
  count(*values);
}

void ImposedSource::count(const StepValues& answer) {
  for (const CellsKept& given : given_.kept) {
    if (!says_something(given)) continue;
    ++kept_.imposed;
    const auto got = std::find_if(answer.kept.begin(), answer.kept.end(),
                                  [&](const CellsKept& kept) { return kept.call == given.call; });
    kept_.met += got != answer.kept.end() && std::ranges::equal(got->counts, given.counts) &&
                 same_bits(got->live, given.live);
  }
  if (given_.recalls.empty()) return;
  ++recalls_.imposed;
  recalls_.met += std::ranges::equal(given_.recalls, answer.recalls, same);
}

void ImposedSource::told(const Command& command) {
  says_.told(command);
  engine_.told(command);
}

}  // namespace kvtwin
