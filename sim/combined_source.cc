#include "sim/combined_source.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin::sim {

void CombinedSource::step(const LaunchStep& launch, uint32_t offset, StepValues* values) {
  values->clear();
  for (OutcomeSource* source : parts_) {
    source->step(launch, offset, &part_);
    if (!part_.recalls.empty()) {
      KVT_CHECK(values->recalls.empty());
      values->recalls.swap(part_.recalls);
    }
    if (!part_.kept.empty()) {
      KVT_CHECK(values->kept.empty());
      values->kept.swap(part_.kept);  // spans follow: vectors swap with what they hold
      values->kept_counts.swap(part_.kept_counts);
      values->kept_live.swap(part_.kept_live);
    }
    for (const CallId call : part_.eos) {
      if (std::find(values->eos.begin(), values->eos.end(), call) == values->eos.end())
        values->eos.push_back(call);
    }
  }
}

void CombinedSource::told(const Command& command) {
  for (OutcomeSource* source : parts_) source->told(command);
}

}  // namespace kvtwin::sim
