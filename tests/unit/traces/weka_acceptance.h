// Acceptance tests 1-4 of docs/design/trace-formats.md#importers, for a set of WEKA files. (2) and (3) are
// check.h's, per session.

#ifndef KVTWIN_TESTS_UNIT_TRACES_WEKA_ACCEPTANCE_H_
#define KVTWIN_TESTS_UNIT_TRACES_WEKA_ACCEPTANCE_H_

#include <map>

#include "tests/unit/traces/support.h"
#include "traces/format/compact_json.h"
#include "traces/format/source_files.h"
#include "traces/importers/weka.h"

namespace kvtwin::testing {

struct WekaAcceptance {
  size_t sessions = 0, requests = 0, requests_equal = 0, agents = 0;
  size_t with_spans = 0;         // requests whose prompt has spans, whose sums were checked
  std::vector<int64_t> step_ns;  // (4): release minus recorded issue time
  std::vector<double> drift;     // end of the session, with all steps replayed in sequence
};

// All requests of a file, in order, with their ids restored as runs.
inline void list_requests(const CompactJson& document, const nlohmann::json& requests,
                          std::vector<std::pair<nlohmann::json, IdRuns>>* out, size_t* agents) {
  for (const nlohmann::json& request : requests) {
    if (request.contains("requests")) {
      ++*agents;
      nlohmann::json own = request;
      own.erase("requests");
      out->emplace_back(own, IdRuns{});
      list_requests(document, request["requests"], out, agents);
      continue;
    }
    nlohmann::json fields = request;
    fields.erase("hash_ids");
    out->emplace_back(fields, document.runs.at(request["hash_ids"].get<size_t>()));
  }
}

// The delay of the session's end if every wait starts at the last replayed end.
inline double session_drift(const v1::Session& session) {
  std::vector<int64_t> end(static_cast<size_t>(session.nodes_size()));
  int64_t replayed = 0, recorded = 0;
  for (int i = 0; i < session.nodes_size(); ++i) {
    const v1::Node& node = session.nodes(i);
    int64_t release = node.deps().empty() ? node.start_offset_ns() : INT64_MIN;
    for (const v1::Dep& dep : node.deps()) release = std::max(release, end[dep.node()] + dep.delay_ns());
    if (!node.has_llm()) continue;
    if (!node.deps().empty()) release += node.llm().think_ns();
    end[static_cast<size_t>(i)] = release + node.llm().recorded_service_ns();
    replayed = std::max(replayed, end[static_cast<size_t>(i)]);
    recorded = std::max(recorded, node.llm().recorded_at_ns() + node.llm().recorded_service_ns());
  }
  return recorded == 0 ? 0.0 : static_cast<double>(replayed - recorded) / static_cast<double>(recorded);
}

inline WekaAcceptance accept_weka(const std::string& path) {
  constexpr CompactKeys kKeys{.run_key = "hash_ids", .number_suffix = {}};
  WekaAcceptance got;
  std::map<std::string, CompactJson> sources;  // by trace id
  const auto take = [&](const std::string&, std::string_view text) -> Result<void> {
    CompactJson document = parse_compact_json(text, kKeys).value();
    const std::string id = document.tree["id"];
    sources.emplace(id, std::move(document));
    return {};
  };
  REQUIRE(for_each_document(
              path, [](const std::string& name) { return name.starts_with("trace_"); }, take)
              .has_value());
  PerSession sink([&](const v1::TraceHeader& header, const v1::Session& session) {
    ++got.sessions;
    const auto text = weka_text(header, session);
    REQUIRE(text.has_value());
    const CompactJson back = parse_compact_json(*text, kKeys).value();
    const CompactJson& source = sources.at(session.id());
    std::vector<std::pair<nlohmann::json, IdRuns>> before, after;
    size_t agents = 0;
    list_requests(source, source.tree["requests"], &before, &got.agents);
    list_requests(back, back.tree["requests"], &after, &agents);
    REQUIRE(before.size() == after.size());
    for (size_t i = 0; i < before.size(); ++i) {
      const bool is_agent = before[i].first.contains("agent_id");
      if (is_agent)
        CHECK(before[i].first == after[i].first);
      else
        got.requests_equal += before[i] == after[i];
      got.requests += !is_agent;
    }
    nlohmann::json head = source.tree, head_back = back.tree;
    head.erase("requests");
    head_back.erase("requests");
    CHECK(head == head_back);
    for (const v1::Node& node : session.nodes()) got.with_spans += node.llm().prompt_size() > 0;
    for (const StepError& error : step_errors(session)) got.step_ns.push_back(error.ns);
    got.drift.push_back(session_drift(session));
  });
  const auto good = import_trace("weka", path, {}, &sink);
  REQUIRE_MESSAGE(good.has_value(), (good ? "" : good.error().text()));
  return got;
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_TRACES_WEKA_ACCEPTANCE_H_
