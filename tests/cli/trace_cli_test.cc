// kvtwin trace on the command line: tiny files in every format, and hostile files.
#include <array>

#include "tests/cli/program.h"

using namespace kvtwin::testing;

namespace {

constexpr uint64_t kPeakMax = 500'000'000;
// AddressSanitizer retains 256 MB of freed memory in addition to its shadow, so peaks do not measure the
// program.
#ifdef __SANITIZE_ADDRESS__
constexpr bool kMeasuresMemory = false;
#else
constexpr bool kMeasuresMemory = true;
#endif
const std::string kSample = KVTWIN_SOURCE_DIR "/traces/data/coding_agents_small.kvtrace";
const std::string kSeeds = KVTWIN_SOURCE_DIR "/tests/fuzz/import_formats_fuzz/";

const std::string kRows =
    "{\"timestamp\": 0, \"session_id\": \"a\", \"input_length\": 513, \"output_length\": 7, "
    "\"hash_ids\": [4, 5]}\n"
    "{\"delay\": 250, \"session_id\": \"a\", \"input_length\": 1024, \"output_length\": 1, "
    "\"hash_ids\": [4, 6]}\n";

// The hand-written files of the formats are the fuzzer's seeds, after its two bytes of options.
std::string foreign(const std::string& seed) {
  std::ifstream in(kSeeds + seed, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(in), {}};
  REQUIRE(bytes.size() > 2);
  return bytes.substr(2);
}

void refused_in_a_line(const Outcome& outcome, const std::string& path) {
  CAPTURE(outcome.err);
  CHECK(outcome.status == 2);
  CHECK(outcome.err_lines() == 1);
  CHECK(outcome.said(path));
  CHECK(outcome.out.empty());
  if constexpr (kMeasuresMemory) CHECK(outcome.peak_bytes < kPeakMax);
}

}  // namespace

TEST_CASE("trace: import, inspect, cut, export and import again") {
  const Folder folder;
  const std::string rows = folder.write("rows.jsonl", kRows);
  const std::string trace = folder.file("a.trace"), cut = folder.file("cut.trace");
  const Outcome imported = succeeded(run_kvtwin(folder, {"trace", "import", "auto", rows, "--out=" + trace}));
  CHECK(imported.out ==
        trace + ": 1 session, 2 requests, 0 tool calls, 1537 prompt tokens, 8 output tokens\n");
  CHECK(imported.err.empty());

  const Outcome table = succeeded(run_kvtwin(folder, {"trace", "inspect", trace}));
  CHECK(table.printed("requests"));
  const Outcome json = succeeded(run_kvtwin(folder, {"trace", "inspect", trace, "--format=json"}));
  CHECK(json.out.front() == '{');

  succeeded(run_kvtwin(folder, {"trace", "export", "mooncake", trace, "--out=" + folder.file("back.jsonl")}));
  CHECK(folder.read("back.jsonl") == kRows);

  const Outcome headed = run_kvtwin(folder, {"trace", "cut", trace, "--requests=1", "--out=" + cut});
  CHECK(headed.out == cut + ": 1 session, 1 request, 0 tool calls, 513 prompt tokens, 7 output tokens\n");
  succeeded(run_kvtwin(folder, {"trace", "export", "mooncake", cut, "--out=" + folder.file("head.jsonl")}));
  CHECK(folder.read("head.jsonl").find("1024") == std::string::npos);
}

TEST_CASE("trace: the shipped trace is inspected, and cut to a window") {
  const Folder folder;
  const Outcome whole = succeeded(run_kvtwin(folder, {"trace", "inspect", kSample}));
  CHECK(whole.err.empty());
  const std::string cut = folder.file("cut.trace");
  const Outcome headed = succeeded(
      run_kvtwin(folder, {"trace", "cut", kSample, "--window=32768", "--sessions=5", "--out=" + cut}));
  CHECK(headed.out.find(cut + ": 5 sessions, ") == 0);
}

TEST_CASE("trace: traces that Mooncake rows cannot represent are not exported") {
  const Folder folder;
  const auto refused = [&](const std::string& trace, const std::string& message) {
    const Outcome outcome =
        run_kvtwin(folder, {"trace", "export", "mooncake", trace, "--out=" + folder.file("m.jsonl")});
    refused_in_a_line(outcome, "m.jsonl");
    CHECK(outcome.said(message));
    CHECK(!folder.has("m.jsonl"));
    CHECK(!folder.has("m.jsonl.part"));
  };
  refused(kSample, "some block ids hold in the data set and some in a session");
  const std::string own = folder.file("own.trace");
  succeeded(run_kvtwin(folder, {"trace", "synth", "coding-agent-like", "--sessions=2", "--set=share_groups=0",
                                "--set=subagents_per_mille=1000", "--out=" + own}));
  refused(own, " branches; ");
}

