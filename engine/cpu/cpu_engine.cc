#include "engine/cpu/cpu_engine.h"

#include <type_traits>

#include "engine/base/check.h"
#include "kernels/dense/argmax.h"

namespace kvtwin::cpu {

void CpuEngine::step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) {
  KVT_CHECK(launch.engine == engine_);
  KVT_CHECK(offset < launch.repeat);
  values->clear();
  entries_.assign(launch.entries.begin(), launch.entries.end());
  inputs_.clear();
  sampling_.clear();
  samples_.clear();
  for (PlanEntry& entry : entries_) {
    entry.context += offset;
    add_entry(entry);
  }
  cache_->begin(launch, offset, entries_);
  logits_.clear();
  if (!inputs_.empty()) forward_.run(inputs_, sampling_, cache_.get(), &logits_);
  cache_->end(launch, offset, entries_, values);
  for (const LayerRecall& recall : values->recalls) {
    recalled_.blocking += recall.blocking, recalled_.background += recall.background;
    recalled_.corrected += recall.corrected;
    recalled_.heads += recall.heads, recalled_.chosen += recall.chosen;
  }
  tokens_computed_ += inputs_.size();
  size_t sampled = 0;
  for (const PlanEntry& entry : entries_) {
    if (entry.samples) take_sample(entry, sampled++, values);
  }
}

void CpuEngine::add_entry(const PlanEntry& entry) {
  for (uint32_t i = 0; i < entry.stored(); ++i)
    inputs_.push_back(tokens_.input(entry.request, entry.context + i));
  if (entry.samples) sampling_.push_back(static_cast<uint32_t>(inputs_.size()) - 1);
}

void CpuEngine::take_sample(const PlanEntry& entry, size_t index, DataOutcomes* values) {
  const uint32_t vocab = forward_.llm().vocab;
  const uint32_t token = kernels::argmax_ref(logits_.data() + index * vocab, vocab);
  samples_.push_back({entry.request, entry.context + entry.tokens, token});
  if (tokens_.sampled(entry, token)) values->eos.push_back(entry.request);
}

void CpuEngine::notify(const Command& command) {
  cache_->notify(command);
  if (const auto* drop = std::get_if<DropRequestState>(&command)) tokens_.dropped(*drop);
}

void EngineSources::step(const LaunchStep& launch, uint32_t offset, DataOutcomes* values) {
  engines_.at(raw(launch.engine))->step(launch, offset, values);
}

void EngineSources::notify(const Command& command) {
  std::visit(
      [&](const auto& c) {
        using Kind = std::remove_cvref_t<decltype(c)>;
        if constexpr (std::is_same_v<Kind, StartTransfer> || std::is_same_v<Kind, DropRequestState> ||
                      std::is_same_v<Kind, DropSessionState>) {
          engines_.at(raw(c.engine))->notify(command);
        }
      },
      command);
}

}  // namespace kvtwin::cpu
