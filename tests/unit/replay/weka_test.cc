// Real agent sessions, read directly from their JSON, so that the source's own ids are the reference.

#include <doctest/doctest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/source_dir.h"
#include "tests/unit/replay/fake_backend.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

std::filesystem::path data_folder() {
  const char* given = std::getenv("KVTWIN_DATA");
  return given != nullptr ? std::filesystem::path(given)
                          : std::filesystem::path(source_dir()) / ".." / "shared" / "data";
}

struct Source {
  v1::Session session;
  std::vector<std::vector<int64_t>> ids;  // by node
};

int64_t nanoseconds(const nlohmann::json& request, const char* key) {
  return request.contains(key) && request[key].is_number()
             ? static_cast<int64_t>(request[key].get<double>() * 1e9)
             : 0;
}

// The main agent's requests, in order.
Source read_main_agent(const std::filesystem::path& path) {
  Source source;
  std::ifstream file(path);
  const auto trace = nlohmann::json::parse(file);
  source.session.set_id(trace["id"].get<std::string>());
  for (const auto& request : trace["requests"]) {
    if (request["type"] == "subagent") continue;
    v1::Node* node = add_request(&source.session, request["in"].get<uint32_t>(),
                                 request["out"].get<uint32_t>(), nanoseconds(request, "think_time"));
    node->mutable_llm()->set_recorded_at_ns(nanoseconds(request, "t"));
    node->mutable_llm()->set_recorded_service_ns(nanoseconds(request, "api_time"));
    if (!source.ids.empty()) add_dep(node, static_cast<uint32_t>(source.ids.size()) - 1);
    source.ids.push_back(request["hash_ids"].get<std::vector<int64_t>>());
    std::vector<std::pair<int64_t, uint32_t>> runs;
    for (const int64_t id : source.ids.back()) {
      if (!runs.empty() && runs.back().first + runs.back().second == id) {
        ++runs.back().second;
      } else {
        runs.emplace_back(id, 1);
      }
    }
    if (!runs.empty()) set_key(node, runs);
  }
  return source;
}

size_t common_ids(const std::vector<int64_t>& a, const std::vector<int64_t>& b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

TEST_CASE("WEKA: consecutive prompts share exactly the source's common ids, and outputs continue them") {
  const auto folder = data_folder() / "weka-claude-code" / "sample";
  if (!std::filesystem::is_directory(folder)) {
    MESSAGE("skipped: no " << folder.string());
    return;
  }
  std::vector<Source> sources;
  std::vector<v1::Session> sessions;
  std::set<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.insert(entry.path());
  for (const auto& path : files) {
    sources.push_back(read_main_agent(path));
    sessions.push_back(sources.back().session);
  }
  REQUIRE(sessions.size() >= 6);
  v1::TraceHeader header = plain_header(64);
  header.set_session_arrivals(v1::ARR_NONE);
  ReplayOptions options;
  options.arrivals = ArrivalMode::kFixedPopulation;
  options.population = 2;
  for (const uint32_t page : {64u, 16u}) {
    CAPTURE(page);
    options.page_tokens = page;
    auto client = build(header, sessions, options);
    REQUIRE_MESSAGE(client.has_value(), client.error().text());
    FakeBackend backend;
    backend.run(client->get());
    std::map<uint32_t, const Sent*> last;  // by session
    uint64_t pairs = 0, extended = 0, outputs_reused = 0;
    for (const Sent& sent : backend.sent) {
      const uint32_t s = raw(sent.request.session);
      const Sent* before = std::exchange(last[s], &sent);
      if (before == nullptr) continue;
      CAPTURE(s);
      CAPTURE(sent.request.node);
      REQUIRE(sent.request.node == before->request.node + 1);
      const auto& old_ids = sources[s].ids[before->request.node];
      const auto& new_ids = sources[s].ids[sent.request.node];
      const uint64_t shared = common_ids(old_ids, new_ids);
      const uint64_t units = common_units(before->identity, sent.identity);
      const uint64_t per_block = 64 / page;
      ++pairs;
      if (shared < old_ids.size() || old_ids.size() == new_ids.size() || old_ids.empty()) {
        CHECK(units == shared * per_block);  // the next prompt contains no output of this one
        continue;
      }
      // The next prompt extends this one, so it gives this request's output as far as it reaches.
      const uint64_t whole = (uint64_t{before->request.prompt_tokens} + before->request.output_tokens) / page;
      CHECK(units == std::min<uint64_t>(whole, new_ids.size() * per_block));
      ++extended;
      outputs_reused += units - shared * per_block;
    }
    CHECK(backend.ended.size() == sessions.size());
    CHECK(pairs > 500);
    CHECK(extended * 100 > pairs * 85);
    CHECK(outputs_reused > 0);
  }
}
