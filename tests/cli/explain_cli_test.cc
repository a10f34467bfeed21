// kvtwin explain: one step, operation by operation.

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "tests/cli/program.h"

using namespace kvtwin::testing;

namespace {

const std::string kMethods = KVTWIN_SOURCE_DIR "/scenarios/methods/";

Words words(const std::string& method, const Words& more) {
  return Words{"explain", kMethods + method + ".textproto"} + more;
}

using Row = CsvRow;

double number(const Row& row, const char* name) { return std::stod(row.at(name)); }

// The millisecond figure after `name` in a table.
double line_ms(const std::string& table, const std::string& name) {
  const size_t at = table.find("  " + name);
  return at == std::string::npos ? -1 : std::stod(table.substr(at + 2 + name.size()));
}

}  // namespace

TEST_CASE("explain cli: all-reduces are operations of their own, measured or marked as assumed") {
  const Folder folder;
  const struct {
    const char* node;
    const char* mark;
  } rows[] = {{"h200-x8", "all-reduce is        measured with 2 GPUs: 240 GB/s and 11.5 us each"},
              {"h100-x8", "all-reduce is        ASSUMED: 297 GB/s and 16.7 us each (0.66 of NVLink)"}};
  for (const auto& row : rows) {
    const Words sets = {"--set=hardware.node=" + std::string(row.node), "--set=engines.tensor_parallel=2",
                        "--shape=decodes=8,context=4096"};
    const Outcome table = succeeded(run_kvtwin(folder, words("dense", sets)));
    CHECK_MESSAGE(table.printed(row.mark), table.out);
    Words csv = sets;
    csv.push_back("--format=csv");
    size_t reduces = 0;
    double all = 0, end = 0;
    for (const Row& one : csv_rows(run_kvtwin(folder, words("dense", csv)).out)) {
      reduces += one.at("operation") == "all-reduce" ? 1 : 0;
      all += number(one, "duration_ns");
      end = std::max(end, number(one, "start_ns") + number(one, "duration_ns"));
    }
    CHECK(reduces == 33);  // one of each layer, one of the logits
    CHECK(all == doctest::Approx(end).epsilon(1e-6));
  }
  const Outcome one_gpu = run_kvtwin(folder, words("dense", {"--shape=decodes=8,context=4096"}));
  CHECK(!one_gpu.printed("all-reduce"));
}

TEST_CASE("explain cli: a retrieving step's operations fill it, and its critical path has its length") {
  const Folder folder;
  const std::string shape = "--shape=decodes=4,context=32768";
  for (const std::string method : {"arkvale", "freekv", "shadowkv", "infinigen", "quest", "dense"}) {
    CAPTURE(method);
    const Outcome table = succeeded(run_kvtwin(folder, words(method, {shape})));
    const Outcome csv = run_kvtwin(folder, words(method, {shape, "--format=csv"}));
    double computes = 0, stalled = 0, recalls = 0, path = 0;
    for (const Row& row : csv_rows(csv.out)) {
      if (row.at("stream") == "compute") {
        computes += number(row, "duration_ns");
        stalled += number(row, "stalled_ns");
      }
      if (row.at("operation") == "recall") recalls += number(row, "duration_ns");
      if (row.at("critical") == "true") path += number(row, "duration_ns");
      CHECK((row.at("happens") == "true" || row.at("predicated") == "true"));
    }
    const double step = line_ms(table.out, "step ");
    CHECK((computes + stalled) / 1e6 == doctest::Approx(step).epsilon(1e-4));
    CHECK(path / 1e6 <= step * 1.0001);
    CHECK(path > 0);
    CHECK((recalls > 0) == (method != "dense" && method != "quest"));
    // Exposed time is a part of the computing stream's waiting time.
    CHECK(line_ms(table.out, "transfers, exposed") <= stalled / 1e6 + 1e-3);
  }
}

TEST_CASE("explain cli: a step prices all that the CUDA engine starts") {
  const Folder folder;
  const struct {
    const char* scenario;
    const char* shape;
    const char* list;  // of tests/golden/operations
  } rows[] = {{"dense", "decodes=4,context=4096", "dense_decode"},
              {"dense", "decodes=4,context=4096,chunks=1,chunk_tokens=512", "dense_mixed"},
              {"quest", "decodes=4,context=32768", "quest_fills"},
              {"freekv", "decodes=4,context=32768", "freekv_fills"},
              {"arkvale", "decodes=4,context=32768", "arkvale_fills"},
              {"tiny/snapkv", "chunks=1,chunk_tokens=512,compress=1", "snapkv_compresses"},
              {"tiny/intentkv", "chunks=1,chunk_tokens=512,compress=1", "intentkv_compresses"},
              {"tiny/tangram", "decodes=4,context=512", "tangram_decode"},
              {"tiny/triaxial", "decodes=4,context=512", "triaxial_decode"}};
  for (const auto& row : rows) {
    CAPTURE(std::string(row.list));
    const Outcome csv =
        run_kvtwin(folder, words(row.scenario, {"--shape=" + std::string(row.shape), "--format=csv"}));
    REQUIRE_MESSAGE(csv.status == 0, csv.err);
    // By layer, "" outside of layers.
    std::map<std::string, std::vector<std::string>> priced;
    for (const Row& one : csv_rows(csv.out)) {
      std::istringstream starts(one.at("starts"));
      std::string name;
      while (std::getline(starts >> std::ws, name, ';')) priced[one.at("layer")].push_back(name);
    }
    std::ifstream list(KVTWIN_SOURCE_DIR "/tests/golden/operations/" + std::string(row.list) + ".txt");
    REQUIRE(list.is_open());
    std::string line;
    size_t found = 0;
    while (std::getline(list, line)) {
      std::string name = line.substr(line.find(": ") + 2);
      const size_t bracket = name.find('[');
      const std::string layer = bracket < name.find(" after") ? name.substr(bracket + 1, 1) : "";
      name = name.substr(0, std::min({bracket, name.find(" after"), name.find(" records")}));
      if (!layer.empty() && layer != "1") continue;
      // A layer that retrieves: the first ones of a scenario may be dense.
      const bool tiny = std::string(row.scenario).starts_with("tiny");
      const std::vector<std::string>& all = priced[layer.empty() || tiny ? layer : "8"];
      CHECK_MESSAGE(std::find(all.begin(), all.end(), name) != all.end(), name << " in layer " << layer);
      ++found;
    }
    CHECK(found > 10);
  }
}

