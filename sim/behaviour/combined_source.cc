#include "sim/behaviour/combined_source.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin::sim {

void CombinedSource::step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) {
  values->clear();
  for (OutcomeSource* source : parts_) {
    source->step(launch, offset, &part_);
    if (!part_.recalls.empty()) {
      KVT_CHECK(values->recalls.empty());
      values->recalls.swap(part_.recalls);
    }
    if (!part_.retained.empty()) {
      KVT_CHECK(values->retained.empty());
      values->retained.swap(part_.retained);  // spans stay valid: swapped vectors swap their buffers
      values->retained_counts.swap(part_.retained_counts);
      values->retained_live.swap(part_.retained_live);
    }
    for (const RequestId request : part_.eos) {
      if (std::find(values->eos.begin(), values->eos.end(), request) == values->eos.end())
        values->eos.push_back(request);
    }
  }
}

void CombinedSource::notify(const Command& command) {
  for (OutcomeSource* source : parts_) source->notify(command);
}

}  // namespace kvtwin::sim
