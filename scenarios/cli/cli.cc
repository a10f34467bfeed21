#include "scenarios/cli/cli.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdio>
#include <fstream>

namespace kvtwin {

int complain(const Error& error, int status) {
  fmt::print(stderr, "{}\n", error.text());
  return status;
}

int complain(const std::vector<Error>& errors, int status) {
  for (const Error& one : errors) complain(one, status);
  return status;
}

Result<void> write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text;
  file.close();
  if (file) return {};
  return make_error(path, "cannot be written", "check the folder and its permissions");
}

Result<OutputFormat> parse_format(const std::string& text) {
  if (text == "table") return OutputFormat::kTable;
  if (text == "json") return OutputFormat::kJson;
  if (text == "jsonl") return OutputFormat::kJsonl;
  if (text == "csv") return OutputFormat::kCsv;
  return make_error("--format", fmt::format("there is no format \"{}\"", text), "table, json, jsonl or csv");
}

CLI::Option* add_repeated(CLI::App* command, const std::string& name, std::vector<std::string>* into) {
  return command->add_option(name, *into)->expected(1)->allow_extra_args(false)->take_all();
}

std::string shell_word(const std::string& word) {
  if (word.find_first_of(" \t\n'\"$&|;<>()*?[]{}\\`!#~") == std::string::npos) return word;
  std::string out = "'";
  for (const char c : word) out += c == '\'' ? "'\\''" : std::string(1, c);
  return out + "'";
}

std::vector<std::string> split_list(const std::string& text) {
  std::vector<std::string> out;
  for (size_t from = 0; from <= text.size();) {
    const size_t comma = std::min(text.find(',', from), text.size());
    out.push_back(text.substr(from, comma - from));
    from = comma + 1;
  }
  return out;
}

bool is_whole_number(const std::string& text) {
  uint64_t value = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, failed] = std::from_chars(text.data(), end, value);
  return failed == std::errc() && stop == end;
}

}  // namespace kvtwin
