#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scenarios/app/compose.h"
#include "scenarios/cli/cli.h"
#include "scenarios/inspect/explain.h"
#include "scenarios/load/unread_fields.h"

namespace kvtwin {
namespace {

struct ExplainArguments {
  std::string scenario, shape, layers, out, format = "table";
  std::optional<uint64_t> step;
  uint32_t engine = 0;
  std::vector<std::string> sets;
};

struct Layers {
  uint32_t first = 0, last = UINT32_MAX;
};

// Parses "0..3", both included; "" means all layers.
Result<Layers> parse_layers(const std::string& text, uint32_t layers) {
  Layers out{0, layers - 1};
  if (text.empty()) return out;
  const size_t dots = text.find("..");
  const auto read = [](std::string_view part, uint32_t* value) {
    const auto result = std::from_chars(part.data(), part.data() + part.size(), *value);
    return result.ec == std::errc{} && result.ptr == part.data() + part.size();
  };
  const bool good = dots != std::string::npos && read(std::string_view(text).substr(0, dots), &out.first) &&
                    read(std::string_view(text).substr(dots + 2), &out.last) && out.first <= out.last &&
                    out.last < layers;
  if (good) return out;
  return make_error("--layers", fmt::format("\"{}\" is not a range of layers", text),
                    fmt::format("FROM..TO of 0 to {}, both included", layers - 1));
}

Result<ExplainedStep> explain(const ExplainArguments& arguments, const Scenario& scenario,
                              Composed* composed) {
  if (arguments.step) return explain_step(scenario, composed, arguments.engine, *arguments.step);
  const Result<AskedShape> shape = parse_shape(arguments.shape);
  if (!shape) return tl::unexpected<Error>(shape.error());
  return explain_shape(scenario, composed, *shape);
}

// Fails if one of `sets` sets a field of `fixed` to another value.
Result<void> check_not_fixed(const std::vector<std::string>& sets, const std::vector<std::string>& fixed) {
  for (const std::string& set : sets) {
    for (const std::string& one : fixed) {
      const std::string field = one.substr(0, one.find('=') + 1);
      if (set.starts_with(field) && set != one)
        return make_error("--set=" + set, fmt::format("kvtwin explain prices steps with {} only", one),
                          "leave it out");
    }
  }
  return {};
}

int run_explain(const ExplainArguments& arguments) {
  const Result<OutputFormat> format = parse_format(arguments.format);
  if (!format) return complain(format.error());
  if (arguments.step.has_value() != arguments.shape.empty())
    return complain(Error{"kvtwin explain", "needs one of --step and --shape",
                          "--step=N of the scenario's run, or --shape=decodes=4,context=32768"});
  if (!can_simulate())
    return complain(Error{arguments.scenario, "this build has no simulated backend",
                          "install libsimgrid-dev and configure again"},
                    kExitNoBackend);
  // explain needs prices, not values.
  const std::vector<std::string> fixed = {"backend=sim", "simulation.fidelity=collapsed"};
  if (const Result<void> ok = check_not_fixed(arguments.sets, fixed); !ok) return complain(ok.error());
  std::vector<std::string> sets = arguments.sets;
  sets.insert(sets.end(), fixed.begin(), fixed.end());
  const tl::expected<Scenario, Errors> scenario = load_scenario(arguments.scenario, sets);
  if (!scenario) return complain(scenario.error());
  tl::expected<Composed, Errors> composed = compose(*scenario);
  if (!composed) return complain(composed.error());
  const Errors unread = unread_sets(scenario->values, composed->client->mode(), arguments.sets);
  if (!unread.empty()) return complain(unread);
  const Result<Layers> layers = parse_layers(arguments.layers, composed->llm.layers);
  if (!layers) return complain(layers.error());
  const Result<ExplainedStep> step = explain(arguments, *scenario, &*composed);
  if (!step) return complain(step.error());
  const std::string& name = scenario->values.name();
  if (!arguments.out.empty()) {
    if (Result<void> ok = write_text(arguments.out, explained_dot(*step, name, layers->first, layers->last));
        !ok)
      return complain(ok.error(), kExitEnvironment);
  }
  fmt::print("{}", explained_text(*step, name, *format));
  if (!arguments.out.empty() && *format == OutputFormat::kTable)
    fmt::print("\ngraph: {}   (dot -Tsvg {} -o step.svg)\n", arguments.out, arguments.out);
  return kExitDone;
}

}  // namespace

void add_explain_command(CLI::App& app, int* status) {
  CLI::App* const command = app.add_subcommand("explain");
  const auto arguments = std::make_shared<ExplainArguments>();
  command->add_option("SCENARIO", arguments->scenario)->required();
  command->add_option("--step", arguments->step);
  command->add_option("--shape", arguments->shape);
  command->add_option("--engine", arguments->engine);
  command->add_option("--layers", arguments->layers);
  command->add_option("--out", arguments->out);
  command->add_option("--format", arguments->format);
  add_repeated(command, "--set", &arguments->sets);
  command->callback([arguments, status] { *status = run_explain(*arguments); });
}

}  // namespace kvtwin
