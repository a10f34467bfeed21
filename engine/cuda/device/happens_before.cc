#include "engine/cuda/device/happens_before.h"

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin::cuda {
namespace {

constexpr size_t kFindingsMax = 20;

}  // namespace

void HappensBefore::recorded(uint32_t event, uint32_t stream) { events_[event] = known_.at(stream); }

void HappensBefore::waited(uint32_t stream, uint32_t event) {
  const auto found = events_.find(event);
  if (found == events_.end()) return;
  Clock& known = known_.at(stream);
  for (uint32_t s = 0; s < kStreams; ++s) known[s] = std::max(known[s], found->second[s]);
}

void HappensBefore::check(uint32_t stream, uint32_t other, const Touch& before, const Memory& memory,
                          const char* operation) {
  if (before.at <= known_[stream][other] || findings_.size() == kFindingsMax) return;
  findings_.push_back(fmt::format("{} on stream {} does not wait for {} on stream {}: {} {}", operation,
                                  stream, before.operation, other, memory.what, memory.number));
}

void HappensBefore::touches(uint32_t stream, Access access, const Memory& memory, const char* operation) {
  KVT_CHECK(stream < kStreams);
  ++operations_;
  const uint64_t now = ++known_[stream][stream];
  History& history = memory_[{memory.what, memory.number}];
  check(stream, history.write_stream, history.write, memory, operation);
  if (access == Access::kRead) {
    history.reads[stream] = {now, operation};
    return;
  }
  for (uint32_t s = 0; s < kStreams; ++s) check(stream, s, history.reads[s], memory, operation);
  history.write_stream = stream;
  history.write = {now, operation};
  history.reads.fill({});
}

}  // namespace kvtwin::cuda
