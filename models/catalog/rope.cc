#include "models/catalog/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "engine/base/check.h"

namespace kvtwin {
namespace {

// Long wavelengths are stretched by `factor`, short ones unchanged, those between blended.
double llama3(const RopeSpec& rope, double frequency) {
  const double window = rope.original_context_window;
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < window / rope.high_freq_factor) return frequency;
  if (wavelength > window / rope.low_freq_factor) return frequency / rope.factor;
  const double smooth =
      (window / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return (1 - smooth) * frequency / rope.factor + smooth * frequency;
}

// The pair that rotates `turns` times within the original window.
double yarn_pair(const RopeSpec& rope, double dim, double turns) {
  return dim * std::log(rope.original_context_window / (turns * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

void yarn(const RopeSpec& rope, uint32_t dim, std::vector<double>* frequencies) {
  double low = yarn_pair(rope, dim, rope.beta_fast), high = yarn_pair(rope, dim, rope.beta_slow);
  if (rope.truncate) low = std::floor(low), high = std::ceil(high);
  low = std::max(low, 0.0);
  high = std::min(high, static_cast<double>(dim - 1));
  if (low == high) high += 0.001;  // a ramp of no width would divide by zero
  for (size_t i = 0; i < frequencies->size(); ++i) {
    const double stretched = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    double& frequency = (*frequencies)[i];
    frequency = frequency / rope.factor * stretched + frequency * (1 - stretched);
  }
}

}  // namespace

RopeFrequencies rope_frequencies(const LlmSpec& llm) {
  const RopeSpec& rope = llm.rope;
  KVT_CHECK(llm.head_dim % 2 == 0);
  std::vector<double> frequencies(llm.head_dim / 2);
  for (size_t i = 0; i < frequencies.size(); ++i)
    frequencies[i] = std::pow(rope.theta, -2.0 * static_cast<double>(i) / llm.head_dim);
  RopeFrequencies out;
  if (rope.scaling == "linear") {
    for (double& frequency : frequencies) frequency /= rope.factor;
  } else if (rope.scaling == "llama3") {
    for (double& frequency : frequencies) frequency = llama3(rope, frequency);
  } else if (rope.scaling == "yarn") {
    yarn(rope, llm.head_dim, &frequencies);
    const double factor = rope.attention_factor > 0 ? rope.attention_factor : 0.1 * std::log(rope.factor) + 1;
    out.scale = static_cast<float>(factor);
  } else {
    KVT_CHECK(rope.scaling.empty());
  }
  for (const double frequency : frequencies) out.inverse.push_back(static_cast<float>(frequency));
  return out;
}

}  // namespace kvtwin
