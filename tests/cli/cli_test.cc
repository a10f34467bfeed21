#include <fmt/format.h>

#include <filesystem>
#include <fstream>

#include "tests/cli/program.h"
#include "tests/support/perfetto_trace.h"

namespace fs = std::filesystem;
using namespace kvtwin::testing;

namespace {

constexpr char kSample[] = KVTWIN_SOURCE_DIR "/scenarios/shipped/coding_agents_small.textproto";

Outcome tool(const Folder& scratch, const std::string& words) { return run_in_shell(scratch, words); }

}  // namespace

TEST_CASE("cli: help opens with an example and needs little time and memory") {
  const Folder scratch;
  for (const char* command :
       {"", "run --help", "replay --help", "compare --help", "list --help", "trace import --help"}) {
    CAPTURE(command);
    const Outcome outcome = succeeded(tool(scratch, command));
    CHECK(outcome.err.empty());
    CHECK(outcome.printed("kvtwin"));
  }
  CHECK(tool(scratch, "--version").out.find("kvtwin 0.") == 0);
}

TEST_CASE("cli: a scenario that cannot fit is refused with the smallest change that fits, which then runs") {
  const Folder scratch;
  const std::string small = fmt::format("run {} --quiet --no-write --set=replay.sessions_max=2 ", kSample);
  const Outcome window = tool(scratch, small + "--set=model.context_window=20000");
  CHECK(window.status == 2);
  const size_t at = window.err.find("--set=model.context_window=", window.err.find("smallest change"));
  REQUIRE_MESSAGE(at != std::string::npos, window.err);
  const std::string change = window.err.substr(at, window.err.find(';', at) - at);
  succeeded(tool(scratch, small + change));
  const Outcome rejected =
      succeeded(tool(scratch, small + "--set=model.context_window=20000 --set=replay.oversized=reject"));
  CHECK(!rejected.printed(" 0 rejected"));
  check_refused(tool(scratch, small + "--set=model.name=llama-3.1-70b --set=hardware.node=h200-x8"),
                "smallest change that fits: --set=engines.tensor_parallel=2");
  succeeded(tool(scratch, small + "--set=model.name=llama-3.1-70b --set=hardware.node=h200-x8 "
                                  "--set=engines.tensor_parallel=2"));
}

TEST_CASE("cli: the same run twice writes identical bytes, and its log replays to the same digest") {
  const Folder scratch;
  for (const char* dir : {"a", "b"}) {
    const Outcome run = succeeded(
        tool(scratch, fmt::format("run {} --quiet --record --timeline=0..60 --out={}", kSample, dir)));
    CHECK(run.err.empty());
  }
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(scratch.file("a"))) {
    const std::string name = entry.path().filename().string();
    CAPTURE(name);
    CHECK(Folder::read_any(entry.path()) == scratch.read("b/" + name));
    CHECK(Folder::read_any(entry.path()).find(scratch.path()) == std::string::npos);
    ++files;
  }
  CHECK(files == 8);
  const auto trace = kvtwin::testing::read_perfetto(scratch.read("a/timeline.perfetto-trace"));
  for (const std::string& problem : trace.problem) CHECK_MESSAGE(false, problem);
  CHECK(trace.slices.size() > 100);
  CHECK(trace.counters.contains("gpu pages held"));
  const Outcome replayed = succeeded(tool(scratch, "replay a --format=jsonl"));
  CHECK(replayed.printed("\"same\":true"));

  const std::string log = scratch.read("a/log.binpb");
  std::ofstream(scratch.file("cut.binpb"), std::ios::binary) << log.substr(0, log.size() / 2);
  const Outcome cut = tool(scratch, "replay cut.binpb");
  CHECK(cut.status == 2);
  CHECK(cut.err.find("cut.binpb") == 0);
}

