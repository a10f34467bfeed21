// Policies that only tests have: a scorer for each moment, without a name in the registry.

#ifndef KVTWIN_TESTS_SUPPORT_TEST_POLICIES_H_
#define KVTWIN_TESTS_SUPPORT_TEST_POLICIES_H_

#include <memory>
#include <utility>

#include "engine/policy/registry.h"

namespace kvtwin::testing {

class TestScorer final : public Scorer {
 public:
  TestScorer(Moment moment, Causality causality) : moment_(moment), causality_(causality) {}
  Moment moment() const override { return moment_; }
  Causality causality() const override { return causality_; }
  uint32_t probe_rows() const override { return 0; }
  bool needs_all_layers() const override { return false; }

 private:
  const Moment moment_;
  const Causality causality_;
};

// config's policies with a scorer that works at `moment`.
inline PolicyAxes axes_with_scorer(const CoreConfig& config, Moment moment) {
  PolicyAxes axes = make_axes(config.policies);
  const bool closed = moment == Moment::kChunkEnd || moment == Moment::kAtNoTime;
  axes.scorer =
      std::make_unique<TestScorer>(moment, closed ? Causality::kPrefixClosed : Causality::kSuffixDependent);
  return axes;
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_SUPPORT_TEST_POLICIES_H_
