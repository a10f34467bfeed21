// RetrievalSource is a behaviour model: what retrieval chooses in a backend without values, as the number of
// pages of each layer that a step recalls and the number of heads that are corrected
// (docs/design/backend-interface-and-digest.md#outcomes).
//
// * fixed: every head misses the same fraction of its selectable pages, and is corrected with the same
//   probability. Both are parameters.
// * profile: the probability of a correction follows from tau, through the middle of published measurements
//   (docs/design/methods/freekv.md#timelines: .04 to .22 at tau 0.8, .17 to .52 at 0.9), or from a table by
//   layer. No distribution of misses is published, so the miss rate is a parameter here too, unless a
//   calibration measured both by layer (kvtwin calibrate policy retrieval).
//
// Misses are rounded up or down at random so that their mean is exact. Draws are keyed by (seed, session,
// index in the session, attempt, position, layer, head), so they do not depend on the order of sending,
// batching or coalescing.

#ifndef KVTWIN_SIM_BEHAVIOUR_BEHAVIOUR_RETRIEVAL_H_
#define KVTWIN_SIM_BEHAVIOUR_BEHAVIOUR_RETRIEVAL_H_

#include <cstdint>
#include <map>
#include <vector>

#include "engine/methods/retrieval_spec.h"
#include "engine/runtime/outcome_source.h"

namespace kvtwin::sim {

struct RetrievalBehaviour {
  uint64_t seed = 0;
  uint64_t miss_q32 = 0;  // fraction of a head's selectable pages that a step recalls, Q0.32
  // The same by layer, where measured; the last value holds for all further layers. Empty: miss_q32.
  std::vector<uint64_t> miss_by_layer_q32{};
  // Probability that a head is corrected, by layer, Q0.32; the last value holds for all further layers.
  std::vector<uint64_t> correction_q32 = {0};
};

// The probability of a correction at `tau`: piecewise linear through (-1, 0), (0.8, .13), (0.9, .345), (1,
// 1).
uint64_t profiled_correction_q32(int64_t tau_q32);

class RetrievalSource final : public OutcomeSource {
 public:
  // REQUIRES: rates are at most 2^32; correction_q32 is not empty; a retrieval other than kAll.
  RetrievalSource(const RetrievalBehaviour& behaviour, RetrievalKind kind, const RetrievalSpec& spec,
                  uint32_t page_tokens, uint32_t layers, uint32_t kv_heads);

  void step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) override;
  void notify(const Command& command) override;

 private:
  void add_request(uint64_t key, uint32_t candidates, std::vector<LayerRecall>* recalls) const;

  const RetrievalBehaviour behaviour_;
  const RetrievalKind kind_;
  const RetrievalSpec spec_;
  const uint32_t page_tokens_, layers_, kv_heads_, selectable_;
  std::map<RequestId, uint32_t> attempts_;  // of preempted requests
};

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_BEHAVIOUR_BEHAVIOUR_RETRIEVAL_H_
