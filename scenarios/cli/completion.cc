#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <string>
#include <vector>

#include "scenarios/cli/cli.h"

namespace kvtwin {
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

// The branches of a `case` over the path of commands typed so far, in the syntax that bash and zsh share.
std::string case_branches(const std::vector<CommandWords>& all) {
  std::string text;
  for (const CommandWords& one : all) {
    text += fmt::format("    '{}') commands='{}'; options='{}' ;;\n", one.path, fmt::join(one.commands, " "),
                        fmt::join(one.options, " "));
  }
  return text;
}

std::string bash_script(const std::vector<CommandWords>& all) {
  return fmt::format(R"(# bash completion of kvtwin. Printed by `kvtwin completion bash`.
_kvtwin_words() {{
  case $1 in
{}    *) return 1 ;;
  esac
}}
_kvtwin() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} path='' word commands='' options=''
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    [[ $word != -* ]] && _kvtwin_words "${{path:+$path }}$word" && path=${{path:+$path }}$word
  done
  _kvtwin_words "$path"
  if [[ $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
    [[ ${{COMPREPLY[*]}} != *= ]] || compopt -o nospace
  else
    mapfile -t COMPREPLY < <(compgen -W "$commands" -- "$current")
  fi
}}
complete -o default -F _kvtwin kvtwin
)",
                     case_branches(all));
}

std::string zsh_script(const std::vector<CommandWords>& all) {
  return fmt::format(R"(#compdef kvtwin
# zsh completion of kvtwin. Printed by `kvtwin completion zsh`.
_kvtwin_words() {{
  case $1 in
{}    *) return 1 ;;
  esac
}}
_kvtwin() {{
  local trail='' word commands='' options=''
  for word in ${{words[2,CURRENT-1]}}; do
    [[ $word != -* ]] && _kvtwin_words "${{trail:+$trail }}$word" && trail=${{trail:+$trail }}$word
  done
  _kvtwin_words "$trail"
  if [[ $PREFIX == -* ]]; then
    compadd -S '' -- ${{(M)=options:#*=}}
    compadd -- ${{=options:#*=}}
  else
    compadd -- ${{=commands}}
    _files
  fi
}}
_kvtwin "$@"
)",
                     case_branches(all));
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
    const std::vector<CommandWords> all = all_commands(app);
    fmt::print("{}", *shell == "bash" ? bash_script(all) : zsh_script(all));
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
