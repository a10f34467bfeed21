#include "engine/calibrate/step_pace.h"

#include <algorithm>

namespace kvtwin::cuda {
namespace {

// What products of bf16 and reads of weights reach on Hopper, beside the rest of a step.
constexpr double kFlopsPerUs = 630e6, kBytesPerUs = 3.0e6;
constexpr double kBytesPerWeight = 2;
// How long measurements of decodes take: 6, 14 and 6 steps of a model of 8 billion parameters.
constexpr double kWarmUs = 35e3, kDecodesUs = 75e3, kSinglesUs = 31e3;

uint32_t rounds(double time_us, double step_us, double least, double most) {
  return static_cast<uint32_t>(std::clamp(time_us / step_us, least, most));
}

}  // namespace

StepPace::StepPace(const LlmSpec& llm) {
  const WeightBytes bytes = weight_bytes(llm, 1);
  const double of_layers = bytes.attention + bytes.mlp;
  const double of_logits = llm.tied_embeddings ? bytes.embedding : bytes.lm_head;
  weights_us_ = (of_layers + of_logits) / kBytesPerUs;
  token_us_ = 2 * of_layers / kBytesPerWeight / kFlopsPerUs;
}

double StepPace::us(uint32_t tokens) const { return std::max(weights_us_, tokens * token_us_); }

StepRounds StepPace::chunks(uint32_t tokens) const {
  return {1 + static_cast<uint32_t>(kLoadWindowUs / us(tokens)), rounds(kShortBusyUs, us(tokens), 3, 14)};
}

StepRounds StepPace::decodes() const {
  return {rounds(kWarmUs, weights_us_, 3, 6), rounds(kDecodesUs, weights_us_, 6, 14)};
}

uint32_t StepPace::singles() const { return rounds(kSinglesUs, weights_us_, 3, 6); }

}  // namespace kvtwin::cuda
