#include "kernels/scoring/score_external.h"

#include "engine/base/check.h"
#include "kernels/scoring/score.h"
#include "kernels/scoring/scorer_option.h"

namespace kvtwin::kernels {
namespace {

constexpr ScorerOption kExternalOptions[] = {option(
    "query_tokens", 1, 65'536, [](auto& s) -> auto& { return s.window.window; })};

void score_external(const ScoreSpec& spec, const ScoreInputs& in, ScoreView out) {
  KVT_CHECK(spec.external != nullptr);
  spec.external->score(in, out);  // its exceptions end the run
}

}  // namespace

extern const ScorerDefinition kExternal{
    .name = "external",
    .source = ScoreSource::kWindowQueries,
    .captures = capture::kKeys | capture::kValues | capture::kWindowQueries,
    .score = score_external,
    .options = kExternalOptions,
    .external = true};

}  // namespace kvtwin::kernels
