// Synthesisers: agent traces drawn from a recipe, for workloads whose data cannot be published
// (docs/design/trace-formats.md#synthetic), and for a trace that can be shipped. Everything in them is
// SYNTHESISED. The header has recipe, parameters and seed, so that the trace can be made again, byte for
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

// One parameter of a recipe: an integer, in the given unit.
struct SynthParam {
  std::string name;
  std::string unit;
  std::string description;
  int64_t value = 0;  // default
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
  std::map<std::string, std::string> params;  // name -> integer; others have their defaults
};

// Every recipe with its parameters, in the order of the help text.
std::vector<SynthRecipeInfo> synth_recipes();

// Pushes header, shared tables, sessions and done() into `sink`. An invalid recipe, parameter or count is an
// Error that names the choices; errors of the sink are returned.
Result<void> synthesize(const SynthOptions& options, TraceSink* sink);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_SYNTH_SYNTHESIZE_H_
