#include "scenarios/sweep/folder.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <filesystem>

#include "models/files/textproto.h"
#include "scenarios/load/inputs.h"
#include "scenarios/output/result_folder.h"
#include "traces/proto/sweep.pb.h"

namespace kvtwin {
namespace fs = std::filesystem;
namespace {

constexpr char kFile[] = "sweep.textproto";

std::string name_of(const SweepWords& words) {
  const fs::path path(words.scenario);
  return path.extension() == ".textproto" ? path.stem().string() : path.filename().string();
}

std::vector<std::string> sorted(std::vector<std::string> words) {
  std::sort(words.begin(), words.end());
  return words;
}

std::vector<std::string> fields(const SweepWords& words) {
  std::vector<std::string> out;
  for (const std::string& one : words.vary) out.push_back(one.substr(0, one.find('=')));
  return sorted(std::move(out));
}

constexpr std::string_view kCommand = "# command: ";

std::string text_of(const SweepWords& words, const std::string& command) {
  v1::Sweep sweep;
  sweep.set_scenario(name_of(words));
  for (const std::string& one : words.vary) sweep.add_vary(one);
  for (const std::string& one : words.sets) sweep.add_set(one);
  std::string text;
  google::protobuf::TextFormat::PrintToString(sweep, &text);
  const std::string comment = command.empty() ? "" : fmt::format("{}{}\n", kCommand, command);
  return "# The sweep of this folder. Written by kvtwin sweep.\n" + comment + text;
}

}  // namespace

uint64_t sweep_fingerprint(const SweepWords& words) {
  Fingerprint sum;
  sum.add(name_of(words));
  for (const std::string& field : fields(words)) sum.add(field);
  for (const std::string& set : sorted(words.sets)) sum.add("set " + set);
  return sum.value();
}

Result<void> check_same_sweep(const std::string& dir, const SweepWords& words) {
  const std::string path = (fs::path(dir) / kFile).string();
  std::error_code ignored;
  if (!fs::exists(path, ignored)) return {};
  const Result<std::string> text = read_text_file(path);
  if (!text) return tl::unexpected<Error>(text.error());
  v1::Sweep file;
  if (Result<void> ok = parse_textproto(*text, path, &file); !ok) return ok;
  const SweepWords there{
      file.scenario(), {file.vary().begin(), file.vary().end()}, {file.set().begin(), file.set().end()}};
  if (sweep_fingerprint(there) == sweep_fingerprint(words)) return {};
  return make_error(
      dir,
      fmt::format("belongs to another sweep: {} over {}{}{}", name_of(there), fmt::join(fields(there), ", "),
                  there.sets.empty() ? "" : " with ", fmt::join(there.sets, ", ")),
      "another --out; --force uses the folder; its table and index.sqlite then leave out what "
      "is there");
}

Result<void> note_sweep(const std::string& dir, const SweepWords& words, const std::string& command) {
  const std::string text = text_of(words, command), path = (fs::path(dir) / kFile).string();
  std::error_code ignored;
  if (fs::exists(path, ignored)) {
    const Result<std::string> there = read_text_file(path);
    if (there && *there == text) return {};
  }
  return write_files(dir, {{kFile, text}});
}

std::string sweep_command(const std::string& dir) {
  const std::string path = (fs::path(dir) / kFile).string();
  const Result<std::string> text = read_text_file(path);
  if (!text) return "";
  if (const size_t at = text->find(kCommand); at != std::string::npos) {
    const size_t begin = at + kCommand.size();
    return text->substr(begin, text->find('\n', begin) - begin);
  }
  v1::Sweep file;
  if (!parse_textproto(*text, path, &file)) return "";
  std::string out = "kvtwin sweep " + file.scenario();
  for (const std::string& vary : file.vary()) out += fmt::format(" '--vary={}'", vary);
  for (const std::string& set : file.set()) out += fmt::format(" '--set={}'", set);
  return out + " --out=" + dir;
}

}  // namespace kvtwin
