// kvtwin evaluate: the shipped model still answers as it did, and the table of answers is consistent.
//
// tests/golden/quality/answers.csv has the stored result of each combination below. New numbers may differ
// from it within their intervals. After an intended change:
//
//   cd scenarios/quality
//   for p in full random snapkv judge_q quest int4; do sets="$sets $p.textproto"; done
//   kvtwin evaluate $sets --tasks=multi_key,old_result --budgets=64 --questions=24 --per-session=6 --out=DIR
//   cp DIR/quality.csv ../../tests/golden/quality/answers.csv

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/cli/program.h"

using namespace kvtwin::testing;
namespace fs = std::filesystem;

namespace {

const std::string kQuality = KVTWIN_SOURCE_DIR "/scenarios/quality/";

Words evaluate(const Words& policies, const Words& more) {
  Words words = {"evaluate"};
  for (const std::string& policy : policies) words.push_back(kQuality + policy + ".textproto");
  return words + more;
}
const Words kKvEntries = {"--tasks=multi_key,old_result", "--budgets=64", "--questions=24",
                          "--per-session=6"};
const Words kPolicies = {"full", "random", "snapkv", "judge_q", "quest", "int4"};

// Rows by "policy task".
using Rows = std::map<std::string, CsvRow>;
Rows rows_of(const std::string& csv) {
  Rows out;
  for (const CsvRow& row : csv_rows(csv)) out[row.at("policy") + " " + row.at("task")] = row;
  return out;
}
double number(const Rows& rows, const std::string& cell, const std::string& name) {
  CAPTURE(cell);
  return std::stod(rows.at(cell).at(name));
}

TEST_CASE("kvtwin evaluate: stored accuracies are within the intervals; full, random and chance differ") {
  const Folder folder;
  Words words = evaluate(kPolicies, kKvEntries);
  words.push_back("--out=" + folder.file("q"));
  const Outcome done = succeeded(run_kvtwin(folder, words));
  CHECK(done.err_lines() == 12);
  const Rows rows = rows_of(folder.read("q/quality.csv"));
  const Rows stored = rows_of(Folder::read_any(KVTWIN_SOURCE_DIR "/tests/golden/quality/answers.csv"));
  REQUIRE(rows.size() == 12);
  REQUIRE(stored.size() == 12);
  for (const auto& [cell, row] : rows) {
    const std::string& name = cell;  // clang 14 does not capture structured bindings
    CAPTURE(name);
    CHECK(row.at("refused").empty());
    CHECK(row.at("answered") == row.at("questions"));
    CHECK(number(stored, cell, "accuracy") >= number(rows, cell, "accuracy_low"));
    CHECK(number(stored, cell, "accuracy") <= number(rows, cell, "accuracy_high"));
    // Answers have two of 64 symbols, so chance is almost never right.
    CHECK(number(rows, cell, "right_permuted") <= 2);
  }
  for (const std::string task : {"multi_key", "old_result"}) {
    CHECK(number(rows, "full " + task, "accuracy") >= 0.9);
    CHECK(number(rows, "random " + task, "accuracy_high") < number(rows, "full " + task, "accuracy_low"));
    CHECK(number(rows, "random " + task, "token_loss_above_full") > 1);
    CHECK(number(rows, "random " + task, "kv_fraction") < 0.5);
    CHECK(number(rows, "full " + task, "kv_fraction") == 1);
    // The part that is read of the full cache: everything in the first of six layers, 64 of about 370 tokens
    // in the others.
    CHECK(number(rows, "quest " + task, "accuracy_low") > number(rows, "random " + task, "accuracy_high"));
    CHECK(number(rows, "quest " + task, "kv_fraction") == 1);
    CHECK(number(rows, "quest " + task, "kv_read_bytes_mean") <
          0.4 * number(rows, "full " + task, "kv_bytes_mean"));
    CHECK(number(rows, "judge_q " + task, "accuracy") >= number(rows, "snapkv " + task, "accuracy"));
  }
  CHECK(number(rows, "snapkv multi_key", "accuracy_low") > number(rows, "random multi_key", "accuracy_high"));

  // A scorer that retained at random under another name would be noticed.
  for (const std::string name :
       {"snapkv multi_key", "judge_q multi_key", "judge_q old_result", "snapkv old_result"}) {
    const std::string task = name.substr(name.find(' '));
    CHECK(number(stored, name, "accuracy") > number(rows, "random" + task, "accuracy_high"));
  }

  SUBCASE("existing results are not computed again") {
    const Outcome again = succeeded(run_kvtwin(folder, words));
    CHECK(again.err.empty());
    CHECK(again.out == done.out);
  }
}

TEST_CASE("kvtwin evaluate: the models of the Qwen3 family answer as their trainer counted") {
  for (const std::string name : {"tasks-qwen3-6x256", "tasks-smooth-6x256"}) {
    CAPTURE(name);
    const Folder folder;
    const std::string model = KVTWIN_SOURCE_DIR "/models/tiny/" + name;
    const nlohmann::json counted =
        nlohmann::json::parse(Folder::read_any(model + ".recipe.json"))["phases"].back()["test"];
    const Outcome done = succeeded(run_kvtwin(
        folder, evaluate({"full"}, {"--tasks=old_result,question_first", "--questions=32", "--per-session=4",
                                    "--set=model.name=" + model + ".textproto",
                                    "--set=cpu.checkpoint=" + model, "--set=limits.prefix_cache=true",
                                    "--out=" + folder.file("q"), "--format=csv", "--quiet"})));
    const Rows rows = rows_of(done.out);
    for (const std::string task : {"old_result", "question_first"}) {
      CAPTURE(task);
      const nlohmann::json& there = counted[task];
      const double right = there["right"].get<double>() / there["asked"].get<double>();
      CHECK(number(rows, "full " + task, "answered") == 32);
      CHECK(number(rows, "full " + task, "accuracy") >= 0.9);
      CHECK(right >= number(rows, "full " + task, "accuracy_low"));
      CHECK(right <= number(rows, "full " + task, "accuracy_high"));
    }
  }
}

TEST_CASE("kvtwin evaluate: shards and one process write the same bytes") {
  const Folder folder;
  const Words cells = {"--tasks=needle,tool_schema", "--budgets=32,64", "--questions=4", "--tokens=128",
                       "--quiet"};
  const auto run = [&](const std::string& out, const std::string& shard) {
    const Words to = {"--out=" + folder.file(out), "--shard=" + shard};
    return succeeded(run_kvtwin(folder, evaluate({"full", "knorm"}, cells + to))).out;
  };
  run("parts", "1/2");
  const std::string parts = run("parts", "0/2");
  CHECK(run("whole", "0/1") == parts);
  CHECK(folder.read("whole/quality.csv") == folder.read("parts/quality.csv"));
  CHECK(folder.read("whole/quality.json") == folder.read("parts/quality.json"));

  SUBCASE("each backend has its own processes") {
    const Words to = {"--out=" + folder.file("lanes"), "--backend=cuda,cpu", "--jobs=1,2"};
    succeeded(run_kvtwin(folder, evaluate({"full", "knorm"}, cells + to)));
    const Rows lanes = rows_of(folder.read("lanes/quality.csv")),
               whole = rows_of(folder.read("whole/quality.csv"));
    REQUIRE(lanes.size() == whole.size());
    for (const auto& [cell, row] : lanes) {
      const std::string& name = cell;
      CAPTURE(name);
      CHECK(row.at("answered") == row.at("questions"));
      // Without a GPU the CPU computes everything.
      if (row.at("backend") == "cpu") CHECK(row.at("samples") == whole.at(cell).at("samples"));
    }
  }
  SUBCASE("processes, a batch, and collected folders give the same rows") {
    const auto made = [&](const Words& sets, const char* out, const Words& more) {
      succeeded(run_kvtwin(folder, evaluate(sets, cells + more + Words{"--out=" + folder.file(out)})));
    };
    made({"full", "knorm"}, "jobs", {"--jobs=3"});
    CHECK(folder.read("whole/quality.csv") == folder.read("jobs/quality.csv"));
    made({"full", "knorm"}, "batch", {"--batch=2"});
    const Rows whole = rows_of(folder.read("whole/quality.csv")),
               batch = rows_of(folder.read("batch/quality.csv"));
    for (const auto& [cell, row] : whole) {
      CHECK(row.at("samples") == batch.at(cell).at("samples"));
      CHECK(row.at("inputs") != batch.at(cell).at("inputs"));
    }
    made({"full"}, "full", {});
    const Outcome both = succeeded(run_kvtwin(
        folder, {"evaluate", "--collect=" + folder.file("full"), "--collect=" + folder.file("jobs"),
                 "--out=" + folder.file("both"), "--format=csv"}));
    CHECK(rows_of(both.out) == whole);
  }
}

TEST_CASE("kvtwin evaluate: processes inherit this one's settings, and each combination is computed once") {
  const Folder folder;
  const Words words = evaluate(
      {"full", "knorm"}, {"--tasks=needle,tool_schema", "--budgets=32,64", "--questions=4", "--tokens=128",
                          "--out=" + folder.file("once"), "--backend=cuda,cpu", "--jobs=1,2", "--seed=7",
                          "--batch=2", "--per-session=2", "--set=limits.step_tokens_max=768"});
  const Outcome done = succeeded(run_kvtwin(folder, words));
  CHECK_MESSAGE(done.err_lines() == 6, done.err);
  CHECK_MESSAGE(!done.said("ended with status"), done.err);
  const fs::path logs = folder.file("once/logs");
  const auto shards = [&](const std::string& lane) {
    const fs::directory_iterator files(logs);
    return std::count_if(begin(files), end(files), [&](const fs::directory_entry& file) {
      return file.path().filename().string().starts_with(lane);
    });
  };
  // A GPU shard is started exactly if a GPU computes.
  const Rows once = rows_of(folder.read("once/quality.csv"));
  const bool gpu = std::any_of(once.begin(), once.end(),
                               [](const auto& cell) { return cell.second.at("backend") == "cuda"; });
  CHECK((shards("0.") > 0) == gpu);
  // A GPU has one process. Without one there are 2 x 4 shards: five, since that is coprime to six
  // combinations.
  CHECK(shards("0.") <= 1);
  if (!gpu) CHECK(shards("1.") == 5);
}

TEST_CASE("kvtwin evaluate: throughput is that of the load with the policy set, at the same fraction") {
  const Folder folder;
  folder.write("requests.csv",
               "TIMESTAMP,ContextTokens,GeneratedTokens\n2026-01-01 00:00:00.0000000,4096,64\n"
               "2026-01-01 00:00:00.0000000,4096,64\n");
  folder.write("load.textproto",
               "model { name: \"llama-3.1-8b\" } hardware { node: \"h200\" } memory { page_tokens: 32 }\n"
               "policies { retrieval_options { sink_tokens: 64 window_tokens: 128 } }\n"
               "trace { path: \"requests.csv\" format: \"azure\" } replay { arrivals: \"all_at_once\" }\n");
  const Outcome done = run_kvtwin(
      folder,
      evaluate({"full", "knorm", "quest", "random", "triaxial"},
               {"--tasks=needle", "--budgets=32,64", "--questions=4", "--tokens=128", "--jobs=2", "--quiet",
                "--out=" + folder.file("q"), "--throughput=" + folder.file("load.textproto")}));
  if (done.said("no simulated backend")) return;
  REQUIRE_MESSAGE(done.status == 0, done.err);
  std::map<std::string, double> speed;
  for (const CsvRow& row : csv_rows(folder.read("q/quality.csv"))) {
    const std::string& policy = row.at("policy");
    CAPTURE(policy);
    const bool tags = policy == "triaxial";  // its bits depend on tags, which the load lacks
    CHECK(row.at("simulated_load") == (tags ? "" : "load"));
    speed[policy + "," + row.at("budget")] = tags ? 0 : std::stod(row.at("simulated_tokens_per_s"));
  }
  CHECK(speed.size() == 8);
  CHECK(speed.at("knorm,32") > speed.at("knorm,64"));
  CHECK(speed.at("knorm,64") > speed.at("full,0"));
  CHECK(speed.at("quest,32") > speed.at("quest,64"));
  // A quarter of 4,096 tokens, in whole pages where pages are selected.
  const auto simulated = [&](const std::string& field, const std::string& set) {
    for (const fs::directory_entry& run : fs::directory_iterator(folder.file("q/throughput"))) {
      const std::string text = Folder::read_any((run.path() / "scenario.textproto").string());
      if (text.find("name: \"" + set + "_on_load\"") != std::string::npos &&
          text.find(field) != std::string::npos)
        return true;
    }
    return false;
  };
  CHECK(simulated("kv_entries: 1024", "knorm"));
  CHECK(simulated("budget_tokens: 1024", "quest"));

  // Rows of another evaluation, whose policy sets are in another folder; the same simulations are found
  // again.
  const Outcome again = succeeded(
      run_kvtwin(folder, {"evaluate", "--collect=" + folder.file("q/quality.csv"), "--sets-in=" + kQuality,
                          "--throughput=" + folder.file("load.textproto"), "--out=" + folder.file("q")}));
  CHECK(again.said("triaxial: "));
  CHECK(again.out == done.out);
}

TEST_CASE("kvtwin evaluate: bytes of the retained KV") {
  const Folder folder;
  SUBCASE("bytes are those of all heads, also where heads have their own pages") {
    const Words few = {
        "--tasks=needle", "--budgets=32", "--questions=2", "--tokens=128", "--out=" + folder.file("bytes"),
        "--format=csv",   "--quiet"};
    const Outcome done = succeeded(run_kvtwin(folder, evaluate({"full", "adakv"}, few)));
    const Rows rows = rows_of(done.out);
    CHECK(number(rows, "adakv needle", "kv_bytes_mean") ==
          doctest::Approx(number(rows, "adakv needle", "kv_fraction") *
                          number(rows, "full needle", "kv_bytes_mean")));
  }
  SUBCASE("bytes count both formats, and exact tokens next to packed pages") {
    const Words few = {"--tasks=newest_result",         "--questions=2", "--per-session=2", "--tokens=512",
                       "--out=" + folder.file("bytes"), "--format=csv",  "--quiet"};
    const Outcome done =
        succeeded(run_kvtwin(folder, evaluate({"full", "int4", "kivi", "triaxial_newest", "int2"}, few)));
    const Rows rows = rows_of(done.out);
    const auto bytes = [&](const std::string& policy) {
      return number(rows, policy + " newest_result", "kv_bytes_mean");
    };
    // Per head and token 256 bytes in bf16, 80 in 4 bits, 48 in 2 (docs/design/methods/triaxialkv.md#bytes);
    // KIVI stores 32 tokens in bf16.
    CHECK(bytes("int4") == doctest::Approx(bytes("full") * 80 / 256));
    CHECK(bytes("kivi") == doctest::Approx(bytes("full") * 48 / 256 + 32 * 24 * 256));
    CHECK(bytes("int2") >= bytes("full") * 48 / 256);
    CHECK(bytes("int2") < bytes("triaxial_newest"));
    CHECK(bytes("triaxial_newest") < bytes("int4"));
  }
}

TEST_CASE("kvtwin evaluate: only the checkpoint in a checkpoint's folder is an input, in any place") {
  const Folder folder;

  const fs::path source = KVTWIN_SOURCE_DIR;
  for (const std::string name : {"copy", "elsewhere"}) {
    fs::create_directories(fs::path(folder.file(name)) / "tiny");
    fs::copy(source / "scenarios/quality/full.textproto", folder.file(name + "/full.textproto"));
    fs::copy(source / "models/tiny/tasks-6x256.textproto", folder.file(name + "/model.textproto"));
    for (const std::string part : {"config.json", "model.safetensors"})
      fs::copy(source / "models/tiny/tasks-6x256" / part, folder.file(name + "/tiny/" + part));
  }
  fs::path copy = folder.file("elsewhere");
  const auto inputs = [&](const std::string& out) {
    const Outcome done = succeeded(
        run_kvtwin(folder, {"evaluate", (copy / "full.textproto").string(), "--tasks=needle", "--questions=2",
                            "--tokens=128", "--set=model.name=" + (copy / "model.textproto").string(),
                            "--set=cpu.checkpoint=" + (copy / "tiny").string(), "--out=" + folder.file(out),
                            "--format=csv", "--quiet"}));
    return rows_of(done.out).at("full needle").at("inputs");
  };
  const std::string before = inputs("before");
  copy = folder.file("copy");
  CHECK(inputs("there") == before);
  folder.write("copy/tiny/judge_q.safetensors", "learned since");
  CHECK(inputs("after") == before);
  std::ofstream(copy / "tiny/config.json", std::ios::app) << " ";
  CHECK(inputs("changed") != before);
}

TEST_CASE("kvtwin evaluate: a refused policy set is a row") {
  const Folder folder;
  const std::string out = "--out=" + folder.file("q");
  const Outcome refused = run_kvtwin(
      folder, evaluate({"full", "snapkv"}, {out, "--tasks=needle", "--budgets=4", "--questions=2"}));
  CHECK(refused.status == 1);
  CHECK_MESSAGE(refused.printed("snapkv: "), refused.out);
  const nlohmann::json rows = nlohmann::json::parse(folder.read("q/quality.json"));
  CHECK(std::any_of(rows.begin(), rows.end(), [](const nlohmann::json& row) {
    return !row["refused"].get<std::string>().empty() && row["accuracy"].is_null();
  }));
  const Outcome other = run_kvtwin(
      folder, evaluate({"full"}, {"--out=" + folder.file("r"), "--tasks=needle", "--questions=2",
                                  "--set=model.name=" KVTWIN_SOURCE_DIR "/models/tiny/llama-4x256.textproto",
                                  "--set=cpu.checkpoint="}));
  CHECK(other.status == 2);  // no question was answered
  CHECK_MESSAGE(other.printed("vocabulary of 512"), other.out);
}

}  // namespace
