#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "scenarios/cli/cli.h"

namespace kvtwin {

// completion.bash and completion.zsh
extern const char kBashCompletion[];
extern const char kZshCompletion[];

namespace {

// One command: its path after "kvtwin", joined by spaces, and the words that may follow it.
struct CommandWords {
  std::string path;
  std::vector<std::string> options;
  std::vector<std::string> commands;
};

void collect(const CLI::App& app, const std::string& path, std::vector<CommandWords>* out) {
  CommandWords words{path, {"--help"}, {}};
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames())
      words.options.push_back("--" + name + (option->get_items_expected_max() > 0 ? "=" : ""));
  }
  const auto commands = app.get_subcommands(std::function<bool(const CLI::App*)>{});
  for (const CLI::App* command : commands) words.commands.push_back(command->get_name());
  out->push_back(words);
  for (const CLI::App* command : commands)
    collect(*command, path + (path.empty() ? "" : " ") + command->get_name(), out);
}

std::vector<CommandWords> all_commands(const CLI::App& app) {
  std::vector<CommandWords> all;
  collect(app, "", &all);
  return all;
}

// The script, with the branches of its `case` over the path of commands typed so far.
std::string completion(std::string_view script, const std::vector<CommandWords>& all) {
  constexpr std::string_view kPlace = "    @BRANCHES@\n";
  std::string branches;
  for (const CommandWords& one : all) {
    branches += fmt::format("    '{}') commands='{}'; options='{}' ;;\n", one.path,
                            fmt::join(one.commands, " "), fmt::join(one.options, " "));
  }
  return std::string(script).replace(script.find(kPlace), kPlace.size(), branches);
}

// Escapes text so that a manual page shows it line by line, without roff requests or escapes in it.
std::string preformatted(const std::string& text) {
  std::string out = ".nf\n";
  bool line_start = true;
  for (const char c : text) {
    if (line_start && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
    line_start = c == '\n';
  }
  return out + (line_start ? "" : "\n") + ".fi\n";
}

std::string manual_page(const std::vector<CommandWords>& all) {
  std::string page = fmt::format(
      ".TH KVTWIN 1 \"\" \"kvtwin {}\" \"User Commands\"\n.SH NAME\nkvtwin \\- predict and measure what a "
      "KV-cache policy does to LLM serving\n.SH SYNOPSIS\n.B kvtwin\n.I COMMAND\n[\\fIARGUMENTS\\fR] "
      "[\\fB\\-\\-OPTION\\fR[=\\fIVALUE\\fR]]...\n.SH DESCRIPTION\n",
      KVTWIN_VERSION);
  page += preformatted(help_text("kvtwin"));
  page += ".SH COMMANDS\n";
  for (const CommandWords& one : all) {
    if (!one.path.empty())
      page += fmt::format(".SS kvtwin {}\n", one.path) + preformatted(help_text("kvtwin " + one.path));
  }
  page +=
      ".SH ENVIRONMENT\n.TP\n.B KVTWIN_MODELS\nThe folder of models, devices and nodes, instead of the one "
      "that kvtwin came with.\n.TP\n.B KVTWIN_SCENARIOS\nThe folder of shipped scenarios, instead of the one "
      "that kvtwin came with.\n.TP\n.B KVTWIN_DATA\nThe folder with external traces that some shipped "
      "scenarios name.\n";
  return page;
}

}  // namespace

void add_completion_command(CLI::App& app, int* status) {
  CLI::App* const command = app.add_subcommand("completion");
  const auto shell = std::make_shared<std::string>();
  command->add_option("SHELL", *shell)->required();
  command->callback([&app, shell, status] {
    if (*shell != "bash" && *shell != "zsh") {
      *status =
          complain(Error{"SHELL", fmt::format("there is no completion for \"{}\"", *shell), "bash or zsh"});
      return;
    }
    fmt::print("{}", completion(*shell == "bash" ? kBashCompletion : kZshCompletion, all_commands(app)));
  });
}

void add_man_command(CLI::App& app, int* status) {
  CLI::App* const command = app.add_subcommand("man");
  command->callback([&app, status] {
    fmt::print("{}", manual_page(all_commands(app)));
    *status = kExitDone;
  });
}

}  // namespace kvtwin
