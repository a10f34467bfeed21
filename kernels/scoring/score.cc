#include "kernels/scoring/score.h"

#include "engine/base/check.h"

namespace kvtwin::kernels {

ScoreSpec score_spec(std::string_view scorer) {
  ScoreSpec spec;
  spec.scorer = find_scorer(scorer);
  KVT_CHECK(spec.scorer != nullptr);
  if (spec.scorer->set_defaults != nullptr) spec.scorer->set_defaults(&spec);
  return spec;
}

void score_entries(const ScoreSpec& spec, const ScoreInputs& in, ScoreView out) {
  spec.scorer->score(spec, in, out);
}

void finish_scores(const ScoreSpec& spec, std::span<const float> corrections, ScoreView out) {
  if (!spec.scorer->scores_tokens()) return;
  const std::span<float> scores = out.row(0);
  intent_normalise(spec.rule_norm, scores);
  if (corrections.empty()) return;
  KVT_CHECK(corrections.size() == scores.size());
  for (size_t p = 0; p < scores.size(); ++p) scores[p] += corrections[p];
}

}  // namespace kvtwin::kernels
