// kvtwin calibrate policy: computes numbers that policies need from a model's values. Each result is a file
// that scenarios name.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/profiles/retention_table.h"
#include "scenarios/calibrate/calibrate_model.h"
#include "scenarios/calibrate/calibrate_precision.h"
#include "scenarios/calibrate/calibrate_retention.h"
#include "scenarios/calibrate/calibrate_retrieval.h"
#include "scenarios/cli/cli.h"

namespace kvtwin {
namespace {

struct CommonArguments {
  std::string scenario, out;
  std::vector<std::string> sets;
  ContextChoice choice;
};

void add_common(CLI::App* command, CommonArguments* to) {
  command->add_option("SCENARIO", to->scenario)->required();
  command->add_option("--out", to->out);
  command->add_option("--contexts", to->choice.count);
  command->add_option("--context-min", to->choice.tokens_min);
  command->add_option("--context-max", to->choice.tokens_max);
  add_repeated(command, "--set", &to->sets);
}

Result<void> check_common(const CommonArguments& common) {
  const ContextChoice& choice = common.choice;
  if (choice.count < 1 || choice.count > 65'536)
    return make_error("--contexts", fmt::format("is {}", choice.count), "1 to 65,536");
  if (choice.tokens_min < 1 || choice.tokens_min > choice.tokens_max)
    return make_error("--context-min", fmt::format("is {}", choice.tokens_min),
                      fmt::format("1 to --context-max, which is {}", choice.tokens_max));
  return {};
}

// The output of a calibration, and the text to print when it goes to a file.
struct Calibrated {
  std::string text, table, how_to_use;
};

int calibrate(const CommonArguments& common,
              const std::function<Result<Calibrated>(const Scenario&, CalibrationModel*)>& work) {
  if (Result<void> ok = check_common(common); !ok) return complain(ok.error());
  const tl::expected<Scenario, Errors> scenario = load_scenario(common.scenario, common.sets);
  if (!scenario) return complain(scenario.error());
  const tl::expected<std::unique_ptr<CalibrationModel>, Errors> model =
      CalibrationModel::make(*scenario, common.choice);
  if (!model) return complain(model.error());
  const Result<Calibrated> made = work(*scenario, model->get());
  if (!made) return complain(made.error());
  if (common.out.empty()) {
    fmt::print("{}", made->text);
    return kExitDone;
  }
  if (Result<void> ok = write_text(common.out, made->text); !ok)
    return complain(ok.error(), kExitEnvironment);
  fmt::print("{}\nwritten: {}   ({})\n", made->table, common.out, made->how_to_use);
  return kExitDone;
}

struct RetentionArguments {
  CommonArguments common;
  RetentionRequest request;
  double alpha = 2;
  uint32_t group = 4;
};

int run_retention(RetentionArguments arguments, bool samples) {
  RetentionRequest& request = arguments.request;
  if (!(request.ratio > 0 && request.ratio <= 1))
    return complain({"--ratio", fmt::format("is {}", request.ratio), "more than 0, at most 1"});
  if (!(arguments.alpha >= 0 && arguments.alpha <= 100))
    return complain({"--alpha", fmt::format("is {}", arguments.alpha), "0 to 100"});
  if (arguments.group == 0) return complain({"--group", "is 0", "1 or more heads"});
  const uint64_t fixed = uint64_t{request.sinks} + request.window;
  if (fixed >= (1u << 24))
    return complain({"--window", fmt::format("is {}", request.window), "fewer tokens"});
  ContextChoice& choice = arguments.common.choice;
  choice.tokens_min =
      std::max(choice.tokens_min, static_cast<uint32_t>(fixed) + 1);  // at least one token is ranked
  return calibrate(
      arguments.common, [&](const Scenario& scenario, CalibrationModel* model) -> Result<Calibrated> {
        const Result<RetentionProfile> profile = calibrate_retention(scenario, request, model);
        if (!profile) return tl::unexpected<Error>(profile.error());
        return Calibrated{retention_textproto(*profile, arguments.alpha, samples),
                          retention_table(*profile, arguments.alpha, arguments.group),
                          "policies.budget_options.profile; simulation.retained: \"profile\" draws from it"};
      });
}

void add_retention(CLI::App* policy, int* status, const char* name, bool samples) {
  CLI::App* const command = policy->add_subcommand(name);
  const auto arguments = std::make_shared<RetentionArguments>();
  add_common(command, &arguments->common);
  RetentionRequest& request = arguments->request;
  command->add_option("--ratio", request.ratio);
  command->add_option("--sinks", request.sinks);
  command->add_option("--window", request.window);
  command->add_flag("--all-layers", request.all_layers);
  command->add_option("--alpha", arguments->alpha);
  command->add_option("--group", arguments->group);
  command->callback([=] { *status = run_retention(*arguments, samples); });
}

struct PrecisionArguments {
  CommonArguments common;
  PrecisionRequest request;
  double bits = 2.7;
  std::string blind = "none";
};

int run_precision(PrecisionArguments arguments) {
  if (!(arguments.bits >= 2 && arguments.bits <= 4))
    return complain({"--bits", fmt::format("is {}", arguments.bits), "2 to 4"});
  PrecisionRequest& request = arguments.request;
  request.bits_milli = static_cast<uint32_t>(std::lround(arguments.bits * 1000));
  if (arguments.blind == "temporal") {
    request.blind = BlindAxis::kTemporal;
  } else if (arguments.blind == "semantic") {
    request.blind = BlindAxis::kSemantic;
  } else if (arguments.blind != "none") {
    return complain({"--blind", fmt::format("is \"{}\"", arguments.blind), "none, temporal or semantic"});
  }
  if (request.rows == 0) return complain({"--rows", "is 0", "1 or more query tokens"});
  if (request.layers == 0) return complain({"--layers", "is 0", "1 or more layers"});
  return calibrate(arguments.common,
                   [&](const Scenario& scenario, CalibrationModel* model) -> Result<Calibrated> {
                     const Result<TagMap> map = calibrate_precision(scenario, request, model);
                     if (!map) return tl::unexpected<Error>(map.error());
                     return Calibrated{tag_map_textproto(*map), tag_map_table(*map),
                                       "policies.precision_options.tag_map, with precision: \"triaxial\""};
                   });
}

void add_precision(CLI::App* policy, int* status) {
  CLI::App* const command = policy->add_subcommand("precision");
  const auto arguments = std::make_shared<PrecisionArguments>();
  arguments->common.choice.count = 8;
  add_common(command, &arguments->common);
  command->add_option("--bits", arguments->bits);
  command->add_flag("--greedy", arguments->request.greedy);
  command->add_option("--rows", arguments->request.rows);
  command->add_option("--layers", arguments->request.layers);
  command->add_option("--blind", arguments->blind);
  command->callback([=] { *status = run_precision(*arguments); });
}

struct RetrievalArguments {
  CommonArguments common;
  RetrievalRequest request;
};

int run_retrieval(RetrievalArguments arguments) {
  if (arguments.request.steps < 2)
    return complain(
        {"--steps", fmt::format("is {}", arguments.request.steps), "2 or more: steps are compared"});
  arguments.common.choice.output_min = 2;
  return calibrate(
      arguments.common, [&](const Scenario& scenario, CalibrationModel* model) -> Result<Calibrated> {
        const Result<RecallProfile> profile = calibrate_retrieval(scenario, arguments.request, model);
        if (!profile) return tl::unexpected<Error>(profile.error());
        return Calibrated{recall_textproto(*profile), recall_table(*profile),
                          "simulation.retrieval.profile, with outcomes: \"profile\""};
      });
}

void add_retrieval(CLI::App* policy, int* status) {
  CLI::App* const command = policy->add_subcommand("retrieval");
  const auto arguments = std::make_shared<RetrievalArguments>();
  add_common(command, &arguments->common);
  command->add_option("--steps", arguments->request.steps);
  command->callback([=] { *status = run_retrieval(*arguments); });
}

}  // namespace

void add_calibrate_command(CLI::App& app, int* status) {
  CLI::App* const calibrate = app.add_subcommand("calibrate");
  calibrate->require_subcommand(1);
  add_calibrate_device_command(calibrate, status);
  add_calibrate_server_command(calibrate, status);
  CLI::App* const policy = calibrate->add_subcommand("policy");
  policy->require_subcommand(1);
  add_retention(policy, status, "budgets", false);
  add_retention(policy, status, "retention", true);
  add_precision(policy, status);
  add_retrieval(policy, status);
}

}  // namespace kvtwin
