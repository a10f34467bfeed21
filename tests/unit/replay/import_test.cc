// End to end with the importers: identity replay (docs/design/trace-formats.md#importers, acceptance test 4),
// size and speed.
//
// Data sets are used where they are present. The whole WEKA set is replayed when KVTWIN_REPLAY_FULL is
// set (import takes half a minute).

#include <doctest/doctest.h>
#include <sys/resource.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/source_dir.h"
#include "tests/unit/replay/fake_backend.h"
#include "traces/importers/formats.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

std::string data(const std::string& path) {
  const char* given = std::getenv("KVTWIN_DATA");
  const std::filesystem::path folder = given != nullptr
                                           ? std::filesystem::path(given)
                                           : std::filesystem::path(source_dir()) / ".." / "shared" / "data";
  return (folder / path).string();
}

// Returns false, with a message, if the data is absent.
bool import(const std::string& format, const std::string& path, ReplayBuilder* builder) {
  if (!std::filesystem::exists(data(path))) {
    MESSAGE("skipped: no " << data(path));
    return false;
  }
  auto done = import_trace(format, data(path), {}, builder);
  REQUIRE_MESSAGE(done.has_value(), done.error().text());
  return true;
}

double cpu_s() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  return static_cast<double>(use.ru_utime.tv_sec + use.ru_stime.tv_sec) +
         static_cast<double>(use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e-6;
}

size_t bytes_of(const ReplayTable& table) {
  return table.nodes.capacity() * sizeof(TableNode) + table.edges.capacity() * sizeof(TableEdge) +
         table.runs.capacity() * sizeof(TableRun) + table.triggers.capacity() * 4 +
         table.sessions.capacity() * sizeof(TableSession);
}

struct StepErrorRange {
  int64_t low, high;  // p1 and p99 of (replayed - recorded) issue time, relative to each session's start
};

// Every request ends at its recorded end, or at once if that has passed, so errors do not accumulate.
StepErrorRange one_step_error(ReplayClient* client) {
  FakeBackend backend;
  std::map<uint32_t, int64_t> start;  // by session
  std::vector<int64_t> errors;
  backend.service = [&](const ReplayRequestInfo& request) {
    const auto [first, fresh] =
        start.try_emplace(raw(request.session), request.ready.ns - request.recorded_at.ns);
    if (!fresh) errors.push_back(request.ready.ns - first->second - request.recorded_at.ns);
    return std::max<int64_t>(
        0, first->second + request.recorded_at.ns + request.recorded_service.ns - request.ready.ns);
  };
  backend.run(client);
  std::sort(errors.begin(), errors.end());
  REQUIRE(errors.size() > 100);
  return {errors[errors.size() / 100], errors[errors.size() - 1 - errors.size() / 100]};
}

}  // namespace

TEST_CASE("WEKA: identity replay issues requests at their recorded times, within the time resolution") {
  ReplayBuilder builder;
  const bool full = std::getenv("KVTWIN_REPLAY_FULL") != nullptr;
  if (!import("weka", full ? "weka-claude-code/traces_710.tar.xz" : "weka-claude-code/sample", &builder))
    return;
  ReplayOptions options;
  options.page_tokens = 64;
  options.arrivals = ArrivalMode::kAllAtOnce;
  auto client = builder.build(options);
  REQUIRE_MESSAGE(client.has_value(), client.error().text());
  CHECK((*client)->mode() == ReplayMode::kClosedLoop);
  CHECK((*client)->cap_reaches_every_gap());
  const StepErrorRange error = one_step_error(client->get());
  MESSAGE("one-step error p1 " << error.low << " ns, p99 " << error.high << " ns");
  CHECK(error.low >= -(*client)->table().time_resolution_ns);
  CHECK(error.high <= (*client)->table().time_resolution_ns);
  const ReplayReport& report = (*client)->report();
  CHECK(report.requests_finished == report.requests_total);
  CHECK(report.prompt_tokens.sourced() == report.prompt_tokens.total());
  CHECK(report.wait_ns.sourced() + report.wait_ns.made() == report.wait_ns.total());
}

TEST_CASE("Mooncake and Azure: open loop issues requests at exactly their recorded times") {
  for (const auto& [format, path, requests] :
       {std::tuple{"mooncake", "mooncake/conversation_trace.jsonl", 12031u},
        {"azure", "azure-llm-2023/AzureLLMInferenceTrace_conv.csv", 19366u}}) {
    CAPTURE(std::string(path));
    ReplayBuilder builder;
    if (!import(format, path, &builder)) continue;
    const double before = cpu_s();
    auto client = builder.build({});
    REQUIRE_MESSAGE(client.has_value(), client.error().text());
    const double built = cpu_s();
    CHECK((*client)->mode() == ReplayMode::kOpenLoop);
    CHECK((*client)->report().requests_total == requests);
    FakeBackend backend;
    backend.run(client->get());
    for (const Sent& sent : backend.sent) CHECK(sent.at.ns == sent.request.recorded_at.ns);
    MESSAGE(std::string(path) << ": build " << (built - before) * 1e3 << " ms, table "
                              << bytes_of((*client)->table()) / 1024 << " KiB, "
                              << (*client)->table().runs.size() << " runs");
  }
}

