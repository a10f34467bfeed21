#include "sim/behaviour/behaviour_retrieval.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/prng.h"
#include "engine/methods/outcome_rules.h"

namespace kvtwin::sim {

uint64_t profiled_correction_q32(int64_t tau_q32) {
  struct Point {
    int64_t tau, rate;  // thousandths
  };
  constexpr Point kPoints[] = {{-1000, 0}, {800, 130}, {900, 345}, {1000, 1000}};
  const auto q32 = [](int64_t thousandths) { return thousandths * kOneQ32 / 1000; };
  if (tau_q32 <= q32(kPoints[0].tau)) return 0;
  for (size_t i = 1; i < std::size(kPoints); ++i) {
    const int64_t left = q32(kPoints[i - 1].tau), right = q32(kPoints[i].tau);
    if (tau_q32 > right) continue;
    const int64_t rise = kPoints[i].rate - kPoints[i - 1].rate, run = kPoints[i].tau - kPoints[i - 1].tau;
    return static_cast<uint64_t>(q32(kPoints[i - 1].rate) + (tau_q32 - left) / run * rise);
  }
  return static_cast<uint64_t>(kOneQ32);
}

RetrievalSource::RetrievalSource(const RetrievalBehaviour& behaviour, RetrievalKind kind,
                                 const RetrievalSpec& spec, uint32_t page_tokens, uint32_t layers,
                                 uint32_t kv_heads)
    : behaviour_(behaviour),
      kind_(kind),
      spec_(spec),
      page_tokens_(page_tokens),
      layers_(layers),
      kv_heads_(kv_heads),
      selectable_(selectable_pages(spec, page_tokens)) {
  KVT_CHECK(!behaviour.correction_q32.empty());
  KVT_CHECK(behaviour.miss_q32 <= static_cast<uint64_t>(kOneQ32));
  for (const uint64_t miss : behaviour.miss_by_layer_q32) KVT_CHECK(miss <= static_cast<uint64_t>(kOneQ32));
  KVT_CHECK(kind != RetrievalKind::kReadsAll);
}

void RetrievalSource::step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) {
  values->clear();
  values->recalls.assign(layers_, {});
  if (kind_ == RetrievalKind::kPagesOnGpu) return;  // everything is on the GPU
  for (const PlanEntry& entry : launch.entries) {
    if (entry.kind != EntryKind::kDecode) continue;
    const uint32_t position = entry.context + offset;
    const uint32_t left = entry.live() + (entry.grows ? offset : 0);
    const uint32_t candidates = candidate_pages(spec_, page_tokens_, left + 1);
    if (candidates == 0) continue;
    const auto attempt = attempts_.find(entry.request);
    const uint64_t key = draw({behaviour_.seed, raw(entry.key.session), entry.key.index,
                               attempt == attempts_.end() ? 0 : attempt->second, position});
    add_request(key, candidates, &values->recalls);
  }
}

void RetrievalSource::add_request(uint64_t key, uint32_t candidates,
                                  std::vector<LayerRecall>* recalls) const {
  // Pages that are chosen and not resident are at most the pages elsewhere. InfiniGen retains nothing of the
  // previous step, so all its chosen pages are absent.
  const bool keeps = kind_ != RetrievalKind::kRecallsTokens;
  const uint32_t chosen = std::min(selectable_, candidates);
  const uint32_t absent_max = keeps ? missing_pages_max(chosen, candidates) : chosen;
  const bool ahead = speculates(kind_, spec_.speculation);
  for (uint32_t layer = spec_.layers_dense; layer < layers_; ++layer) {
    const auto& rates = behaviour_.correction_q32;
    uint64_t correction = rates[std::min<size_t>(layer, rates.size() - 1)];
    if (spec_.tau_q32 > kOneQ32) correction = static_cast<uint64_t>(kOneQ32);  // a cosine is never above 1
    if (spec_.tau_q32 <= -kOneQ32) correction = 0;
    const auto& by_layer = behaviour_.miss_by_layer_q32;
    const uint64_t miss =
        by_layer.empty() ? behaviour_.miss_q32 : by_layer[std::min<size_t>(layer, by_layer.size() - 1)];
    const uint64_t misses_q32 = keeps ? chosen * miss : uint64_t{chosen} << 32;
    LayerRecall& recall = (*recalls)[layer];
    recall.heads += kv_heads_;
    recall.chosen += kv_heads_ * chosen;
    for (uint32_t head = 0; head < kv_heads_; ++head) {
      const uint64_t bits = draw({key, layer, head});
      const auto misses = static_cast<uint32_t>((misses_q32 + (bits >> 32)) >> 32);
      const uint32_t pages = std::min(misses, absent_max);
      const bool corrected = ahead && (bits & UINT32_MAX) < correction;
      recall.corrected += corrected ? 1 : 0;
      (ahead && !corrected ? recall.background : recall.blocking) += pages;
    }
  }
}

void RetrievalSource::notify(const Command& command) {
  const auto* drop = std::get_if<DropRequestState>(&command);
  if (drop == nullptr) return;
  if (drop->reason == DropRequestState::Reason::kPreempted) {
    ++attempts_[drop->request];
  } else {
    attempts_.erase(drop->request);
  }
}

}  // namespace kvtwin::sim
