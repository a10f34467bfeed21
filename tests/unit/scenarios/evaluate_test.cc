#include "scenarios/evaluate/evaluate.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "scenarios/evaluate/collect.h"
#include "scenarios/evaluate/paired.h"
#include "tests/support/folder.h"
#include "tests/support/source_dir.h"

namespace kvtwin {
namespace {

TEST_CASE("wilson: textbook intervals") {
  // Newcombe 1998, table I, method 3.
  CHECK(wilson(81, 263).low == doctest::Approx(0.2553).epsilon(0.0005));
  CHECK(wilson(81, 263).high == doctest::Approx(0.3662).epsilon(0.0005));
  CHECK(wilson(15, 148).low == doctest::Approx(0.0624).epsilon(0.001));
  CHECK(wilson(15, 148).high == doctest::Approx(0.1605).epsilon(0.001));
  CHECK(wilson(0, 20).low == 0);
  CHECK(wilson(0, 20).high == doctest::Approx(0.1611).epsilon(0.001));
  CHECK(wilson(29, 29).high == 1);
  CHECK(wilson(0, 0).high - wilson(0, 0).low == 1);
}

TEST_CASE("paired: McNemar's exact test counts the questions on which two policy sets differ") {
  // 8 gained and 1 lost: 2 * (1 + 9) / 2^9.
  const Paired one = paired("11110000000000", "01111111111100");
  CHECK(one.gained == 8);
  CHECK(one.lost == 1);
  CHECK(one.p == doctest::Approx(2.0 * (1 + 9) / 512));
  CHECK(paired("0101", "0101").p == 1);
  CHECK(paired("01", "10").p == 1);
  // The independent run of docs/design/methods/intentkv.md: 32 gained and 8 lost.
  CHECK(paired(std::string(32, '0') + std::string(8, '1'), std::string(32, '1') + std::string(8, '0')).p ==
        doctest::Approx(0.000182).epsilon(0.01));
}

TEST_CASE(
    "paired: rows of the same questions, task and budget are compared; a base without answers is an error") {
  const auto row = [](const char* policy, uint32_t budget, const char* task, const char* marks) {
    QualityRow out;
    out.policy = policy, out.budget = budget, out.task = task, out.model = "m", out.asked = "seed=1";
    out.answers.marks = marks;
    return out;
  };
  std::vector<QualityRow> rows = {row("base", 64, "needle", "0011"), row("new", 64, "needle", "0111"),
                                  row("new", 32, "needle", "1111"), row("new", 64, "multi_key", "1111"),
                                  row("old", 64, "needle", "")};
  const Result<std::string> table = paired_table(rows, "base");
  REQUIRE(table);
  CHECK(table->find("new                    64 needle                   1      0") != std::string::npos);
  CHECK(std::count(table->begin(), table->end(), '\n') == 4);  // a blank line, two of head, one row
  rows[0].budget = 0;  // a base without a budget is compared with every budget
  CHECK(paired_table(rows, "base")->find("new                    32 needle                   2      0") !=
        std::string::npos);
  CHECK(paired_table(rows, "bace").error().what == "no row of \"bace\" has answers by question");
  CHECK_FALSE(paired_table(rows, "old"));
}

std::vector<std::string> sets(const std::string& policies, uint32_t kv_entries, double prompt) {
  const std::string text =
      "model { name: \"llama-3.1-8b\" }\nhardware { node: \"h200\" }\n"
      "trace { path: \"methods/tiny/requests.csv\" format: \"azure\" }\npolicies { " +
      policies + " }\n";
  const auto scenario = parse_scenario(text, testing::source_dir() + "/scenarios/test.textproto", {});
  REQUIRE_MESSAGE(scenario, scenario.error().front().text());
  return budget_sets(*scenario, kv_entries, prompt);
}

TEST_CASE("budget_sets: KV entries, the ratio that gives the same number, or the entries read") {
  using Words = std::vector<std::string>;
  CHECK(sets("", 64, 400).empty());
  CHECK(sets("precision: \"int4\"", 64, 400).empty());
  CHECK(sets("scorer: \"snapkv\" budget: \"uniform\" layout: \"compact\" identity: \"none\" "
             "budget_options { window: 8 kv_entries: 99 }",
             64, 400) == Words{"policies.budget_options.kv_entries=64"});
  CHECK(sets("scorer: \"knorm\" budget: \"ratio\" layout: \"compact\" identity: \"none\" "
             "budget_options { chunk_tokens: 256 ratio: 0.5 }",
             64, 400) == Words{"policies.budget_options.ratio=0.160000"});
  CHECK(
      sets("retrieval: \"quest\" retrieval_options { budget_tokens: 512 sink_tokens: 16 window_tokens: 32 }",
           64, 400) == Words{"policies.retrieval_options.budget_tokens=64"});
}

QualityRow answered(const std::string& policy, const std::string& task, uint64_t questions, uint64_t right) {
  QualityRow row;
  row.policy = policy, row.task = task;
  row.answers.questions = row.answers.answered = questions, row.answers.right = right;
  row.model = "tasks", row.asked = "tokens=384 per_session=4 seed=1";
  return row;
}

TEST_CASE("a row survives its file, and malformed rows are rejected") {
  QualityRow row;
  row.policy = "snapkv", row.task = "needle", row.budget = 64;
  row.inputs = 0xfedcba9876543210u, row.samples = 17;
  row.answers = {100, 99, 42, 1, 300, 0.125};
  row.prompt_mean = 312.5, row.reads_raw = 9, row.reads_effective = 4, row.kv_bytes_mean = 1024;
  row.kv_read_bytes_mean = 512;
  row.correction_rate = 0.25, row.miss_rate = 0;
  row.reused = 5, row.reused_live = 3, row.tokens_computed = 77;
  row.backend = "cuda", row.model = "tasks", row.asked = "tokens=384 per_session=4 seed=1";
  const std::string text = row_json(row);
  const auto back = row_from_json(text);
  REQUIRE(back);
  CHECK(row_json(*back) == text);
  CHECK(back->inputs == row.inputs);
  CHECK(back->answers.right == 42);
  CHECK(back->backend == "cuda");
  CHECK(back->kv_read_bytes_mean == 512);
  CHECK(back->correction_rate == 0.25);
  CHECK(back->miss_rate == 0);
  for (const std::string& problem :
       {std::string(), std::string("[]"), std::string("{}"), text.substr(0, text.size() / 2),
        std::string("{\"policy\":{\"a\":{\"b\":{}}}}")})
    CHECK_FALSE(row_from_json(problem));
}

TEST_CASE("a row survives the table of all rows, which can be collected again") {
  QualityRow full = answered("full", "needle", 500, 499), snap = answered("snapkv", "needle", 500, 400);
  snap.budget = 64, snap.simulated_tokens_per_s = 1234.5, snap.simulated_load = "h200";
  QualityRow refusal = answered("h2o", "needle", 0, 0);
  refusal.refused = "window 8, \"more\" than 4";
  const testing::Folder folder;
  folder.write("quality.csv", quality_text({full, snap, refusal}, OutputFormat::kCsv));
  std::vector<QualityRow> rows;
  REQUIRE(collect({folder.path() + "/quality.csv"}, &rows));
  REQUIRE(rows.size() == 3);
  CHECK(row_json(rows[0]) == row_json(full));
  CHECK(row_json(rows[1]) == row_json(refusal));
  CHECK(row_json(rows[2]) == row_json(snap));
  CHECK(rows[2].simulated_tokens_per_s == 1234.5);
  folder.write("bad.csv", "policy,budget\nfull,many\n");
  const Result<void> bad = collect({folder.path() + "/bad.csv"}, &rows);
  REQUIRE_FALSE(bad);
  CHECK(bad.error().text().find("bad.csv:2") != std::string::npos);
}

TEST_CASE("quality_text: loss against full, intervals, and the reason of a refusal") {
  QualityRow full, snap, not_run;
  full.policy = "full", full.task = snap.task = not_run.task = "needle";
  full.answers = {10, 10, 10, 0, 30, 0.5};
  full.reads_raw = full.reads_effective = 100;
  snap.policy = "snapkv", snap.budget = 64, snap.answers = {10, 10, 5, 0, 30, 1.25};
  snap.reads_raw = 100, snap.reads_effective = 25;
  not_run.policy = "h2o", not_run.budget = 4, not_run.refused = "window 8, more than 4";
  const std::string csv = quality_text({full, snap, not_run}, OutputFormat::kCsv);
  CHECK(csv.find("snapkv,64,needle,,10,10,5,0.5,") != std::string::npos);
  CHECK(csv.find(",1.25,0.75,") != std::string::npos);
  CHECK(csv.find("\"window 8, more than 4\"") != std::string::npos);
  const std::string table = quality_text({full, snap, not_run}, OutputFormat::kTable);
  CHECK(table.find("25.0 %") != std::string::npos);
  CHECK(table.find("50.0 [23.7 76.3]") != std::string::npos);
  CHECK(table.find("h2o: window 8, more than 4") != std::string::npos);
  CHECK(table.find("corrected") == std::string::npos);
  snap.correction_rate = 0.6;
  CHECK(quality_text({snap}, OutputFormat::kTable).find("corrected") == std::string::npos);
  snap.correction_rate = 0.75;
  CHECK(quality_text({snap}, OutputFormat::kTable).find("snapkv, budget 64, needle: 75.0 % corrected") !=
        std::string::npos);
  CHECK(quality_text({}, OutputFormat::kJson) == "[]\n");
}

TEST_CASE("collect: every combination once, the one with more questions, and no foreign file") {
  const testing::Folder folder;
  const auto write = [&](const std::string& name, const QualityRow& row) {
    folder.write(name, row_json(row));
    return folder.path() + "/" + name.substr(0, name.find('/'));
  };
  const std::string a = write("a/cells/1.json", answered("snapkv", "needle", 500, 400));
  write("a/cells/2.json", answered("h2o", "needle", 500, 300));
  const std::string b = write("b/cells/1.json", answered("snapkv", "needle", 48, 48));
  QualityRow refusal = answered("full", "needle", 0, 0);
  refusal.refused = "no gpu";
  std::vector<QualityRow> rows = {refusal, answered("h2o", "needle", 100, 50)};
  write("b/cells/2.json", answered("full", "needle", 48, 47));
  REQUIRE(collect({a, b}, &rows));
  REQUIRE(rows.size() == 3);
  CHECK((rows[0].policy == "full" && rows[0].answers.right == 47));
  CHECK((rows[1].policy == "h2o" && rows[1].answers.right == 300));
  CHECK((rows[2].policy == "snapkv" && rows[2].answers.right == 400));

  const auto refused = [&](const std::string& dir, const std::string& what) {
    std::vector<QualityRow> mine = {answered("full", "needle", 500, 500)};
    const Result<void> ok = collect({dir}, &mine);
    REQUIRE_FALSE(ok);
    CHECK_MESSAGE(ok.error().text().find(what) != std::string::npos, ok.error().text());
  };
  QualityRow other = answered("snapkv", "needle", 500, 400);
  other.model = "another";
  refused(write("c/cells/1.json", other), "rows of model another");
  other = answered("snapkv", "needle", 500, 400);
  other.asked = "tokens=2048 per_session=4 seed=1";
  refused(write("d/cells/1.json", other), "ran task needle with tokens=2048");
  folder.write("e/cells/1.json", "{}");
  refused(folder.path() + "/e", "is not a cell");
  refused(folder.path() + "/nowhere", "has no cells");
}

}  // namespace
}  // namespace kvtwin
