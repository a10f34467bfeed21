#include "scenarios/load/units.h"

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "scenarios/load/field_list.h"
#include "scenarios/load/foreign_words.h"
#include "scenarios/load/scenario.h"
#include "scenarios/output/metric_names.h"
#include "scenarios/sweep/axis.h"
#include "tests/support/source_dir.h"

namespace kvtwin {
namespace {

const std::string kPath = testing::source_dir() + "/scenarios/test.textproto";
const std::string kGood =
    "model { name: \"llama-3.1-8b\" }\n"
    "hardware { node: \"h200\" }\n"
    "trace { path: \"../tests/unit/scenarios/units_test.cc\" format: \"azure\" }\n";

std::string plain(const std::string& text, BaseUnit base, bool whole) {
  const Result<std::string> out = without_unit(text, base, whole);
  return out ? *out : "error: " + out.error().what;
}

}  // namespace

TEST_CASE("units: a number with a unit is a number in the field's base unit") {
  struct Row {
    const char* text;
    BaseUnit base;
    bool whole;
    const char* plain;
  };
  const std::vector<Row> rows = {
      {"500GB", BaseUnit::kBytes, true, "500000000000"},
      {"80GiB", BaseUnit::kBytes, true, "85899345920"},
      {"1.1GB", BaseUnit::kBytes, true, "1100000000"},
      {"0.3GiB", BaseUnit::kBytes, true, "322122547"},
      {"500e9", BaseUnit::kBytes, true, "500000000000"},
      {"5e-1TB", BaseUnit::kBytes, true, "500000000000"},
      {"18446744073709551615", BaseUnit::kBytes, true, "18446744073709551615"},
      {"18446744073709551616B", BaseUnit::kBytes, true, "error: is too large"},
      {"1e300GB", BaseUnit::kBytes, true, "error: is too large"},
      {"1e-300GB", BaseUnit::kBytes, true, "0"},
      {"1,000GB", BaseUnit::kBytes, true, "1000000000000"},
      {"-2GB", BaseUnit::kBytes, true, "-2000000000"},
      {"500gb", BaseUnit::kBytes, true, "error: has no unit \"gb\""},
      {"500 GB", BaseUnit::kBytes, true, "error: has no unit \" GB\""},
      {"60s", BaseUnit::kNanoseconds, true, "60000000000"},
      {"5ms", BaseUnit::kNanoseconds, true, "5000000"},
      {"2h", BaseUnit::kNanoseconds, true, "7200000000000"},
      {"5ms", BaseUnit::kSeconds, false, "0.005"},
      {"1.5min", BaseUnit::kSeconds, false, "90"},
      {"2d", BaseUnit::kSeconds, false, "172800"},
      {"90%", BaseUnit::kNumber, false, "0.9"},
      {"30/min", BaseUnit::kPerSecond, false, "0.5"},
      {"8k", BaseUnit::kCount, true, "8000"},
      {"8Ki", BaseUnit::kCount, true, "8192"},
      {"8K", BaseUnit::kCount, true, "error: has no unit \"K\""},
      {"1.5", BaseUnit::kCount, true, "error: is not a whole number"},
      {"1.5k", BaseUnit::kCount, true, "1500"},
      {"90%", BaseUnit::kCount, true, "error: has no unit \"%\""},
      {"auto", BaseUnit::kBytes, true, "auto"},
      {"", BaseUnit::kBytes, true, ""},
      {"0x10", BaseUnit::kCount, true, "0x10"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.text);
    CHECK(plain(row.text, row.base, row.whole) == row.plain);
  }
}

TEST_CASE("units: scenario files and --set take them") {
  std::string text = kGood;
  text.replace(text.find("format:"), 0, "jitter_ns: \"3s\" ");
  const auto file = parse_scenario(text +
                                       "memory { host_bytes: 100GB gpu_fraction: 85% } # 5XB\n"

                                       "limits { capture_sizes: [1, 2, 1k] }\n",
                                   kPath, {"memory.disk_bytes=2TB"});
  REQUIRE_MESSAGE(file, file.error().front().text());
  CHECK(file->values.memory().host_bytes() == 100'000'000'000);
  CHECK(file->values.memory().gpu_fraction() == 0.85);
  CHECK(file->values.memory().disk_bytes() == 2'000'000'000'000);
  CHECK(file->values.trace().jitter_ns() == 3'000'000'000);
  CHECK(file->values.limits().capture_sizes(2) == 1000);
}

TEST_CASE("units: both ends of a range have the same one") {
  const Result<Axis> axis = parse_axis("memory.host_bytes=100GB..400GB*2");
  REQUIRE(axis);
  CHECK(axis->values == std::vector<std::string>{"100GB", "200GB", "400GB"});
  CHECK(!parse_axis("memory.host_bytes=100MB..400GB*2"));
  CHECK(!parse_axis("memory.host_bytes=100..400GB"));
  const Result<Axis> sampled = parse_axis("memory.gpu_fraction=50%..90%");
  REQUIRE(sampled);
  CHECK(sampled->at(0) == "50%");
}

TEST_CASE("words: every field that a word of another engine stands for exists") {
  std::vector<std::string> paths;
  for (const FieldLine& line : scenario_fields()) paths.push_back(line.path);
  for (const ForeignWord& word : foreign_words()) {
    CAPTURE(word.word);
    const std::string field(word.ours.substr(0, word.ours.find('=')));
    CHECK((word.ours.empty() || std::find(paths.begin(), paths.end(), field) != paths.end()));
    CHECK((!word.ours.empty() || !word.note.empty()));
    CHECK(foreign_word(word.word) == &word);
  }
  CHECK(foreign_hint("--max-num-seqs") == "max_num_seqs (vLLM) is limits.requests_max here");
  CHECK(foreign_word("requests_max") == nullptr);
}

TEST_CASE("fields: every field has a meaning") {
  for (const FieldLine& line : scenario_fields()) {
    CAPTURE(line.path);
    CHECK(!line.comment.empty());
  }
}

TEST_CASE("metrics: one name for each, and its other forms lead to it") {
  const std::vector<std::pair<const char*, const char*>> rows = {{"ttft_p99_ms", "ttft_p99_ms"},
                                                                 {"ttft_p99", "ttft_p99_ms"},
                                                                 {"ttft.p99", "ttft_p99_ms"},
                                                                 {"p99_ttft_ms", "ttft_p99_ms"},
                                                                 {"mean_tpot", "tpot_mean_ms"},
                                                                 {"latency.median", "e2e_p50_ms"},
                                                                 {"session_p90", "session_makespan_p90_ms"},
                                                                 {"elapsed", "elapsed_s"},
                                                                 {"prefix_reuse", "prefix_reuse"},
                                                                 {"ttft_p98", ""},
                                                                 {"", ""},
                                                                 {"speed", ""}};
  for (const auto& [word, name] : rows) {
    CAPTURE(word);
    CHECK(metric_name(word) == name);
  }
  CHECK(metric_hint("ttft_p98_ms").starts_with("did you mean"));
}

}  // namespace kvtwin
