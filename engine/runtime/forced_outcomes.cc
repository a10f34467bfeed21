#include "engine/runtime/forced_outcomes.h"

#include <algorithm>

namespace kvtwin {
namespace {

bool reports_something(const CompressionOutcome& retained) {
  return !retained.counts.empty() || !retained.live.empty();
}

// Bits after the last position may be present or absent.
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

const CompressionOutcome* forced_retained(const DataOutcomes* given, RequestId request) {
  if (given == nullptr) return nullptr;
  for (const CompressionOutcome& retained : given->retained) {
    if (retained.request == request && reports_something(retained)) return &retained;
  }
  return nullptr;
}

void ForcedOutcomes::prepare(const LaunchStep& launch, uint32_t offset) {
  source_.step(launch, offset, &given_);
  prepared_ = true;
}

void ForcedOutcomes::step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) {
  if (!prepared_) prepare(launch, offset);
  prepared_ = false;
  engine_.force_outcomes(&given_);
  engine_.step(launch, offset, values);
  engine_.force_outcomes(nullptr);
  count(*values);
}

void ForcedOutcomes::count(const DataOutcomes& answer) {
  for (const CompressionOutcome& given : given_.retained) {
    if (!reports_something(given)) continue;
    ++retained_.forced_outcome;
    const auto got =
        std::find_if(answer.retained.begin(), answer.retained.end(),
                     [&](const CompressionOutcome& retained) { return retained.request == given.request; });
    retained_.met += got != answer.retained.end() && std::ranges::equal(got->counts, given.counts) &&
                     same_bits(got->live, given.live);
  }
  if (given_.recalls.empty()) return;
  ++recalls_.forced_outcome;
  recalls_.met += std::ranges::equal(given_.recalls, answer.recalls, same);
}

void ForcedOutcomes::notify(const Command& command) {
  source_.notify(command);
  engine_.notify(command);
}

}  // namespace kvtwin
