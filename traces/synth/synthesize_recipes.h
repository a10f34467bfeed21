// A recipe as traces/synth/synthesize.cc uses it: parameters and two functions. A new recipe is a .cc file
// with an entry here and a line in kRecipes.

#ifndef KVTWIN_TRACES_SYNTH_SYNTHESIZE_RECIPES_H_
#define KVTWIN_TRACES_SYNTH_SYNTHESIZE_RECIPES_H_

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "traces/format/session_builder.h"
#include "traces/synth/synthesize.h"
#include "traces/synth/synthesize_draws.h"

namespace kvtwin::synth {

constexpr int64_t kMillisecond = 1'000'000;

// A checked plan: every parameter of the recipe has a value within its bounds.
struct Plan {
  uint64_t sessions = 0;
  uint64_t seed = 0;
  std::map<std::string, int64_t> values;

  int64_t operator[](const std::string& name) const { return values.at(name); }
  uint32_t tokens(const std::string& name) const { return static_cast<uint32_t>(values.at(name)); }
};

struct Recipe {
  SynthRecipeInfo info;
  std::vector<std::string> tools;  // header.tool_names; tool i is 1 + i
  // Tables 1, 2, ... with spans that sessions share. May be empty.
  std::vector<v1::SharedSpanTable> (*tables)(const Plan& plan);
  // Session `index` of plan.sessions, without its arrival.
  v1::Session (*session)(const Plan& plan, uint64_t index);
};

// Parameters of every recipe: sharing, identity, window and arrivals.
std::vector<SynthParam> common_params(int64_t key_block, int64_t window_tokens);

v1::Span plain_span(v1::Role role, int64_t tokens);

// Prefixes that sessions share: group g = 0, 1, ... has table 1 + g, whose spans `make` draws with draws of
// its own. With share_groups = 0 there are none, and every session draws its own.
using MakePrefix = std::vector<v1::Span> (*)(const Plan& plan, const SessionDraws& dice);
std::vector<v1::SharedSpanTable> prefix_tables(const Plan& plan, MakePrefix make);
void open_with_prefix(const Plan& plan, const SessionDraws& dice, MakePrefix make, AgentThread* thread);
std::string session_name(const std::string& recipe, uint64_t index);
// Whether a request with this history and `more` tokens fits the window (0: no window).
bool fits(const Plan& plan, const History& history, int64_t more);

Recipe bcp_like();
Recipe multi_hop_search();
Recipe osworld_like();
Recipe scbench_like();
Recipe bfcl_memory_like();
Recipe reasoning();
Recipe coding_agent_like();

}  // namespace kvtwin::synth

#endif  // KVTWIN_TRACES_SYNTH_SYNTHESIZE_RECIPES_H_
