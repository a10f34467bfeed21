#include "engine/calibrate/chunk_runs.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "engine/base/prng.h"
#include "engine/calibrate/chunk_load.h"

namespace kvtwin::cuda {

void ChunkRuns::pass(const std::vector<Size>& sizes) {
  std::vector<size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const uint64_t pass = passes_++;
  std::sort(order.begin(), order.end(), [pass](size_t a, size_t b) {
    return draw({pass, a}) < draw({pass, b});
  });
  for (const size_t i : order) visit(sizes[i]);
}

void ChunkRuns::visit(const Size& size) {
  if (size.first <= kDecodeRowsMax) between_decodes(size);
  if (size.first < kDecodeRowsMax) return;
  without_pause(size);
}

void ChunkRuns::between_decodes(const Size& size) {
  const BenchRequest chunk{size.first, size.second, true};
  const std::vector<BenchRequest> decodes(kRestRequests, BenchRequest{1, 512, true});
  for (uint32_t i = 0; i < kChunksBetween; ++i) {
    bench_.series(decodes, kRestRequests, kBetweenUs);
    taken_[size].push_back(bench_.series({&chunk, 1}, size.first, 1).front());
  }
}

void ChunkRuns::without_pause(const Size& size) {
  const BenchRequest chunk{size.first, size.second, true};
  rest(&bench_);
  double spent = 0;
  for (const double us : bench_.series({&chunk, 1}, size.first, kLoadWindowUs + kShortBusyUs)) {
    const double load = std::min(1.0, spent / kLoadWindowUs);
    if (load == 1 && size.first > kDecodeRowsMax) taken_[size].push_back(us);
    const auto step = static_cast<uint32_t>(std::lround(load * kLoadSteps));
    if (size.second == 0) loads_[size.first][step * kSustainedLoad / kLoadSteps].push_back(us);
    spent += us;
  }
}

std::map<uint32_t, Measured> ChunkRuns::by_load(uint32_t tokens) const {
  std::map<uint32_t, Measured> out;
  const auto found = loads_.find(tokens);
  if (found == loads_.end()) return out;
  for (const auto& [load, values] : found->second) out[load] = middle_of(values);
  return out;
}

}  // namespace kvtwin::cuda
