#include "engine/cuda/compression/intent_scores.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/cuda/device/cuda_check.h"

namespace kvtwin::cuda {

IntentScores::IntentScores(const kernels::ScoreSpec& spec, const LlmSpec* llm,
                           const cpu::ScorerWeights* weights)
    : spec_(spec),
      llm_(*llm),
      rope_(rope_frequencies(*llm)),
      residual_(weights->residual),
      memory_(spec, llm, &rope_, weights) {
  if (!corrects()) return;
  const std::vector<float> all = intent_residual_weights(residual_);
  const uint64_t bytes = all.size() * sizeof(float);
  grow(&residual_on_, Buffer::Kind::kDevice, bytes, "weights of IntentKV's residual");
  must(cudaMemcpy(residual_on_.as<float>(), all.data(), bytes, cudaMemcpyHostToDevice),
       "copy of the residual's weights", bytes);
}

void IntentScores::remember(SessionId session, const DeviceScorer& scores,
                            const DeviceScorer::State& captured, uint32_t tokens, cudaStream_t stream) {
  // Rotations are removed on the host.
  if (spec_.intent.memory_pre_rope)
    return memory_.remember(session, scores.fetch_queries(captured, stream), tokens);
  const uint64_t count = llm_.layers * width(), bytes = count * sizeof(float);
  reserve_numbers(1);
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

void IntentScores::reserve(uint32_t rows) {
  reserve_numbers(1);
  IntentScoreArgs what;
  what.rows = rows;
  what = sized(what);
  if (corrects()) residual_args(what, {}, nullptr);
}

void IntentScores::reserve_numbers(uint64_t turns) {
  const uint64_t bytes = (turns * llm_.layers * width() + llm_.head_dim) * sizeof(float);
  grow(&numbers_, Buffer::Kind::kDevice, bytes, "memory of a session");
  grow(&numbers_host_, Buffer::Kind::kPinned, bytes, "memory of a session");
}

IntentScoreArgs IntentScores::sized(IntentScoreArgs what) {
  what.layers = llm_.layers, what.query_heads = llm_.query_heads, what.kv_heads = llm_.kv_heads;
  grow(&workspace_, Buffer::Kind::kDevice, intent_floats(what) * sizeof(float), "logits of IntentKV's rule");
  what.workspace = workspace_.as<float>();
  return what;
}

// The turns' memories, oldest first, and what the residual takes of the newest.
void IntentScores::send_memory(const std::vector<cpu::IntentMemory::ByLayer>& turns, cudaStream_t stream) {
  const uint64_t count = turns.size() * llm_.layers * width() + llm_.head_dim, bytes = count * sizeof(float);
  reserve_numbers(turns.size());
  float* next = numbers_host_.as<float>();
  for (const cpu::IntentMemory::ByLayer& turn : turns) {
    for (const std::vector<float>& layer : turn) next = std::copy(layer.begin(), layer.end(), next);
  }
  const std::span<float> mbar(next, llm_.head_dim);
  std::fill(mbar.begin(), mbar.end(), 0.0f);
  for (uint32_t l = 0; corrects() && l < llm_.layers; ++l)
    kernels::intent_add_memory(llm_.layers, llm_.query_heads, turns.back()[l], mbar);
  must(
      cudaMemcpyAsync(numbers_.as<float>(), numbers_host_.as<float>(), bytes, cudaMemcpyHostToDevice, stream),
      "copy of a session's memory", bytes, [&] { return fmt::format("{} turns", turns.size()); });
}

IntentResidualArgs IntentScores::residual_args(const IntentScoreArgs& rule, const Asked& asked,
                                               const float* mbar) {
  IntentResidualArgs out;
  out.rule = rule, out.weights = residual_on_.as<float>(), out.mbar = mbar;
  out.b2 = residual_.b2, out.gain = std::clamp(residual_.gain, 0.0f, residual_.gain_max);
  out.cross_attention = residual_.cross_attention;
  out.span_begin = asked.span.begin, out.span_end = asked.span.end, out.candidates = asked.candidates;
  out.norm = spec_.rule_norm;
  grow(&residual_workspace_, Buffer::Kind::kDevice, intent_residual_floats(out) * sizeof(float),
       "mean keys of IntentKV's residual");
  out.workspace = residual_workspace_.as<float>();
  return out;
}

void IntentScores::score(SessionId session, IntentScoreArgs what, const Asked& asked, const Target& to,
                         const std::function<void(uint32_t layer)>& open, cudaStream_t stream) {
  const auto shape = [&] { return fmt::format("{} layers, {} rows", llm_.layers, what.rows); };
  const std::vector<cpu::IntentMemory::ByLayer>* const turns = memory_.find(session);
  if (turns == nullptr) {  // no memory: the newest are retained
    const uint64_t bytes = to.copies * to.stride * sizeof(float);
    return must(cudaMemsetAsync(to.scores, 0, bytes, stream), "scores of a session without a memory", bytes);
  }
  send_memory(*turns, stream);
  what.scale = 1 / (std::sqrt(static_cast<float>(llm_.head_dim)) * spec_.intent.temperature);
  what = sized(what);
  const uint64_t each = llm_.layers * width();
  IntentResidualArgs residual;
  if (corrects()) residual = residual_args(what, asked, numbers_.as<float>() + turns->size() * each);
  for (size_t turn = 0; turn < turns->size(); ++turn) {
    what.memory = numbers_.as<float>() + turn * each;
    const bool sums_keys = corrects() && turn == 0;
    const auto layers = [&](uint32_t first, uint32_t count) {
      must(intent_layers(what, first, count, stream), "intent_layers", 0, shape);
      if (sums_keys) must(intent_key_sums(residual, first, count, stream), "intent_key_sums", 0, shape);
    };
    for (uint32_t l = 0; open && l < llm_.layers; ++l) open(l), layers(l, 1);
    if (!open) layers(0, llm_.layers);
    must(intent_scores(what, memory_.factor(turn, turns->size()), turn > 0, to.scores, to.stride,
                       corrects() ? 1 : to.copies, stream),
         "intent_scores", 0, shape);
  }
  if (corrects())
    must(intent_correct_scores(residual, to.scores, to.stride, to.copies, stream), "intent_correct_scores", 0,
         shape);
}

}  // namespace kvtwin::cuda
