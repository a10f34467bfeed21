#include "engine/calibrate/chunk_runs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/prng.h"
#include "engine/calibrate/chunk_load.h"

namespace kvtwin::cuda {
namespace {

constexpr size_t kStepsLeast = 3;  // without a pause, of one size: one that is not loaded, and two that are

}  // namespace

void ChunkRuns::pass(const std::vector<uint32_t>& tokens) {
  std::vector<size_t> order(tokens.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const uint64_t pass = passes_++;
  std::sort(order.begin(), order.end(), [pass](size_t a, size_t b) {
    return draw({pass, a}) < draw({pass, b});
  });
  for (const size_t i : order) {
    if (tokens[i] <= kDecodeRowsMax) between_decodes(tokens[i]);
    if (tokens[i] >= kDecodeRowsMax) without_pause(tokens[i]);
  }
}

void ChunkRuns::between_decodes(uint32_t tokens) {
  const BenchRequest chunk{tokens, 0, true};
  const std::vector<BenchRequest> decodes(kRestRequests, BenchRequest{1, 512, true});
  for (uint32_t i = 0; i < kChunksBetween; ++i) {
    bench_.series(decodes, kRestRequests, kBetweenUs);
    taken_[tokens].push_back(bench_.series({&chunk, 1}, tokens, 1).front());
  }
}

void ChunkRuns::without_pause(uint32_t tokens) {
  const BenchRequest chunk{tokens, 0, true};
  rest(&bench_);
  double spent = 0;
  const auto keep = [&](double us) {
    const double load = std::min(1.0, spent / kLoadWindowUs);
    if (load == 1 && tokens > kDecodeRowsMax) taken_[tokens].push_back(us);
    const auto step = static_cast<uint32_t>(std::lround(load * kLoadSteps));
    loads_[tokens][step * kSustainedLoad / kLoadSteps].push_back(us);
    spent += us;
  };
  const std::vector<double> first = bench_.series({&chunk, 1}, tokens, kLoadWindowUs + kShortBusyUs);
  for (const double us : first) keep(us);
  // A step may be longer than all of this; then those behind it are what tables contain.
  for (size_t steps = first.size(); steps < kStepsLeast; ++steps)
    keep(bench_.series({&chunk, 1}, tokens, 1).front());
}

std::map<uint32_t, Measured> ChunkRuns::by_load(uint32_t tokens) const {
  std::map<uint32_t, Measured> out;
  const auto found = loads_.find(tokens);
  if (found == loads_.end()) return out;
  for (const auto& [load, values] : found->second) out[load] = middle_of(values);
  return out;
}

}  // namespace kvtwin::cuda
