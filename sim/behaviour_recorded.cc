#include "sim/behaviour_recorded.h"

#include <algorithm>

namespace kvtwin::sim {
namespace {

bool moves(const std::vector<LayerRecall>& recalls) {
  return std::any_of(recalls.begin(), recalls.end(), [](const LayerRecall& recall) {
    return recall.blocking > 0 || recall.background > 0 || recall.corrected > 0;
  });
}

}  // namespace

void RecordedSource::step(const LaunchStep& launch, uint32_t offset, StepValues* values) {
  values->clear();
  // Always asked: what it answers later may depend on what it has seen.
  if (others_ != nullptr) others_->step(launch, offset, values);
  attempts_.saw(launch, offset);
  if (parts_.kept && offset == 0 && !launch.compressions.empty()) replace_kept(launch, values);
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
                                 StepValues* values) {
  values->eos.clear();
  for (const RequestKey& key : ended) {
    for (const PlanEntry& entry : launch.entries) {
      if (entry.key == key) values->eos.push_back(entry.call);
    }
  }
}

void RecordedSource::replace_kept(const LaunchStep& launch, StepValues* values) {
  values->kept.swap(given_.kept);  // spans follow: vectors swap with what they hold
  values->kept_counts.swap(given_.kept_counts);
  values->kept_live.swap(given_.kept_live);
  values->kept.clear();
  values->kept_counts.clear();
  values->kept_live.clear();
  for (size_t i = 0; i < launch.compressions.size(); ++i) {
    const Compression& compression = launch.compressions[i];
    const CallId call = launch.entries[compression.entry].call;
    const RequestKey& key = launch.entries[compression.entry].key;
    const auto found = record_.kept.find({key, attempts_.of(call), compression.end});
    ++kept_.asked;
    if (found != record_.kept.end()) {
      ++kept_.found;
      const RecordedOutcomes::Kept& kept = found->second;
      values->kept_counts.insert(values->kept_counts.end(), kept.counts.begin(), kept.counts.end());
      values->kept_live.insert(values->kept_live.end(), kept.live.begin(), kept.live.end());
    } else if (i < given_.kept.size()) {
      const CellsKept& kept = given_.kept[i];
      values->kept_counts.insert(values->kept_counts.end(), kept.counts.begin(), kept.counts.end());
      values->kept_live.insert(values->kept_live.end(), kept.live.begin(), kept.live.end());
    }
    values->end_kept(call);
  }
  values->link_kept();
}

void RecordedSource::told(const Command& command) {
  attempts_.told(command);
  if (others_ != nullptr) others_->told(command);
}

}  // namespace kvtwin::sim