TEST_CASE(
    "cli: every eviction order replays to the same digest, coalesced or not, with hits within the bound") {
  const Folder scratch;
  const auto number = [](const std::string& json, const std::string& name) {
    const size_t at = json.find("\"" + name + "\":");
    REQUIRE(at != std::string::npos);
    return std::stoull(json.substr(at + name.size() + 3));
  };
  std::vector<unsigned long long> found;
  for (const char* order : {"lru", "lfu", "session_aware", "cost_aware", "tool_ttl"}) {
    CAPTURE(order);
    const std::string run = fmt::format(
        "run {} --quiet --record --format=jsonl --prefix-bound --set=memory.gpu_pages=5000 "
        "--set=policies.prefix_eviction={} ",
        kSample, order);
    const Outcome coalesced = succeeded(tool(scratch, run + "--force --out=a"));
    const Outcome single = succeeded(tool(scratch, run + "--set=simulation.coalesce=false --force --out=b"));
    for (const std::string file : {"/log.binpb", "/requests.csv"})
      CHECK(scratch.read("a" + file) == scratch.read("b" + file));
    const Outcome replayed = tool(scratch, "replay a --format=jsonl");
    CHECK(replayed.printed("\"same\":true"));
    found.push_back(number(coalesced.out, "reused_tokens_first"));
    CHECK(found.back() > 0);
    CHECK(found.back() <= number(coalesced.out, "reused_tokens_bound"));
    CHECK(number(coalesced.out, "reused_tokens_bound") <= number(coalesced.out, "admitted_prompt_tokens"));
  }
  std::sort(found.begin(), found.end());
  CHECK(std::unique(found.begin(), found.end()) == found.end());  // four orders, four results
}

TEST_CASE("cli: the resolved scenario of a result repeats it") {
  const Folder scratch;
  succeeded(
      tool(scratch, fmt::format("run {} --quiet --out=a --set=limits.requests_max=7 --seed=3", kSample)));
  succeeded(tool(scratch, "run a/scenario.resolved.textproto --quiet --out=b"));
  CHECK(scratch.read("a/requests.csv") == scratch.read("b/requests.csv"));
  CHECK(scratch.read("a/run.binpb") == scratch.read("b/run.binpb"));
}

TEST_CASE("cli: the summary has its two numbers first, its attribution sums, and every format is complete") {
  const Folder scratch;
  const std::string run = fmt::format("run {} --quiet --no-write", kSample);
  const std::string table = tool(scratch, run).out;
  CHECK(table.find("coding_agents_small: ") == 0);
  for (const char* word :
       {"\n  llama-3.1-8b on 1 engine of 1 GPU (h200); trace coding_agents_small.kvtrace; room for 901,824 "
        "tokens",
        "\n  limited by nothing: GPU busy 8 %, requests queue", "ttft in a server's log", "tpot", "e2e",
        "session, start to end", "throughput", "prefix reuse", "preemptions               none",
        "KV pages, peak", "space lost in pages", "transfers", "time of requests", "token counts of the trace",
        "step times from", "rejected", "seed=42 decisions=", "repeat: kvtwin run"}) {
    CAPTURE(word);
    CHECK(table.find(word) != std::string::npos);
  }
  // A line that does not apply is left out.
  CHECK(table.find("after preemption") == std::string::npos);
  const std::string json = tool(scratch, run + " --format=jsonl").out;
  const auto number = [&](const std::string& name) {
    return std::stod(json.substr(json.find("\"time_" + name + "_s\":") + name.size() + 10));
  };
  double parts = 0;
  for (const char* part : {"queue", "transfer", "prefill", "recompute", "decode", "host"})
    parts += number(part);
  CHECK(parts == doctest::Approx(number("latency")).epsilon(1e-12));
  CHECK(tool(scratch, run + " --format=json").out.front() == '{');
  CHECK(tool(scratch, run + " --format=jsonl").out.find("{\"schema\":1,") == 0);
  const std::string csv = tool(scratch, run + " --format=csv").out;
  CHECK(csv.find("schema,version,scenario") == 0);
}

