#include "kernels/scoring/score_external.h"

#include <cstdio>
#include <cstdlib>
#include <exception>

#include "engine/base/check.h"
#include "kernels/scoring/score.h"
#include "kernels/scoring/scorer_option.h"

namespace kvtwin::kernels {
namespace {

constexpr ScorerOption kExternalOptions[] = {option(
    "query_tokens", 1, 65'536, [](auto& s) -> auto& { return s.window.window; })};

constexpr int kExitEnvironment = 3;  // docs/reference/exit-codes.md

// An engine cannot go on without scores, and no exception can leave the thread of a simulated clock, so a
// scorer that fails ends the process with its message.
void score_external(const ScoreSpec& spec, const ScoreInputs& in, ScoreView out) {
  KVT_CHECK(spec.external != nullptr);
  try {
    spec.external->score(in, out);
  } catch (const std::exception& error) {
    std::fflush(stdout);
    std::fprintf(stderr, "%s\n", error.what());
    std::_Exit(kExitEnvironment);
  }
}

}  // namespace

const ScorerDefinition kExternal{.name = "external",
                                 .source = ScoreSource::kWindowQueries,
                                 .captures = capture::kKeys | capture::kValues | capture::kWindowQueries,
                                 .score = score_external,
                                 .options = kExternalOptions,
                                 .external = true};

}  // namespace kvtwin::kernels
