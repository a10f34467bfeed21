#include "engine/cpu/cpu_engine.h"

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "engine/base/check.h"
#include "engine/base/prng.h"
#include "kernels/argmax.h"

namespace kvtwin::cpu {

// Dense attention: all KV of the step is written before any is read, so that a call may read pages that
// another call of the same step fills.
class CpuEngine::PagedAttention final : public LayerAttention {
 public:
  PagedAttention(const Forward& forward, const Batch& batch, const KvStore& kv)
      : llm_(forward.llm()), rope_{forward.rope().inverse, forward.rope().scale}, batch_(batch), kv_(kv) {}

  void attend(uint32_t layer, float* q, float* k, const float* v, float* out) override {
    const kernels::KvPages pages = kv_.layer(layer);
    kernels::rope_append_ref(rope_, batch_.appends, llm_.query_heads, q, k, v, pages);
    const float scale = 1.0f / std::sqrt(static_cast<float>(llm_.head_dim));
    kernels::attention_ref(pages, {0, llm_.kv_heads}, llm_.query_heads, scale, q, batch_.reads, out, nullptr);
  }

 private:
  const LlmSpec& llm_;
  const kernels::RopeTable rope_;
  const Batch& batch_;
  const KvStore& kv_;
};

void CpuEngine::Batch::clear() {
  tokens.clear();
  appends.clear();
  reads.clear();
  sampling.clear();
}

Result<std::unique_ptr<CpuEngine>> CpuEngine::make(const CpuEngineConfig& config, const ModelWeights* weights,
                                                   const TokenIds* tokens) {
  Result<KvStore> kv =
      KvStore::make(weights->llm(), config.page_tokens, uint64_t{config.pages_gpu} + config.pages_host);
  if (!kv) return tl::unexpected<Mistake>(kv.error());
  return std::unique_ptr<CpuEngine>(new CpuEngine(config, weights, tokens, std::move(*kv)));
}

void CpuEngine::step(const LaunchStep& launch, uint32_t offset, StepValues* values) {
  KVT_CHECK(launch.engine == config_.engine);
  KVT_CHECK(offset < launch.repeat);
  KVT_CHECK(launch.compressions.empty());  // of other layouts than this one
  values->clear();
  take_pages(launch, offset);
  batch_.clear();
  samples_.clear();
  for (PlanEntry entry : launch.entries) {
    entry.context += offset;
    add_entry(entry);
  }
  PagedAttention attention(forward_, batch_, kv_);
  forward_.run(batch_.tokens, batch_.sampling, &attention, &logits_);
  tokens_computed_ += batch_.tokens.size();
  size_t sampled = 0;
  for (PlanEntry entry : launch.entries) {
    entry.context += offset;
    if (entry.samples) take_sample(entry, sampled++, values);
  }
}

void CpuEngine::take_pages(const LaunchStep& launch, uint32_t offset) {
  const auto whole = [&](PageId page) { return kernels::ReadRun{raw(page), 0, config_.page_tokens}; };
  if (offset == 0) {
    for (const PlanEntry& entry : launch.entries) {
      if (entry.first) calls_[entry.call].pages.clear();
    }
    for (const Adoption& adoption : launch.adoptions) {
      for (const PageId page : adoption.pages) calls_[adoption.call].pages.push_back(whole(page));
    }
  }
  for (const PageGrant& grant : launch.grants) {
    if (grant.offset != offset) continue;
    if (config_.poison) kv_.poison(grant.page);
    KVT_CHECK(raw(grant.page) < config_.pages_gpu);
    calls_[launch.entries[grant.entry].call].pages.push_back(whole(grant.page));
  }
}

void CpuEngine::add_entry(const PlanEntry& entry) {
  KVT_CHECK(entry.kind == EntryKind::kChunk || entry.kind == EntryKind::kDecode);
  const Call& call = calls_.at(entry.call);
  KVT_CHECK(uint64_t{entry.context} + entry.tokens <= call.pages.size() * uint64_t{config_.page_tokens});
  for (uint32_t i = 0; i < entry.tokens; ++i) {
    const uint32_t position = entry.context + i;
    batch_.tokens.push_back(input_token(entry.call, call, position));
    batch_.appends.push_back(
        {position, call.pages[position / config_.page_tokens].page, position % config_.page_tokens});
    batch_.reads.push_back({call.pages, position + 1});
  }
  if (entry.samples) batch_.sampling.push_back(static_cast<uint32_t>(batch_.tokens.size()) - 1);
}

uint32_t CpuEngine::input_token(CallId call, const Call& state, uint32_t position) const {
  const uint32_t prompt = tokens_->prompt_tokens(call);
  if (config_.decoding == Decoding::kForced || position < prompt) return tokens_->token(call, position);
  KVT_CHECK(position - prompt < state.sampled.size());
  return state.sampled[position - prompt];
}

void CpuEngine::take_sample(const PlanEntry& entry, size_t index, StepValues* values) {
  const uint32_t vocab = forward_.llm().vocab;
  const uint32_t token = kernels::argmax_ref(logits_.data() + index * vocab, vocab);
  const uint32_t position = entry.context + entry.tokens;
  samples_.push_back({entry.call, position, token});
  std::vector<uint32_t>& sampled = calls_.at(entry.call).sampled;
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
  if (const auto* transfer = std::get_if<StartTransfer>(&command)) {
    KVT_CHECK(transfer->source.size() == transfer->target.size());
    for (size_t i = 0; i < transfer->source.size(); ++i) kv_.copy(transfer->source[i], transfer->target[i]);
  }
  const auto* drop = std::get_if<DropCallState>(&command);
  // A preempted call comes back: it begins a new page table, and goes on with what it sampled.
  if (drop == nullptr || drop->reason == DropCallState::Reason::kPreempted) return;
  const auto call = calls_.find(drop->call);
  if (call == calls_.end()) return;                     // it never ran
  uint64_t hash = draw({call->second.sampled.size()});  // not the id: it may depend on times
  for (const uint32_t token : call->second.sampled) hash = draw({hash, token});
  samples_digest_ += hash;
  calls_.erase(call);
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