TEST_CASE("cli: a run compared with itself has no differences, and limits decide the exit status") {
  const Folder scratch;
  succeeded(tool(scratch, fmt::format("run {} --quiet --out=a", kSample)));
  succeeded(
      tool(scratch, fmt::format("run {} --quiet --out=b --set=cost.host_ns_per_step=3000000", kSample)));
  const Outcome same =
      succeeded(tool(scratch, "compare a a/requests.jsonl --limit=ttft.mean=0 --format=csv"));
  CHECK(same.printed("ttft,mean,"));
  const Outcome other = tool(scratch, "compare b a/requests.jsonl --skip=30 --limit=tpot.mean=1.0");
  CHECK(other.status == 1);
  CHECK(other.printed("the first 30 are not scored"));
  CHECK(other.said("limit 1 %"));
  // Two runs: what differs in settings and results.
  const Outcome runs = succeeded(tool(scratch, "compare a b"));
  CHECK(runs.printed("cost.host_ns_per_step "));
  CHECK(runs.printed("  ttft_p99_ms "));
  CHECK(runs.printed(" requests that both finished, "));
  succeeded(tool(scratch, "compare a a --limit=ttft_p99=0 --limit=prefix_reuse=0"));
  CHECK(tool(scratch, "compare a a").printed("all decisions are the same"));
  CHECK(tool(scratch, "compare a a/requests.jsonl --limit=tptf.mean=1").status == 2);
  CHECK(tool(scratch, "compare a a/requests.jsonl --skip=100000").status == 2);
}

TEST_CASE("cli: an unwritable output path is an environment failure, status 3") {
  const Folder scratch;
  std::ofstream(scratch.file("file")) << "x";
  const Outcome outcome = tool(scratch, fmt::format("run {} --quiet --out=file/dir", kSample));
  CHECK(outcome.status == 3);
  CHECK(outcome.said("file/dir"));
}

TEST_CASE("cli: a report takes validations and qualities") {
  const Folder scratch;
  const std::string data = KVTWIN_SOURCE_DIR "/tests/unit/reports_data";
  const Outcome good = succeeded(tool(scratch, fmt::format("report {} --out=r.md", data)));
  CHECK(good.printed("1 validation, 1 evaluation"));
  const std::string page = scratch.read("r.md");
  CHECK(page.find("| snapkv | 64 |") != std::string::npos);
  CHECK(page.find("same decisions") != std::string::npos);
  const std::string head = "policy,budget,task,refused,accuracy,kv_bytes_mean\n";
  // An empty cell of an optional column is no figure: here no interval, rather than one from 0 to 0.
  scratch.write("open.csv",
                "policy,budget,task,accuracy,accuracy_low,accuracy_high,kv_bytes_mean\n"
                "full,0,a,0.75,,,1e6\nsnapkv,64,a,0.5,0.4,0.6,1e5\n");
  const Outcome open = succeeded(tool(scratch, "report open.csv --out=o.md"));
  CHECK_MESSAGE(scratch.read("o.md").find("| full | all | 75.0 % |") != std::string::npos,
                scratch.read("o.md"));
  CHECK(scratch.read("o.md").find("| snapkv | 64 | 50.0 % [40 60] |") != std::string::npos);
  scratch.write("mine.csv", head + "full,0,a,,0.75,1e6\nquest,0,a,\"cannot, by far\",,\n");
  const Outcome csv = succeeded(tool(scratch, "report mine.csv --out=q.md"));
  CHECK(scratch.read("q.md").find("| full | all | 75.0 % |") != std::string::npos);
}

TEST_CASE("cli: a run writes the times of its sessions' tools, between the requests that wait for them") {
  const Folder scratch;
  const Outcome outcome =
      succeeded(tool(scratch, fmt::format("run {} --quiet --set=replay.sessions_max=2 --out=run", kSample)));
  // The first session's first request, its tool, and the request that follows the tool: nodes 0, 1 and 2.
  const auto row_of = [&](const char* file, const std::string& node) {
    for (const CsvRow& row : csv_rows(scratch.read(file)))
      if (row.at("session") == "coding-000000" && row.at("node") == node) return row;
    return CsvRow();
  };
  const CsvRow first = row_of("run/requests.csv", "0"), tool = row_of("run/tools.csv", "1"),
               next = row_of("run/requests.csv", "2");
  CHECK(first.at("finished_ns") == tool.at("released_ns"));
  CHECK(tool.at("kind") == "tool");
  CHECK(std::stoll(tool.at("finished_ns")) <= std::stoll(next.at("ready_ns")));
  CHECK(std::stoll(tool.at("finished_ns")) > std::stoll(tool.at("released_ns")));
  CHECK(next.at("agent") == "0");  // the first agent
}

