#include "sim/behaviour/behaviour_recorded.h"

#include <algorithm>

namespace kvtwin::sim {
namespace {

bool moves(const std::vector<LayerRecall>& recalls) {
  return std::any_of(recalls.begin(), recalls.end(), [](const LayerRecall& recall) {
    return recall.blocking > 0 || recall.background > 0 || recall.corrected > 0;
  });
}

}  // namespace

void RecordedSource::step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) {
  values->clear();
  // Always ask: later answers of this source may depend on what it has seen.
  if (others_ != nullptr) others_->step(launch, offset, values);
  attempts_.saw(launch, offset);
  if (parts_.retained && offset == 0 && !launch.compressions.empty()) replace_retained(launch, values);
  const auto found = record_.steps.find(raw(launch.step) + offset);
  const bool same =
      found != record_.steps.end() && found->second.plan == plan_fingerprint(launch, offset, numbers_);
  if (parts_.recalls && same) {
    ++recalls_.asked;
    ++recalls_.found;
    values->recalls = found->second.recalls;
  } else if (parts_.recalls && moves(values->recalls)) {
    ++recalls_.asked;
  }
  if (same && !found->second.eos.empty()) replace_eos(launch, found->second.eos, values);
}

void RecordedSource::replace_eos(const LaunchStep& launch, const std::vector<RequestKey>& ended,
                                 DataOutcomes* values) {
  values->eos.clear();
  for (const RequestKey& key : ended) {
    for (const PlanEntry& entry : launch.entries) {
      if (entry.key == key) values->eos.push_back(entry.request);
    }
  }
}

void RecordedSource::replace_retained(const LaunchStep& launch, DataOutcomes* values) {
  values->retained.swap(given_.retained);  // spans stay valid: swapped vectors swap their buffers
  values->retained_counts.swap(given_.retained_counts);
  values->retained_live.swap(given_.retained_live);
  values->retained.clear();
  values->retained_counts.clear();
  values->retained_live.clear();
  for (size_t i = 0; i < launch.compressions.size(); ++i) {
    const Compression& compression = launch.compressions[i];
    const RequestId request = launch.entries[compression.entry].request;
    const RequestKey& key = launch.entries[compression.entry].key;
    const auto found = record_.retained.find({key, attempts_.of(request), compression.end});
    ++retained_.asked;
    if (found != record_.retained.end()) {
      ++retained_.found;
      const RecordedOutcomes::Retained& retained = found->second;
      values->retained_counts.insert(values->retained_counts.end(), retained.counts.begin(),
                                     retained.counts.end());
      values->retained_live.insert(values->retained_live.end(), retained.live.begin(), retained.live.end());
    } else if (i < given_.retained.size()) {
      const CompressionOutcome& retained = given_.retained[i];
      values->retained_counts.insert(values->retained_counts.end(), retained.counts.begin(),
                                     retained.counts.end());
      values->retained_live.insert(values->retained_live.end(), retained.live.begin(), retained.live.end());
    }
    values->end_retained(request);
  }
  values->link_retained();
}

void RecordedSource::notify(const Command& command) {
  attempts_.notify(command);
  if (others_ != nullptr) others_->notify(command);
}

}  // namespace kvtwin::sim
