#include "scenarios/evaluate/collect.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string_view>
#include <tuple>

#include "models/files/textproto.h"
#include "reports/page/csv_records.h"

namespace kvtwin {
namespace {

namespace fs = std::filesystem;

using Name = std::tuple<std::string, uint32_t, std::string>;
Name name_of(const QualityRow& row) { return {row.policy, row.budget, row.task}; }
bool by_name(const QualityRow& a, const QualityRow& b) { return name_of(a) < name_of(b); }

bool better(const QualityRow& one, const QualityRow& other) {
  if (one.refused.empty() != other.refused.empty()) return one.refused.empty();
  return one.answers.questions > other.answers.questions;
}

Result<std::vector<QualityRow>> read_csv(const std::string& path) {
  const Result<std::string> text = read_text_file(path);
  if (!text) return tl::unexpected<Error>(text.error());
  std::string_view rest = *text;
  std::vector<std::string> names, values;
  std::vector<QualityRow> out;
  take_record(&rest, &names);
  for (uint64_t number = 2; take_record(&rest, &values); ++number) {
    std::map<std::string, std::string> line;
    for (size_t i = 0; i < std::min(names.size(), values.size()); ++i) line[names[i]] = values[i];
    const std::optional<QualityRow> row = row_from_csv(line);
    if (!row)
      return make_error(fmt::format("{}:{}", path, number),
                        "is not a cell that this version of kvtwin writes", "kvtwin evaluate --out makes it");
    out.push_back(*row);
  }
  if (out.empty()) return make_error(path, "has no cells", "the quality.csv of kvtwin evaluate --out");
  return out;
}

Result<std::vector<QualityRow>> read_entries(const std::string& folder) {
  if (fs::path(folder).extension() == ".csv") return read_csv(folder);
  std::vector<QualityRow> out;
  std::error_code failed;
  for (const fs::directory_entry& file : fs::directory_iterator(fs::path(folder) / "cells", failed)) {
    if (file.path().extension() != ".json") continue;
    const std::string path = file.path().string();
    const Result<std::string> text = read_text_file(path);
    if (!text) return tl::unexpected<Error>(text.error());
    const std::optional<QualityRow> row = row_from_json(*text);
    if (!row)
      return make_error(path, "is not a cell that this version of kvtwin writes",
                        "kvtwin evaluate --out makes it");
    out.push_back(*row);
  }
  if (out.empty()) return make_error(folder, "has no cells", "a folder that kvtwin evaluate made with --out");
  std::sort(out.begin(), out.end(), by_name);
  return out;
}

// Facts that all rows of a table must have in common.
struct TableFacts {
  std::string model;
  std::map<std::string, std::string> asked;  // by task

  Result<void> take(const std::string& folder, const QualityRow& row) {
    if (model.empty()) model = row.model;
    if (row.model != model)
      return make_error(folder, fmt::format("has rows of model {}, others are of {}", row.model, model),
                        "collect evaluations of one model");
    std::string& known = asked[row.task];
    if (known.empty()) known = row.asked;
    if (row.asked != known)
      return make_error(folder,
                        fmt::format("ran task {} with {}, others with {}", row.task, row.asked, known),
                        "collect evaluations with the same --tokens, --per-session and --seed");
    return {};
  }
};

}  // namespace

Result<void> collect(const std::vector<std::string>& folders, std::vector<QualityRow>* rows) {
  if (folders.empty()) return {};
  TableFacts facts;
  const auto own = static_cast<ptrdiff_t>(rows->size());
  std::map<Name, size_t> at;
  for (const QualityRow& row : *rows) {
    if (Result<void> ok = facts.take("this evaluation", row); !ok) return ok;
    at.emplace(name_of(row), at.size());
  }
  for (const std::string& folder : folders) {
    const Result<std::vector<QualityRow>> found = read_entries(folder);
    if (!found) return tl::unexpected<Error>(found.error());
    for (const QualityRow& row : *found) {
      if (Result<void> ok = facts.take(folder, row); !ok) return ok;
      const auto [place, fresh] = at.emplace(name_of(row), rows->size());
      if (fresh) {
        rows->push_back(row);
      } else if (better(row, (*rows)[place->second])) {
        (*rows)[place->second] = row;
      }
    }
  }
  std::sort(rows->begin() + own, rows->end(), by_name);
  return {};
}

}  // namespace kvtwin
