// Conditions for measuring steps with prompts: after idle time, and after a short load. Shared by all parts
// of the calibration.

#ifndef KVTWIN_ENGINE_CALIBRATE_CHUNK_LOAD_H_
#define KVTWIN_ENGINE_CALIBRATE_CHUNK_LOAD_H_

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/calibrate/step_bench.h"
#include "engine/calibrate/step_pace.h"
#include "models/cost/cost_model.h"

namespace kvtwin::cuda {

constexpr uint32_t kDecodeRowsMax = 256, kShortContext = 64;
// Decodes before the first measured ones: on one H100 those that were measured first, behind two short
// pauses, were 2 % faster than all later ones.
constexpr double kSettledUs = 1500e3;
constexpr double kBusyUs = 2500e3, kBusyAgainUs = 1200e3;  // once; and in each further pass
constexpr double kBusyBinUs = 50e3, kLateBusyBinUs = 250e3, kLateBusyUs = 1000e3;
constexpr uint32_t kLoadSteps = 8;
constexpr uint32_t kChunksBetween = 6;  // chunks of few rows, each after kBetweenUs of decodes
constexpr double kBetweenUs = 25e3;

constexpr double kCalmUs = 100e3;  // decodes after chunks until the clock has recovered

constexpr uint32_t kRestRequests = 32;

// Runs decodes for a while, so that the clock recovers from chunks.
inline void rest(StepBench* bench) {
  const std::vector<BenchRequest> requests(kRestRequests, BenchRequest{1, 512, true});
  bench->series(requests, kRestRequests, kIdleUs);
}

// The step of these requests as the cost model sees it, in the middle of 2 * `half` steps, after a short
// load.
struct BenchShape {
  BenchShape(std::span<const BenchRequest> requests, uint32_t padded, uint32_t half) {
    for (const BenchRequest& request : requests) {
      shape.tokens += request.tokens;
      shape.logits_rows += request.samples ? 1 : 0;
      if (request.tokens > 1) {
        chunks.push_back({request.tokens, request.context, 0});
        continue;
      }
      ++shape.decodes;
      shape.decode_context_sum += request.context + half;
      shape.decode_context_max = std::max(shape.decode_context_max, request.context + half);
    }
    shape.tokens_padded = std::max(padded, shape.tokens);
    shape.chunks = chunks;
    if (!chunks.empty()) shape.busy_ms = static_cast<uint32_t>((kLoadWindowUs + kShortBusyUs / 2) / 1e3);
  }
  std::vector<ChunkShape> chunks;
  StepShape shape;
};

}  // namespace kvtwin::cuda

#endif  // KVTWIN_ENGINE_CALIBRATE_CHUNK_LOAD_H_
