#include "scenarios/cli/help_formatter.h"

#include <algorithm>
#include <cctype>
#include <sstream>
#include <vector>

namespace kvtwin {
namespace {

constexpr size_t kWidth = 110, kColumn = 24;
constexpr std::string_view kExample = "Example: ";

// Lines of at most kWidth characters; all but the first begin with `indent` spaces. An empty line separates
// paragraphs.
std::string wrapped(const std::string& text, size_t indent) {
  const std::string margin(indent, ' ');
  std::string out;
  size_t column = indent;
  std::istringstream lines(text);
  bool new_paragraph = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.empty()) new_paragraph = true;
    std::istringstream words(line);
    for (std::string word; words >> word;) {
      if (out.empty()) {
        column = indent;
      } else if (new_paragraph) {
        out += "\n\n" + margin, column = indent;
      } else if (column + 1 + word.size() > kWidth) {
        out += "\n" + margin, column = indent;
      } else {
        out += ' ', ++column;
      }
      new_paragraph = false;
      out += word, column += word.size();
    }
  }
  return out;
}

struct Description {
  std::string example, text;
};

Description description_of(const CLI::App& app) {
  const std::string all = app.get_description();
  if (!all.starts_with(kExample)) return {"", all};
  const size_t end = std::min(all.find("\n\n"), all.size());
  return {all.substr(kExample.size(), end - kExample.size()), all.substr(std::min(end + 2, all.size()))};
}

// "  --out=TEXT            the trace to write"
std::string row(const std::string& name, const std::string& text) {
  std::string out = "  " + name;
  if (out.size() + 2 > kColumn) {
    out += "\n" + std::string(kColumn, ' ');
  } else {
    out.append(kColumn - out.size(), ' ');
  }
  return out + wrapped(text, kColumn) + "\n";
}

std::string value_name(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  return type == "UINT" || type == "INT" || type == "FLOAT" ? "N" : type;
}

std::string option_row(const CLI::Option& option) {
  const bool takes_value = option.get_items_expected_max() > 0;
  std::string name = option.get_positional() ? option.get_name(true) : "--" + option.get_lnames().front();
  if (option.get_positional()) {
    for (char& c : name) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  if (!option.get_positional() && takes_value) name += "=" + value_name(option);
  std::string text = option.get_description();
  const std::string value = option.get_default_str();
  const bool says_default = text.find("default") != std::string::npos;
  if (!option.get_positional() && option.get_required()) text += "; required";
  if (takes_value && !says_default && !value.empty() && value != "[]" && value != "\"\"")
    text += "; default: " + value;
  return row(name, text);
}

std::string first_sentence(const std::string& text) {
  const size_t end = text.find(". ");
  const std::string line = text.substr(0, std::min(end, text.find("\n\n")));
  return line.ends_with('.') ? line.substr(0, line.size() - 1) : line;
}

}  // namespace

std::string command_path(const CLI::App& app) {
  const CLI::App* const parent = app.get_parent();
  return parent == nullptr ? app.get_name() : command_path(*parent) + " " + app.get_name();
}

std::string HelpFormatter::make_help(const CLI::App* app, std::string, CLI::AppFormatMode) const {
  const Description description = description_of(*app);
  std::string out = wrapped(description.text, 0) + "\n\n";
  if (!description.example.empty()) out += "  " + description.example + "\n\n";
  for (const bool positional : {true, false}) {
    for (const CLI::Option* option : app->get_options()) {
      if (option->get_positional() == positional) out += option_row(*option);
    }
  }
  const auto commands = app->get_subcommands([](const CLI::App*) { return true; });
  for (const CLI::App* command : commands)
    out += row(command->get_name(), first_sentence(description_of(*command).text));
  if (!commands.empty()) out += "\nType " + command_path(*app) + " COMMAND --help for a command's options.\n";
  return out;
}

}  // namespace kvtwin
