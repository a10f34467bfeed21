// What a request must compute: the logits of the CPU engine for it alone, one token a step.

#ifndef KVTWIN_TESTS_CONFORMANCE_ENGINES_DEFINITION_H_
#define KVTWIN_TESTS_CONFORMANCE_ENGINES_DEFINITION_H_

#include <doctest/doctest.h>

#include <span>
#include <vector>

#include "tests/conformance/engines/tested_engine.h"
#include "tests/unit/cpu_engine/steps.h"
#include "tests/unit/cpu_engine/tiny_models.h"

namespace kvtwin::testing {

class Definition {
 public:
  // `ids` are all input tokens of the request.
  Definition(const ModelWeights& weights, const std::vector<uint32_t>& ids) : llm_(weights.llm()) {
    constexpr RequestId kAlone{1};
    GivenTokens tokens;
    tokens.give(kAlone, ids, 1);
    Steps steps({.page_tokens = 16, .pages_gpu = static_cast<uint32_t>(ids.size() / 16 + 1), .poison = true},
                &weights, &tokens, 0);
    steps.begin(kAlone);
    logits_ = steps.run({{kAlone, 1}});
    if (ids.size() == 1) return;
    const std::vector<float> others = steps.run({{kAlone, 1}}, static_cast<uint32_t>(ids.size() - 1));
    logits_.insert(logits_.end(), others.begin(), others.end());
  }
  // The logits of the token at `position`: they follow the input of tokens [0, position).
  std::span<const float> at(uint32_t position) const {
    return std::span(logits_).subspan((position - 1) * size_t{llm_.vocab}, llm_.vocab);
  }
  // Checks logits of the token at `position`, as exactly as the tested engine computes.
  double check(std::span<const float> got, uint32_t position) const {
    CAPTURE(llm_.family);
    CAPTURE(llm_.head_dim);
    CAPTURE(position);
    const double error = relative_error(got, at(position));
    CHECK(error <= tolerance(llm_));
    return error;
  }

 private:
  const LlmSpec llm_;
  std::vector<float> logits_;  // [tokens][vocab]
};

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_CONFORMANCE_ENGINES_DEFINITION_H_