TEST_CASE("LLMServingSim: pages are shared exactly as far as the file's token ids are") {
  const std::string path = "llmservingsim/sharegpt-llama-3.1-8b-300-sps10.jsonl";
  ReplayBuilder builder;
  if (!import("llmservingsim", path, &builder)) return;
  auto client = builder.build({});
  REQUIRE_MESSAGE(client.has_value(), client.error().text());
  FakeBackend backend;
  backend.run(client->get());
  std::vector<std::vector<uint32_t>> tokens;
  std::ifstream file(data(path));
  for (std::string line; std::getline(file, line);) {
    const auto row = nlohmann::json::parse(line);
    tokens.push_back(row["input_tok_ids"].get<std::vector<uint32_t>>());
    if (!row.contains("output_tok_ids")) continue;
    const auto output = row["output_tok_ids"].get<std::vector<uint32_t>>();
    tokens.back().insert(tokens.back().end(), output.begin(), output.end());
  }
  REQUIRE(backend.sent.size() == tokens.size());
  uint64_t shared = 0, problem = 0;
  for (const Sent& a : backend.sent) {
    const auto& left = tokens[raw(a.request.session)];
    for (const Sent& b : backend.sent) {
      if (a.request.session == b.request.session) continue;
      const auto& right = tokens[raw(b.request.session)];
      const auto common = static_cast<uint64_t>(
          std::mismatch(left.begin(), left.end(), right.begin(), right.end()).first - left.begin());
      shared += common / 16;
      problem += common_units(a.identity, b.identity) != common / 16;
    }
  }
  CHECK(problem == 0);
  CHECK(shared > 100);
}

TEST_CASE("the whole WEKA set fits in 100 MB and costs the client less than 0.3 s") {
  if (std::getenv("KVTWIN_REPLAY_FULL") == nullptr) return;
  ReplayBuilder builder;
  if (!import("weka", "weka-claude-code/traces_710.tar.xz", &builder)) return;
  ReplayOptions options;
  options.page_tokens = 64;
  options.arrivals = ArrivalMode::kFixedPopulation;
  options.population = 24;
  options.think_cap = Duration{60 * kSecond};
  const double before = cpu_s();
  auto client = builder.build(options);
  REQUIRE_MESSAGE(client.has_value(), client.error().text());
  const double built = cpu_s();
  CHECK((*client)->report().requests_total == 46218);
  CHECK((*client)->report().sessions_total == 692);
  const size_t bytes = bytes_of((*client)->table());
  CHECK(bytes < 100u << 20);

  // A minimal event loop, so that the measured time is the client's.
  ClientEvents events;
  std::vector<std::pair<int64_t, uint32_t>> ends;
  uint64_t units = 0;
  int64_t now = 0;
  const auto take = [&] {
    for (const Event& event : events) {
      if (const auto* ready = std::get_if<RequestReady>(&event)) {
        for (const UnitRun& run : ready->identity) units += run.count;
        ends.emplace_back(now + int64_t{ready->output_tokens} * 15'000'000, raw(ready->request));
        std::push_heap(ends.begin(), ends.end(), std::greater<>());
      }
    }
    events.clear();
  };
  (*client)->wake(Instant{0}, &events);
  take();
  while (!ends.empty() || (*client)->wake_at() != kNever) {
    if (!ends.empty() && ends.front().first <= (*client)->wake_at().ns) {
      std::pop_heap(ends.begin(), ends.end(), std::greater<>());
      const auto [at, request] = ends.back();
      ends.pop_back();
      now = at;
      (*client)->tokens_emitted(Instant{now}, RequestId{request}, 1, &events);
      (*client)->request_finished(Instant{now}, RequestId{request}, 1, false, &events);
    } else {
      now = (*client)->wake_at().ns;
      (*client)->wake(Instant{now}, &events);
    }
    take();
  }
  const double ran = cpu_s();
  MESSAGE("build " << (built - before) * 1e3 << " ms, run " << (ran - built) * 1e3 << " ms, table "
                   << bytes / 1024 << " KiB, " << (*client)->table().runs.size() << " runs, " << units
                   << " units sent");
  CHECK((*client)->report().requests_finished == 46218);
  CHECK((*client)->report().sessions_ended == 692);
  CHECK(ran - before < 0.3);
}
