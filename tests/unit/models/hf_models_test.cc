// Every config.json of the data folders: what is imported has the published numbers of parameters and KV
// bytes per token, and what is not is refused with the mechanism that is missing. docs/reference/models.md
// lists the same.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "models/catalog/hf_config.h"
#include "models/files/textproto.h"
#include "tests/support/source_dir.h"
#include "tests/unit/models/test_data.h"

namespace kvtwin {
namespace {

struct Published {
  std::string file;
  double total, active, active_unit;
  std::string counting;
  uint64_t kv_values;  // K and V of one token
  std::string source;
};
struct Refused {
  std::string file, mechanism;
};

std::vector<std::vector<std::string>> rows_of(const std::string& name) {
  std::ifstream table(testing::source_dir() + "/tests/unit/models/" + name);
  std::vector<std::vector<std::string>> rows;
  for (std::string line; std::getline(table, line);) {
    if (line.starts_with('#')) continue;
    std::istringstream cells(line);
    rows.emplace_back();
    for (std::string cell; std::getline(cells, cell, '\t');) rows.back().push_back(cell);
  }
  return rows;
}

std::vector<Published> published() {
  std::vector<Published> out;
  for (const auto& row : rows_of("published_models.tsv"))
    out.push_back({row.at(0), std::stod(row.at(1)), std::stod(row.at(2)), std::stod(row.at(3)), row.at(4),
                   2 * std::stoull(row.at(5)) * std::stoull(row.at(6)) * std::stoull(row.at(7)), row.at(8)});
  CHECK(out.size() == 37);
  return out;
}

std::vector<Refused> refused() {
  std::vector<Refused> out;
  for (const auto& row : rows_of("refused_models.tsv")) out.push_back({row.at(0), row.at(1)});
  CHECK(out.size() == 23);
  return out;
}

bool skipped() {
  if (have_test_data("model-configs") && have_test_data("model-configs-2026")) return false;
  MESSAGE("no model-configs and model-configs-2026 below $KVTWIN_DATA: skipped");
  return true;
}

std::string folder_of(std::string_view file) {
  return file.ends_with(".config.json") ? "model-configs-2026/" : "model-configs/";
}

Result<LlmSpec> import_file(const std::string& file) {
  const auto json = read_text_file(test_data(folder_of(file) + file));
  REQUIRE(json);
  return import_hf_config(*json, file);
}

// The words of `counting`, which published_models.tsv explains.
bool counts(const std::string& counting, std::string_view word) {
  return ("," + counting + ",").find("," + std::string(word) + ",") != std::string::npos;
}

double total_as_published(const LlmSpec& m, const std::string& counting) {
  auto total = static_cast<double>(m.parameters());
  if (!counts(counting, "with_mtp")) return total;
  LlmSpec more = m;
  ++more.layers;
  const double hidden = m.hidden;
  return static_cast<double>(more.parameters()) + 2.0 * m.vocab * hidden + 2 * hidden * hidden;
}

double active_as_published(const LlmSpec& m, const std::string& counting) {
  LlmSpec counted = m;
  if (counts(counting, "active_with_mtp")) ++counted.layers;
  const double table = static_cast<double>(m.vocab) * m.hidden;
  const double tables = counts(counting, "no_tables") ? 2 : counts(counting, "no_input_table") ? 1 : 0;
  return static_cast<double>(counted.active_parameters()) - tables * table;
}

TEST_CASE("hf_models: parameters and KV bytes per token are the published ones within 1 %") {
  if (skipped()) return;
  for (const Published& p : published()) {
    CAPTURE(p.file);
    CAPTURE(p.source);
    const Result<LlmSpec> m = import_file(p.file);
    REQUIRE_MESSAGE(m, (m ? std::string() : m.error().text()));
    CHECK(std::abs(total_as_published(*m, p.counting) / p.total - 1) < 0.01);
    CHECK((m->moe.experts > 0) == (p.active > 0));
    if (p.active > 0) {
      const double error = std::abs(active_as_published(*m, p.counting) - p.active);
      // Publishers round active parameters to two or three digits.
      CHECK(error < std::max(0.01 * p.active, 0.5 * p.active_unit));
    }
    CHECK(m->kv_bytes_per_token() == 2 * p.kv_values);
  }
}

TEST_CASE("hf_models: what cannot be imported is refused with the mechanism that is missing") {
  if (skipped()) return;
  for (const Refused& r : refused()) {
    CAPTURE(r.file);
    const Result<LlmSpec> m = import_file(r.file);
    REQUIRE_FALSE(m);
    CHECK_MESSAGE(m.error().what.find(r.mechanism) != std::string::npos, m.error().text());
    CHECK(m.error().what.find("not modelled yet") != std::string::npos);
  }
}

TEST_CASE("hf_models: the tables name every config of the data folders") {
  if (skipped()) return;
  std::set<std::string> known, found;
  for (const Published& p : published()) known.insert(p.file);
  for (const Refused& r : refused()) known.insert(r.file);
  for (const char* folder : {"model-configs", "model-configs-2026"}) {
    for (const auto& entry : std::filesystem::directory_iterator(test_data(folder))) {
      if (entry.path().extension() == ".json") found.insert(entry.path().filename().string());
    }
  }
  CHECK(known == found);
}

// The name of a model: its file's, without the publisher's.
std::string model_name(std::string file) {
  for (const char* end : {".config.json", ".json"}) {
    if (file.ends_with(end)) file.resize(file.size() - std::string_view(end).size());
  }
  const size_t at = file.find("__") != std::string::npos ? file.find("__") : file.find("--");
  return file.substr(at + 2);
}

TEST_CASE("hf_models: docs/reference/models.md has the same numbers and sentences") {
  if (skipped()) return;
  const auto page = read_text_file(testing::source_dir() + "/docs/reference/models.md");
  REQUIRE(page);
  const auto has = [&](const std::string& line) {
    CHECK_MESSAGE(page->find(line + "\n") != std::string::npos, line);
  };
  for (const Published& p : published()) {
    if (folder_of(p.file) == "model-configs/" && p.file.starts_with("inference-sim__llama"))
      continue;  // the model is listed once
    const Result<LlmSpec> m = import_file(p.file);
    REQUIRE(m);
    const std::string active =
        p.active > 0 ? fmt::format("{:.2f}", static_cast<double>(m->active_parameters()) / 1e9) : "";
    const std::string window =
        m->window > 0 ? fmt::format("{} in {} of {}", m->window, m->sliding_layers.size(), m->layers) : "";
    has(fmt::format("| {} | {:.2f} | {} | {} | {} |", model_name(p.file),
                    static_cast<double>(m->parameters()) / 1e9, active, m->kv_bytes_per_token(), window));
  }
  for (const Refused& r : refused()) {
    const Result<LlmSpec> m = import_file(r.file);
    REQUIRE_FALSE(m);
    const std::string what = m.error().what;  // "has X, not modelled yet"
    has(fmt::format("| {} | {} |", model_name(r.file), what.substr(4, what.rfind(", not") - 4)));
  }
}

}  // namespace
}  // namespace kvtwin