TEST_CASE("cli: an imported run appears in a report together with kvtwin's, and is compared") {
  const Folder scratch;
  scratch.write("bench.json", R"({"model_id":"real","duration":4.0,"input_lens":[10,20],"output_lens":[3,2],)"
                              R"("ttfts":[0.5,0.25],"itls":[[0.1,0.3],[0.2]],"start_times":[100.0,101.0]})");
  const Outcome imported = succeeded(tool(scratch, "import bench.json --out=real"));
  succeeded(tool(scratch, fmt::format("run {} --quiet --out=ours", kSample)));
  const Outcome report = succeeded(tool(scratch, "report real ours --out=r.md"));
  CHECK(scratch.read("r.md").find("| TTFT median, ms | 250 |") != std::string::npos);
  const Outcome judged = succeeded(tool(
      scratch, "report real ours '--slo=ttft_p99<300ms' '--slo=ttft<1h' '--slo=goodput>=50%' --out=r.html"));
  // The figure, the used fraction of the limit, and the verdict: TTFTs of 250 and 500 ms.
  CHECK(scratch.read("r.html").find(R"("slos":[[500.0,1.6666666666666667,false],[1.0,0.0,true]])") !=
        std::string::npos);
  const Outcome bad = tool(scratch, "report real '--slo=ttft_p99<300' --out=r.html");
  CHECK(bad.status == 2);
  CHECK(bad.err == "--slo=ttft_p99<300: 300 has no unit; ns, us, ms, s, min or h\n");
  const Outcome same = succeeded(tool(scratch, "compare real real/requests.jsonl --limit=ttft.mean=0.01"));
  CHECK(tool(scratch, "import bench.json --out=real --format=csv").status == 2);
  CHECK(tool(scratch, "import --help").printed("--before=FILE"));
}

TEST_CASE("cli: with an earlier scrape, a server's counters are differences") {
  const Folder scratch;
  const auto scrape = [&](const char* name, int short_ones, int all, double sum) {
    const auto line = [](const char* what, const char* labels, double value) {
      return fmt::format("vllm:time_to_first_token_seconds_{}{} {}\n", what, labels, value);
    };
    scratch.write(name, line("bucket", "{le=\"0.1\"}", short_ones) + line("bucket", "{le=\"0.5\"}", all) +
                            line("bucket", "{le=\"+Inf\"}", all) + line("sum", "", sum) +
                            line("count", "", all));
  };
  scrape("before.txt", 2, 2, 0.1);
  scrape("after.txt", 4, 10, 2.5);
  // Eight since the first scrape: two up to 0.1 s, six from there to 0.5 s; the fourth is a third of the way.
  const auto median = [&](const std::string& more) {
    const Outcome read = succeeded(
        tool(scratch, "import after.txt --format=prometheus --seconds=10 --force --out=scraped" + more));
    succeeded(tool(scratch, "report scraped --out=scraped.md"));
    const std::string text = scratch.read("scraped.md");
    const size_t at = text.find("| TTFT median, ms | ");
    REQUIRE(at != std::string::npos);
    return std::stod(text.substr(at + 20));
  };
  CHECK(median(" --before=before.txt") == doctest::Approx(233).epsilon(0.01));
  CHECK(median("") == doctest::Approx(167).epsilon(0.01));  // the fifth of ten: a sixth of the way
  check_refused(tool(scratch, "import before.txt --format=prometheus --before=after.txt --out=wrong"),
                "--before");
}

TEST_CASE("cli: every shipped scenario loads, or names its missing data") {
  const Folder scratch;
  const std::string list = tool(scratch, "list scenarios").out;
  for (const char* name : {"coding_agents_small", "mooncake_conversation", "azure_conversation",
                           "weka_h200_host", "vllm_rtx4090_llama8b", "methods/freekv"}) {
    CAPTURE(name);
    CHECK(list.find(name) != std::string::npos);
  }
  CHECK(tool(scratch, "list policies").out.find("policies.scorer") == 0);
  CHECK(tool(scratch, "list models").printed("llama-3.1-8b"));
  CHECK(tool(scratch, "list nodes").printed("h200"));
}
