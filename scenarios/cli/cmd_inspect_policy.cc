#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "scenarios/cli/cli.h"
#include "scenarios/inspect/inspect_policy.h"

namespace kvtwin {
namespace {

struct InspectArguments {
  std::string scenario, scorers = "oracle,snapkv,h2o,expected_attention,knorm,streaming_llm,random",
                        budgets = "64,128,256", format = "table", out;
  std::vector<std::string> sets;
  ContextChoice choice;
  InspectRequest request;
};

Result<void> check(InspectArguments* arguments) {
  InspectRequest& request = arguments->request;
  request.scorers = split_list(arguments->scorers);
  for (const std::string& word : split_list(arguments->budgets)) {
    const bool number =
        !word.empty() && word.size() < 8 && word.find_first_not_of("0123456789") == std::string::npos;
    request.budgets.push_back(number ? static_cast<uint32_t>(std::stoul(word)) : 0);
    const uint64_t fixed = uint64_t{request.sinks} + request.window;
    if (request.budgets.back() <= fixed)
      return make_error("--budgets", fmt::format("\"{}\" is not a budget", word),
                        fmt::format("KV entries per head, more than sinks and window ({})", fixed));
  }
  const ContextChoice& choice = arguments->choice;
  if (choice.count < 1 || choice.count > 65'536)
    return make_error("--contexts", fmt::format("is {}", choice.count), "1 to 65,536");
  if (choice.tokens_min < 1 || choice.tokens_min > choice.tokens_max)
    return make_error("--context-min", fmt::format("is {}", choice.tokens_min),
                      fmt::format("1 to --context-max, which is {}", choice.tokens_max));
  if (request.response_tokens < 1 || request.error_tokens < 1)
    return make_error(request.response_tokens < 1 ? "--response" : "--error-tokens", "is 0",
                      "1 or more tokens");
  arguments->choice.output_min = 1;
  return {};
}

int run_inspect(InspectArguments arguments) {
  const Result<OutputFormat> format = parse_format(arguments.format);
  if (!format) return complain(format.error());
  if (Result<void> ok = check(&arguments); !ok) return complain(ok.error());
  const tl::expected<Scenario, Errors> scenario = load_scenario(arguments.scenario, arguments.sets);
  if (!scenario) return complain(scenario.error());
  const tl::expected<std::unique_ptr<CalibrationModel>, Errors> model =
      CalibrationModel::make(*scenario, arguments.choice);
  if (!model) return complain(model.error());
  const Result<std::vector<InspectRow>> rows = inspect_policy(*scenario, arguments.request, model->get());
  if (!rows) return complain(rows.error());
  std::string text = inspect_text(*rows, *format);
  if (*format == OutputFormat::kTable) {
    const std::string& checkpoint = scenario->values.cpu().checkpoint();
    text = fmt::format(
        "{}: {}, {}; {} contexts; critical: what up to {} tokens of the response choose\n\n{}",
        scenario->values.name(), (*model)->llm().name,
        checkpoint.empty() ? fmt::format("weights drawn from seed {}", scenario->values.seed()) : checkpoint,
        (*model)->contexts().size(), arguments.request.response_tokens, text);
  }
  if (arguments.out.empty()) {
    fmt::print("{}", text);
    return kExitDone;
  }
  if (Result<void> ok = write_text(arguments.out, text); !ok) return complain(ok.error(), kExitEnvironment);
  return kExitDone;
}

}  // namespace

void add_inspect_policy_command(CLI::App& app, int* status) {
  CLI::App* const command = app.add_subcommand("inspect-policy");
  const auto arguments = std::make_shared<InspectArguments>();
  command->add_option("SCENARIO", arguments->scenario)->required();
  command->add_option("--scorers", arguments->scorers);
  command->add_option("--budgets", arguments->budgets);
  command->add_option("--sinks", arguments->request.sinks);
  command->add_option("--window", arguments->request.window);
  command->add_option("--response", arguments->request.response_tokens);
  command->add_option("--error-tokens", arguments->request.error_tokens);
  command->add_option("--contexts", arguments->choice.count);
  command->add_option("--context-min", arguments->choice.tokens_min);
  command->add_option("--context-max", arguments->choice.tokens_max);
  command->add_option("--format", arguments->format);
  command->add_option("--out", arguments->out);
  add_repeated(command, "--set", &arguments->sets);
  command->callback([arguments, status] { *status = run_inspect(*arguments); });
}

}  // namespace kvtwin
