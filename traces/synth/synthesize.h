// Synthesisers: agent traces drawn from a recipe, for workloads whose data nobody may publish
// (docs/design/trace-formats.md#synthetic) and for a trace that can be shipped. Everything in them is
// SYNTHESISED; the header carries recipe, parameters and seed, so that the trace can be made again, to the
// byte.

#ifndef KVTWIN_TRACES_SYNTH_SYNTHESIZE_H_
#define KVTWIN_TRACES_SYNTH_SYNTHESIZE_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/base/result.h"
#include "traces/format/sink.h"

namespace kvtwin {

// One parameter of a recipe. All are integers; the unit says what they count.
struct SynthParam {
  std::string name;
  std::string unit;
  std::string description;
  int64_t value = 0;  // when not given
  int64_t low = 0;
  int64_t high = 0;
};

struct SynthRecipeInfo {
  std::string name;
  std::string description;
  std::string fitted_on;
  std::vector<SynthParam> params;
};

struct SynthOptions {
  std::string recipe;
  uint64_t sessions = 0;
  uint64_t seed = 0;
  std::map<std::string, std::string> params;  // name -> integer, for those that differ from the default
};

// Every recipe with its parameters, in the order in which help lists them.
std::vector<SynthRecipeInfo> synth_recipes();

// Pushes header, shared tables, sessions and done() into `sink`. A wrong recipe, parameter or count is a
// Error that names the choices; so is whatever the sink returns.
Result<void> synthesize(const SynthOptions& options, TraceSink* sink);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_SYNTH_SYNTHESIZE_H_
