#include "engine/methods/probe_passes.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/units.h"
#include "engine/methods/registry.h"

namespace kvtwin {

ProbePasses ProbePasses::of_soft_tokens(uint32_t tokens) {
  ProbePasses out;
  out.soft_tokens_ = tokens;
  return out;
}

ProbePasses ProbePasses::of_repeats(const ScorerSpec& spec, uint32_t sinks) {
  KVT_CHECK(spec.repeat_tokens > 0);
  ProbePasses out;
  out.repeat_tokens_ = spec.repeat_tokens;
  out.tail_ = spec.repeat_tail;
  out.instruction_ = spec.repeat_instruction;
  out.sinks_ = sinks;
  return out;
}

ProbePasses ProbePasses::by_chunk(uint32_t chunk_tokens, uint32_t window) const {
  ProbePasses out = *this;
  out.chunk_tokens_ = chunk_tokens;
  out.window_ = window;
  return out;
}

uint32_t ProbePasses::begin(uint32_t tokens) const {
  if (chunk_tokens_ == 0 || tokens == 0) return sinks_;
  const uint32_t chunk = (tokens - 1) / chunk_tokens_ * chunk_tokens_;
  return std::max(sinks_, chunk - std::min(chunk, window_));
}

uint32_t ProbePasses::count(uint32_t tokens) const {
  if (soft_tokens_ > 0) return 1;
  return repeat_tokens_ == 0 ? 0 : div_ceil(tokens - std::min(begin(tokens), tokens), repeat_tokens_);
}

ProbePass ProbePasses::at(uint32_t tokens, uint32_t index) const {
  KVT_CHECK(index < count(tokens));
  ProbePass out;
  out.first = index == 0;
  out.end = out.repeated = tokens;
  if (soft_tokens_ > 0) return out;
  out.begin = begin(tokens) + index * repeat_tokens_;
  out.end = out.begin + std::min(repeat_tokens_, tokens - out.begin);
  out.repeated = out.begin - std::min(tail_, out.begin - sinks_);
  return out;
}

uint32_t ProbePasses::tokens_max() const {
  return soft_tokens_ + repeat_tokens_ + instruction_ + (repeat_tokens_ > 0 ? tail_ : 0);
}

ProbePasses probe_passes(const PolicySet& set) {
  const PolicyAxes axes = make_axes(set);
  return axes.budget->keeps_all() ? ProbePasses() : axes.scorer->passes(set.budget_spec.sinks);
}

}  // namespace kvtwin
