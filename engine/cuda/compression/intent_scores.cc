#include "engine/cuda/compression/intent_scores.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/cuda/device/cuda_check.h"

namespace kvtwin::cuda {

void IntentScores::remember(SessionId session, const DeviceScorer& scores,
                            const DeviceScorer::State& captured, uint32_t tokens, cudaStream_t stream) {
  // Rotations are removed on the host.
  if (spec_.intent.memory_pre_rope)
    return memory_.remember(session, scores.fetch_queries(captured, stream), tokens);
  const uint64_t count = llm_.layers * width(), bytes = count * sizeof(float);
  grow(&numbers_, Buffer::Kind::kDevice, bytes, "memory of a session");
  grow(&numbers_host_, Buffer::Kind::kPinned, bytes, "memory of a session");
  const auto rows = static_cast<uint32_t>(captured.phases.size());
  const auto shape = [&] { return fmt::format("{} layers, {} rows", llm_.layers, rows); };
  must(intent_means(scores.queries(captured, 0), captured.room * width(), llm_.layers, rows,
                    static_cast<uint32_t>(width()), numbers_.as<float>(), stream),
       "intent_means", 0, shape);
  must(
      cudaMemcpyAsync(numbers_host_.as<float>(), numbers_.as<float>(), bytes, cudaMemcpyDeviceToHost, stream),
      "copy of mean queries", bytes, shape);
  must(cudaStreamSynchronize(stream), "mean queries of a prompt", 0, shape);
  memory_.remember_means(session, {numbers_host_.as<float>(), count});
}

void IntentScores::score(SessionId session, IntentScoreArgs what, const Target& to,
                         const std::function<void(uint32_t layer)>& open, cudaStream_t stream) {
  const auto shape = [&] { return fmt::format("{} layers, {} rows", llm_.layers, what.rows); };
  const std::vector<cpu::IntentMemory::ByLayer>* const turns = memory_.find(session);
  if (turns == nullptr) {  // no memory: the newest are retained
    const uint64_t bytes = to.copies * to.stride * sizeof(float);
    return must(cudaMemsetAsync(to.scores, 0, bytes, stream), "scores of a session without a memory", bytes);
  }
  const uint64_t each = llm_.layers * width(), bytes = turns->size() * each * sizeof(float);
  grow(&numbers_, Buffer::Kind::kDevice, bytes, "memory of a session");
  grow(&numbers_host_, Buffer::Kind::kPinned, bytes, "memory of a session");
  float* next = numbers_host_.as<float>();
  for (const cpu::IntentMemory::ByLayer& turn : *turns) {
    for (const std::vector<float>& layer : turn) next = std::copy(layer.begin(), layer.end(), next);
  }
  must(
      cudaMemcpyAsync(numbers_.as<float>(), numbers_host_.as<float>(), bytes, cudaMemcpyHostToDevice, stream),
      "copy of a session's memory", bytes, shape);
  what.scale = 1 / (std::sqrt(static_cast<float>(llm_.head_dim)) * spec_.intent.temperature);
  what.layers = llm_.layers, what.query_heads = llm_.query_heads, what.kv_heads = llm_.kv_heads;
  grow(&workspace_, Buffer::Kind::kDevice, intent_floats(what) * sizeof(float), "logits of IntentKV's rule");
  what.workspace = workspace_.as<float>();
  for (size_t turn = 0; turn < turns->size(); ++turn) {
    what.memory = numbers_.as<float>() + turn * each;
    for (uint32_t l = 0; open && l < llm_.layers; ++l) {
      open(l);
      must(intent_layers(what, l, 1, stream), "intent_layers", 0, shape);
    }
    if (!open) must(intent_layers(what, 0, llm_.layers, stream), "intent_layers", 0, shape);
    must(intent_scores(what, memory_.factor(turn, turns->size()), turn > 0, to.scores, to.stride, to.copies,
                       stream),
         "intent_scores", 0, shape);
  }
}

}  // namespace kvtwin::cuda