TEST_CASE("trace: every format is guessed from its content, alone, in a directory and in an archive") {
  const Folder folder;
  const std::array<std::array<std::string, 3>, 8> rows = {{{"weka", "weka", ".json"},
                                                           {"mooncake", "mooncake", ".jsonl"},
                                                           {"agentic_mooncake", "agentic_mooncake", ".jsonl"},
                                                           {"azure", "azure", ".csv"},
                                                           {"llmservingsim", "llmservingsim", ".jsonl"},
                                                           {"claude_code", "claude-code", ".jsonl"},
                                                           {"tau_bench", "tau-bench", ".json"},
                                                           {"applied_compute", "applied-compute", ".jsonl"}}};
  for (const auto& [seed, format, ending] : rows) {
    CAPTURE(format);
    const std::string bytes = foreign(seed);
    const std::string file = folder.write(seed + ending, bytes);
    const std::string guessed = folder.file(seed + "_guessed"), named = folder.file(seed + "_named");
    const Outcome one = run_kvtwin(folder, {"trace", "import", "auto", file, "--out=" + guessed});
    CAPTURE(one.err);
    CHECK(one.status == 0);
    succeeded(run_kvtwin(folder, {"trace", "import", format, file, "--out=" + named}));
    CHECK(folder.read(seed + "_guessed") == folder.read(seed + "_named"));
    // Next to it are files of no format.
    const std::string directory = folder.file(seed + "_dir");
    folder.write(seed + "_dir/README.md", "\"hash_ids\"");
    folder.write(seed + "_dir/0.csv", "a,b\n1,2\n");
    folder.write(seed + "_dir/x" + ending, bytes);
    const Outcome all = run_kvtwin(folder, {"trace", "inspect", directory});
    CAPTURE(all.err);
    if (format == "weka" || format == "claude-code" || format == "tau-bench") {
      CHECK(all.status == 0);
    } else {
      refused_in_a_line(all, directory);
      CHECK(all.said("x" + ending + " is of format " + format));
    }
  }
  const std::string archive = folder.write("a.tar", foreign("guessed_archive"));
  const Outcome inspected = succeeded(run_kvtwin(folder, {"trace", "inspect", archive}));
  CHECK(inspected.said("tool schemas among them"));
}

TEST_CASE("trace synth: same arguments, same bytes; the shipped trace is one such output") {
  const Folder folder;
  const Outcome made = run_kvtwin(
      folder, {"trace", "synth", "coding-agent-like", "--sessions=24", "--seed=1", "--set=requests_max=28",
               "--set=window_tokens=65536", "--set=share_groups=2", "--set=subagents_per_mille=25",
               "--set=rate_per_hour=240", "--out=" + folder.file("a.trace")});
  CAPTURE(made.err);
  CHECK(made.status == 0);
  CHECK(made.printed(": 24 sessions, 617 requests, 569 tool calls, "));
  std::ifstream in(kSample, std::ios::binary);
  const std::string shipped{std::istreambuf_iterator<char>(in), {}};
  const bool equal = folder.read("a.trace") == shipped;
  CHECK(equal);
  const auto other = [&](const std::string& seed, const std::string& name) {
    return run_kvtwin(folder, {"trace", "synth", "bcp-like", "--sessions=3", "--seed=" + seed,
                               "--out=" + folder.file(name)})
        .status;
  };
  CHECK(other("1", "one") == 0);
  CHECK(other("2", "two") == 0);
  CHECK(folder.read("one") != folder.read("two"));
  succeeded(run_kvtwin(folder, {"trace", "inspect", folder.file("two")}));
}

TEST_CASE("trace synth: --list describes every recipe and parameter, help opens with an example") {
  const Folder folder;
  const Outcome list = succeeded(run_kvtwin(folder, {"trace", "synth", "--list"}));
  for (const char* const word : {"coding-agent-like:", "reasoning:", "share_groups", "window_tokens"}) {
    CAPTURE(word);
    CHECK(list.printed(word));
  }
  const Outcome help = succeeded(run_kvtwin(folder, {"trace", "synth", "--help"}));
  CHECK(help.out.find("Draws a trace from a recipe") == 0);
  CHECK(help.printed("\n  kvtwin trace synth coding-agent-like"));
  CHECK(help.printed("\n  --sessions=N          how many; default: 100\n"));
}

TEST_CASE("trace: a truncated or garbled trace ends with one message") {
  const Folder folder;
  std::ifstream in(kSample, std::ios::binary);
  const std::string good{std::istreambuf_iterator<char>(in), {}};
  for (const size_t keep : {size_t{1}, size_t{100}, good.size() / 2, good.size() - 1}) {
    CAPTURE(keep);
    const std::string path = folder.write("cut", good.substr(0, keep));
    refused_in_a_line(run_kvtwin(folder, {"trace", "inspect", path, "--from=kvtwin"}), path);
  }
  std::string garbled = good;
  for (size_t i = good.size() / 3; i < good.size() / 3 + 64; ++i) garbled[i] = '\xff';
  const std::string path = folder.write("garbled", garbled);
  refused_in_a_line(run_kvtwin(folder, {"trace", "inspect", path}), path);
  refused_in_a_line(run_kvtwin(folder, {"trace", "inspect", folder.write("empty", "")}), "empty");
}

TEST_CASE("trace: a gigabyte of zeros is refused in every format, without being read into memory") {
  const Folder folder;
  for (const char* const name : {"zeros", "zeros.tar", "zeros.zip", "zeros.tar.xz"}) {
    const std::string path = folder.write(name, "");
    std::filesystem::resize_file(path, uint64_t{1} << 30);
    for (const char* const format :
         {"auto", "kvtwin", "weka", "mooncake", "mooncake-delta", "agentic_mooncake", "azure",
          "llmservingsim", "claude-code", "tau-bench", "applied-compute"}) {
      CAPTURE(format);
      CAPTURE(path);
      refused_in_a_line(run_kvtwin(folder, {"trace", "import", format, path, "--out=" + folder.file("x")}),
                        name);
      if (std::string(name) != "zeros" && std::string(format) == "auto") break;
    }
  }
  const std::string directory = folder.file("many");
  folder.write("many/trace.json", "");
  std::filesystem::resize_file(directory + "/trace.json", uint64_t{1} << 30);
  for (const char* const format : {"auto", "weka", "tau-bench"}) {
    CAPTURE(format);
    refused_in_a_line(run_kvtwin(folder, {"trace", "inspect", directory, std::string("--from=") + format}),
                      "many");
  }
}
