// Scores that are computed outside of kvtwin: by a program, or by a function of the process that embeds it.

#ifndef KVTWIN_KERNELS_SCORING_SCORE_EXTERNAL_H_
#define KVTWIN_KERNELS_SCORING_SCORE_EXTERNAL_H_

#include "kernels/common/view.h"

namespace kvtwin::kernels {

struct ScoreInputs;

class ExternalScorer {
 public:
  virtual ~ExternalScorer() = default;
  // Scores the entries of one layer: `in` has keys, values, positions and the queries of the window. Every
  // number of out [H][T] is written; higher scores are retained. Throws an exception, which ends the run, if
  // there are no scores.
  virtual void score(const ScoreInputs& in, ScoreView out) = 0;
};

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_SCORE_EXTERNAL_H_
