#include "engine/cpu/cpu_engine.h"

#include <algorithm>
#include <type_traits>

#include "engine/base/check.h"
#include "engine/base/prng.h"
#include "kernels/argmax.h"

namespace kvtwin::cpu {

void CpuEngine::step(const LaunchStep& launch, uint32_t offset, StepValues* values) {
  KVT_CHECK(launch.engine == config_.engine);
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
  forward_.run(inputs_, sampling_, cache_.get(), &logits_);
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
  for (uint32_t i = 0; i < entry.tokens; ++i) inputs_.push_back(input_token(entry.call, entry.context + i));
  if (entry.samples) sampling_.push_back(static_cast<uint32_t>(inputs_.size()) - 1);
}

uint32_t CpuEngine::input_token(CallId call, uint32_t position) {
  const uint32_t prompt = tokens_->prompt_tokens(call);
  if (config_.decoding == Decoding::kForced || position < prompt) return tokens_->token(call, position);
  const std::vector<uint32_t>& sampled = sampled_[call];
  KVT_CHECK(position - prompt < sampled.size());
  return sampled[position - prompt];
}

void CpuEngine::take_sample(const PlanEntry& entry, size_t index, StepValues* values) {
  const uint32_t vocab = forward_.llm().vocab;
  const uint32_t token = kernels::argmax_ref(logits_.data() + index * vocab, vocab);
  const uint32_t position = entry.context + entry.tokens;
  samples_.push_back({entry.call, position, token});
  std::vector<uint32_t>& sampled = sampled_[entry.call];
  KVT_CHECK(position >= tokens_->prompt_tokens(entry.call));
  const uint32_t output = position - tokens_->prompt_tokens(entry.call);
  // A preempted call samples again what a step in flight sampled behind its back.
  KVT_CHECK(output <= sampled.size());
  sampled.resize(output);
  sampled.push_back(token);
  const std::vector<uint32_t>& ends = config_.end_tokens;
  if (config_.decoding == Decoding::kGreedy && std::find(ends.begin(), ends.end(), token) != ends.end())
    values->eos.push_back(entry.call);
}

void CpuEngine::told(const Command& command) {
  cache_->told(command);
  const auto* drop = std::get_if<DropCallState>(&command);
  // A preempted call comes back, and goes on with what it sampled.
  if (drop == nullptr || drop->reason == DropCallState::Reason::kPreempted) return;
  const auto call = sampled_.find(drop->call);
  if (call == sampled_.end()) return;           // it never sampled
  uint64_t hash = draw({call->second.size()});  // not the id: it may depend on times
  for (const uint32_t token : call->second) hash = draw({hash, token});
  samples_digest_ += hash;
  sampled_.erase(call);
}

void EngineSources::step(const LaunchStep& launch, uint32_t offset, StepValues* values) {
  engines_.at(raw(launch.engine))->step(launch, offset, values);
}

void EngineSources::told(const Command& command) {
  std::visit(
      [&](const auto& c) {
        using Kind = std::remove_cvref_t<decltype(c)>;
        if constexpr (std::is_same_v<Kind, StartTransfer> || std::is_same_v<Kind, DropCallState> ||
                      std::is_same_v<Kind, DropSessionState>) {
          engines_.at(raw(c.engine))->told(command);
        }
      },
      command);
}

}  // namespace kvtwin::cpu
