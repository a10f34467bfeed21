// kvtwin trace synth: draws traces from a recipe. traces/synth/synthesize.h has the recipes and parameters.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "models/files/textproto.h"
#include "scenarios/cli/cli.h"
#include "scenarios/cli/cmd_trace.h"
#include "traces/format/writer.h"
#include "traces/synth/synthesize.h"

namespace kvtwin {
namespace {

struct SynthArguments {
  SynthOptions options;
  std::string out;
  std::vector<std::string> sets;
  bool list = false;
};

// `did you mean "bcp-like"?`, or the list of all.
std::string choices(const std::string& word, const std::vector<std::string>& known) {
  const std::string near = did_you_mean(word, known);
  return near.empty() ? fmt::format("known are: {}", fmt::join(known, ", ")) : near;
}

int list_recipes() {
  for (const SynthRecipeInfo& recipe : synth_recipes()) {
    fmt::print("{}: {}\n", recipe.name, recipe.description);
    if (!recipe.fitted_on.empty()) fmt::print("  fitted on: {}\n", recipe.fitted_on);
    for (const SynthParam& param : recipe.params) {
      fmt::print("  {:<22}{:>8} {:<12}{} ({} to {})\n", param.name, param.value, param.unit,
                 param.description, param.low, param.high);
    }
    fmt::print("\n");
  }
  return kExitDone;
}

// The recipe with this name and its parameters; an error with the nearest names if there is none.
Result<SynthRecipeInfo> find_recipe(const std::string& name) {
  std::vector<std::string> names;
  for (const SynthRecipeInfo& recipe : synth_recipes()) {
    if (recipe.name == name) return recipe;
    names.push_back(recipe.name);
  }
  if (name.empty())
    return make_error("RECIPE", "is missing", fmt::format("one of {}", fmt::join(names, ", ")));
  return make_error("RECIPE", fmt::format("no recipe \"{}\"", name.substr(0, 40)), choices(name, names));
}

Result<void> take_sets(const SynthRecipeInfo& recipe, const std::vector<std::string>& sets,
                       std::map<std::string, std::string>* params) {
  std::vector<std::string> names;
  for (const SynthParam& param : recipe.params) names.push_back(param.name);
  for (const std::string& set : sets) {
    const size_t equals = set.find('=');
    const std::string name = set.substr(0, equals);
    const std::string where = "--set=" + set.substr(0, 80);
    if (equals == std::string::npos) return make_error(where, "has no value", "write --set=NAME=VALUE");
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      return make_error(where, fmt::format("{} has no parameter \"{}\"", recipe.name, name.substr(0, 40)),
                        choices(name, names));
    }
    if (!params->emplace(name, set.substr(equals + 1)).second)
      return make_error(where, fmt::format("{} is set twice", name));
  }
  return {};
}

int run_synth(SynthArguments arguments) {
  if (arguments.list) return list_recipes();
  const auto recipe = find_recipe(arguments.options.recipe);
  if (!recipe) return complain(recipe.error());
  if (auto good = take_sets(*recipe, arguments.sets, &arguments.options.params); !good)
    return complain(good.error());
  if (arguments.out.empty()) return complain(Error{"--out", "is missing", "the trace to write"});
  TraceWriter writer(arguments.out);
  if (auto good = synthesize(arguments.options, &writer); !good) return complain(good.error());
  report_written(arguments.out, writer.footer());
  return kExitDone;
}

}  // namespace

void add_trace_synth_command(CLI::App& trace, int* exit_status) {
  CLI::App* const command = trace.add_subcommand("synth");
  const auto arguments = std::make_shared<SynthArguments>();
  arguments->options.sessions = 100;
  arguments->options.seed = 1;
  command->add_option("RECIPE", arguments->options.recipe);
  command->add_option("--out", arguments->out);
  command->add_option("--sessions", arguments->options.sessions);
  command->add_option("--seed", arguments->options.seed);
  add_repeated(command, "--set", &arguments->sets);
  command->add_flag("--list", arguments->list);
  command->callback([arguments, exit_status] { *exit_status = run_synth(*arguments); });
}

}  // namespace kvtwin