TEST_CASE("explain cli: an explained step of a run equals the run's own") {
  const Folder folder;
  // Explains all steps of a run of one request: their sum is the run's time.
  const Words few = {"--set=replay.sessions_max=1", "--set=trace.path=" + folder.file("t.csv")};
  folder.write("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-01-01 00:00:00.000000,3000,4\n");
  const Words run =
      Words{"run", kMethods + "freekv.textproto", "--no-write", "--quiet", "--format=jsonl"} + few;
  const Outcome ran = succeeded(run_kvtwin(folder, run));
  const size_t at = ran.out.find("\"elapsed_s\":");
  REQUIRE(at != std::string::npos);
  const double elapsed_ms = 1e3 * std::stod(ran.out.substr(at + 12));
  double sum = 0;
  int steps = 0;
  for (;; ++steps) {
    Words one = words("freekv", {"--step=" + std::to_string(steps)});
    one.insert(one.end(), few.begin(), few.end());
    const Outcome outcome = run_kvtwin(folder, one);
    if (outcome.status != 0) {
      CHECK(outcome.said("the run has no step " + std::to_string(steps)));
      CHECK(outcome.said("its last is " + std::to_string(steps - 1)));
      break;
    }
    sum += line_ms(outcome.out, "step ");
  }
  CHECK(steps > 3);
  CHECK(sum == doctest::Approx(elapsed_ms).epsilon(1e-4));
}

TEST_CASE("explain cli: a compression's operations are part of the step, by scorer") {
  const Folder folder;
  const std::string shape = "--shape=decodes=2,context=20000,chunks=1,chunk_tokens=2048,chunk_context=14336";
  const struct {
    const char* method;
    std::set<std::string> has, lacks;
  } rows[] = {
      {"snapkv", {"score", "select", "compact", "host"}, {"probe", "capture"}},
      {"judge_q", {"probe", "score", "select", "compact", "host"}, {"capture"}},
      {"kvzip", {"probe", "score", "select", "compact", "host"}, {"capture"}},
      {"tangram", {"capture", "score", "select", "compact"}, {"probe"}},
      {"tangram_released", {"capture", "score", "select", "compact", "host"}, {"probe"}},
      {"intentkv_slots", {"score", "select", "host"}, {"probe", "capture", "compact"}},
  };
  for (const auto& row : rows) {
    CAPTURE(row.method);
    std::map<std::string, double> took[2];
    double step_ms[2] = {};
    for (const int compress : {0, 1}) {
      const std::string asked = shape + (compress == 1 ? ",compress=1" : "");
      const Outcome csv = succeeded(run_kvtwin(folder, words(row.method, {asked, "--format=csv"})));
      for (const Row& one : csv_rows(csv.out)) {
        if (one.at("happens") == "true") took[compress][one.at("operation")] += number(one, "duration_ns");
      }
      step_ms[compress] = line_ms(run_kvtwin(folder, words(row.method, {asked})).out, "step ");
    }
    double more = 0;
    for (const char* one : {"probe", "score", "select", "compact", "host"}) more += took[1][one];
    CHECK(step_ms[1] - step_ms[0] == doctest::Approx(more / 1e6).epsilon(1e-2));
    for (const std::string& name : row.has) CHECK_MESSAGE(took[1][name] > 0, name);
    for (const std::string& name : row.lacks) CHECK_MESSAGE(took[1][name] == 0, name);
    for (const char* one : {"probe", "score", "select", "compact"}) CHECK(took[0][one] == 0);
    CHECK(took[0]["capture"] == doctest::Approx(took[1]["capture"]));
  }
}

TEST_CASE("explain cli: the graph has a cluster for each stream and the same bytes every time") {
  const Folder folder;
  const auto explain = [&](const char* file) {
    return run_kvtwin(folder, words("freekv", {"--step=20", "--layers=0..1", "--out=" + folder.file(file)}));
  };
  succeeded(explain("a.dot"));
  succeeded(explain("b.dot"));
  const std::string dot = folder.read("a.dot");
  CHECK(dot == folder.read("b.dot"));
  for (const char* part :
       {"digraph step {", "label=\"compute\"", "label=\"h2d\"", "recall[1]", "color=red", "dashed",
        "recall_done[0]\\nof the previous step", "recall_done[0]\\nfor the next step"}) {
    CAPTURE(part);
    CHECK(dot.find(part) != std::string::npos);
  }
  CHECK(dot.find("attention[2]") == std::string::npos);  // not requested
}
