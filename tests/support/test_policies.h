// Policies that only tests use: a scorer for each compression trigger, absent from the registry.

#ifndef KVTWIN_TESTS_SUPPORT_TEST_POLICIES_H_
#define KVTWIN_TESTS_SUPPORT_TEST_POLICIES_H_

#include <memory>
#include <utility>

#include "engine/methods/registry.h"

namespace kvtwin::testing {

class TestScorer final : public Scorer {
 public:
  TestScorer(CompressionTrigger compression_trigger, Causality causality, const ProbePasses& passes = {})
      : compression_trigger_(compression_trigger), causality_(causality), passes_(passes) {}
  CompressionTrigger compression_trigger() const override { return compression_trigger_; }
  Causality causality() const override { return causality_; }
  ProbePasses passes(uint32_t) const override { return passes_; }
  bool needs_all_layers() const override { return false; }

 private:
  const CompressionTrigger compression_trigger_;
  const Causality causality_;
  const ProbePasses passes_;
};

// config's policies with a scorer that runs at `compression_trigger`, after `passes`.
inline PolicyAxes axes_with_scorer(const CoreConfig& config, CompressionTrigger compression_trigger,
                                   const ProbePasses& passes = {}) {
  PolicyAxes axes = make_axes(config.policies);
  const bool closed = compression_trigger == CompressionTrigger::kChunkEnd ||
                      compression_trigger == CompressionTrigger::kAtNoTime;
  axes.scorer = std::make_unique<TestScorer>(
      compression_trigger, closed ? Causality::kPrefixClosed : Causality::kSuffixDependent, passes);
  return axes;
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_TEST_POLICIES_H_
