#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "engine/methods/combination_pairs.h"
#include "engine/methods/registry.h"
#include "models/catalog/catalog.h"
#include "models/files/textproto.h"
#include "scenarios/cli/cli.h"
#include "scenarios/load/field_list.h"
#include "scenarios/load/foreign_words.h"
#include "scenarios/load/scenario.h"
#include "scenarios/load/scorer_options.h"
#include "scenarios/load/shipped.h"
#include "scenarios/output/metric_names.h"
#include "traces/importers/formats.h"
#include "traces/proto/sweep.pb.h"

namespace kvtwin {
namespace {

void list_policies() {
  std::string_view axis;
  for (const PolicyInfo& policy : all_policies()) {
    if (policy.axis != axis) fmt::print("{}policies.{}\n", axis.empty() ? "" : "\n", policy.axis);
    axis = policy.axis;
    fmt::print("  {:<20} {}\n", policy.name, policy.description);
    if (policy.axis != "scorer") continue;
    const v1::ScorerOptions options = default_scorer_options(std::string(policy.name), "");
    if (options.ByteSizeLong() > 0) {
      fmt::print("  {:<20} scorer_options {{ {} }}\n", "", options.ShortDebugString());
    }
  }
}

// Fails if the tool was moved away from its data.
Result<void> list_catalog(const char* kind) {
  const std::vector<std::string> names = Catalog().names(kind);
  if (names.empty())
    return make_error(default_models_dir(), "has no models, devices and nodes",
                      "./dev install copies the tool with its data; or KVTWIN_MODELS=FOLDER");
  for (const std::string& name : names) fmt::print("{}\n", name);
  return {};
}

// True if the file's header declares a type that scenarios name: a profile or a table.
bool is_part_of_scenario(const std::string& text) {
  constexpr std::string_view kReports = "# proto-message: kvtwin.v1.";
  const size_t at = text.find(kReports);
  if (at == std::string::npos) return false;
  const std::string_view message = std::string_view(text).substr(at + kReports.size());
  return !message.starts_with("Scenario") && !message.starts_with("Sweep");
}

// A scenario's description, even if its data are missing; else the error in the scenario.
std::string description_of(const std::string& text, const std::string& path) {
  if (path.ends_with(".sweep.textproto")) {
    v1::Sweep sweep;
    const Result<void> ok = parse_textproto(text, path, &sweep);
    return ok ? fmt::format("a sweep of {} over {}", sweep.scenario(), fmt::join(sweep.vary(), ", "))
              : ok.error().what;
  }
  v1::Scenario scenario;
  const Result<void> ok = parse_textproto(text, path, &scenario);
  return ok ? scenario.description() : ok.error().what;
}

void list_scenarios() {
  for (const std::string& name : shipped_scenarios()) {
    const std::string path = path_of_shipped(name);
    const Result<std::string> text = read_text_file(path);
    if (text && is_part_of_scenario(*text)) continue;
    fmt::print("{:<32} {}\n", name, text ? description_of(*text, path) : text.error().what);
  }
}

void list_fields() {
  for (const FieldLine& line : scenario_fields())
    fmt::print("{:<44} {:<14} {:<14} {}\n", line.path, line.kind, line.value, line.comment);
}

void list_metrics() {
  for (const MetricName& one : metric_names())
    fmt::print("{:<32} {:<9} {}\n", one.name, one.unit, one.definition);
}

void list_words() {
  fmt::print("{:<30} {:<28} {:<26} {}\n", "word", "of", "kvtwin's field", "note");
  for (const ForeignWord& one : foreign_words())
    fmt::print("{:<30} {:<28} {:<26} {}\n", one.word, one.engines, one.ours.empty() ? "-" : one.ours,
               one.note);
}

// The mark of a pair of policies on each backend.
std::string marks(const CombinationPairs& pairs, Choice a, const std::string& of_a, Choice b,
                  const std::string& of_b) {
  std::string out;
  for (const Computes where : kAllComputes) {
    const Support verdict = pairs.verdict(a, of_a, b, of_b, where).verdict;
    out += verdict == Support::kWorks ? '+' : verdict == Support::kNotBuilt ? '.' : 'x';
  }
  return out;
}

// The matrix of two axes; nothing if all pairs work everywhere.
void list_pairs(const CombinationPairs& pairs, Choice a, Choice b) {
  const std::vector<std::string> rows = pairs.names(a), columns = pairs.names(b);
  std::string table;
  bool all = true;
  for (const std::string& row : rows) {
    table += fmt::format("  {:<20}", row);
    for (const std::string& column : columns) {
      const std::string mark = marks(pairs, a, row, b, column);
      all = all && mark == "+++";
      table += fmt::format(" {:<{}}", mark, std::max<size_t>(3, column.size()));
    }
    while (table.back() == ' ') table.pop_back();
    table += "\n";
  }
  fmt::print("{} and {}", name_of(a), name_of(b));
  if (all) {
    fmt::print(": all pairs work\n\n");
    return;
  }
  fmt::print("\n  {:<20}", "");
  for (const std::string& column : columns) fmt::print(" {:<3}", column);
  fmt::print("\n{}\n", table);
}

void list_combinations() {
  fmt::print(
      "Pairs of policies on the simulated, cpu and cuda backend: + works with some choice of the other\n"
      "axes, . not built, x refused on principle.\n\n");
  const CombinationPairs pairs;
  for (size_t a = 0; a < kPairAxes.size(); ++a) {
    for (size_t b = a + 1; b < kPairAxes.size(); ++b) list_pairs(pairs, kPairAxes[a], kPairAxes[b]);
  }
  fmt::print("Reasons, in the order in which they are checked:\n");
  for (const CombinationRow& row : combination_rows()) {
    std::string of, where;
    for (const Choice choice : {row.of.first, row.of.second, row.of.third}) {
      if (choice != Choice::kAbsent) of += (of.empty() ? "" : ", ") + std::string(name_of(choice));
    }
    for (const Computes one : kAllComputes) {
      static constexpr std::string_view kNames[] = {"sim", "cpu", "cuda"};
      if (holds_for(row, one))
        where += (where.empty() ? "" : " ") + std::string(kNames[static_cast<size_t>(one)]);
    }
    fmt::print("\n{} ({}, {})\n  {}\n  {}\n", of, row.verdict == Support::kRefused ? "refused" : "not built",
               where, row.why, row.remedy);
  }
}

int run_list(const std::string& what) {
  const std::vector<std::string> known = {"policies", "models", "devices", "nodes", "scenarios",   "presets",
                                          "formats",  "fields", "metrics", "words", "combinations"};
  if (what == "policies") {
    list_policies();
  } else if (what == "models" || what == "devices" || what == "nodes") {
    const Result<void> ok = list_catalog(what == "models" ? "llm" : what == "devices" ? "device" : "node");
    if (!ok) return complain(ok.error(), kExitEnvironment);
  } else if (what == "scenarios") {
    list_scenarios();
  } else if (what == "presets") {
    for (const std::string& name : preset_names()) fmt::print("{}", name.empty() ? "" : name + "\n");
  } else if (what == "formats") {
    for (const TraceFormat& format : formats()) fmt::print("{:<18} {}\n", format.name, format.description);
  } else if (what == "fields") {
    list_fields();
  } else if (what == "metrics") {
    list_metrics();
  } else if (what == "words") {
    list_words();
  } else if (what == "combinations") {
    list_combinations();
  } else {
    const std::string close = did_you_mean(what, known);
    return complain(Error{"kvtwin list", fmt::format("there is no list of \"{}\"", what),
                          close.empty() ? fmt::format("one of: {}", fmt::join(known, ", ")) : close});
  }
  return kExitDone;
}

}  // namespace

void add_list_command(CLI::App& app, int* status) {
  CLI::App* const command = app.add_subcommand("list");
  const auto what = std::make_shared<std::string>();
  command->add_option("WHAT", *what)->required();
  command->callback([what, status] { *status = run_list(*what); });
}

}  // namespace kvtwin
