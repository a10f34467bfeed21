// Helpers of the trace tests: sinks that store or discard everything, small files, external data.

#ifndef KVTWIN_TESTS_UNIT_TRACES_SUPPORT_H_
#define KVTWIN_TESTS_UNIT_TRACES_SUPPORT_H_

#include <doctest/doctest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/folder.h"
#include "tests/support/source_dir.h"
#include "traces/format/check.h"
#include "traces/importers/formats.h"

namespace kvtwin::testing {

struct KeepAll : TraceSink {
  v1::TraceHeader head;
  std::vector<v1::SharedSpanTable> tables;
  std::vector<v1::Session> sessions;
  v1::TraceFooter counts;
  SessionChecker checker;
  bool ended = false;
  Result<void> header(const v1::TraceHeader& h) override { return head = h, checker.header(h); }
  Result<void> shared_spans(const v1::SharedSpanTable& t) override {
    return tables.push_back(t), checker.shared_spans(t);
  }
  Result<void> session(const v1::Session& s) override {
    checker.count(s, &counts);
    return sessions.push_back(s), checker.session(s);
  }
  Result<void> done() override { return ended = true, Result<void>{}; }
  // To compare two traces.
  std::string bytes() const {
    std::string all = head.SerializeAsString();
    for (const auto& table : tables) all += table.SerializeAsString();
    for (const auto& one : sessions) all += one.SerializeAsString();
    return all;
  }
};

template <typename T>
std::string problem(const Result<T>& result) {
  return result ? std::string() : result.error().text();
}

// Calls a function per session, and checks each session.
struct PerSession : TraceSink {
  explicit PerSession(std::function<void(const v1::TraceHeader&, const v1::Session&)> f)
      : each(std::move(f)) {}
  std::function<void(const v1::TraceHeader&, const v1::Session&)> each;
  v1::TraceHeader head;
  SessionChecker checker;
  Result<void> header(const v1::TraceHeader& h) override { return head = h, checker.header(h); }
  Result<void> shared_spans(const v1::SharedSpanTable& t) override { return checker.shared_spans(t); }
  Result<void> session(const v1::Session& s) override {
    each(head, s);
    return checker.session(s);
  }
};

inline std::string slurp(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream out;
  out << in.rdbuf();
  return out.str();
}

// "" if the external data is absent; then the test prints that and returns.
inline std::string data(const std::string& name) {
  const char* const set = std::getenv("KVTWIN_DATA");
  const auto root = set != nullptr
                        ? std::filesystem::path(set)
                        : std::filesystem::path(kvtwin::testing::source_dir()) / ".." / "shared" / "data";
  const auto path = root / name;
  return std::filesystem::exists(path) ? path.string() : std::string();
}

#define KVT_NEED_DATA(variable, name)                                         \
  const std::string variable = ::kvtwin::testing::data(name);                 \
  if (variable.empty()) {                                                     \
    MESSAGE("skipped: " name " is not there; set KVTWIN_DATA to its folder"); \
    return;                                                                   \
  }

inline KeepAll imported(const std::string& format, const std::string& path, ImportOptions options = {}) {
  KeepAll all;
  const auto good = import_trace(format, path, options, &all);
  REQUIRE_MESSAGE(good.has_value(), (good ? "" : good.error().text()));
  CHECK(all.ended);
  return all;
}

inline Error import_error(const std::string& format, const std::string& path, ImportOptions options = {}) {
  KeepAll all;
  const auto good = import_trace(format, path, options, &all);
  REQUIRE(!good.has_value());
  CHECK(!all.ended);
  return good.error();
}

inline void export_to(const std::string& format, const KeepAll& all, const std::string& path) {
  auto sink = make_exporter(format, path);
  REQUIRE(sink.has_value());
  REQUIRE((*sink)->header(all.head).has_value());
  for (const auto& session : all.sessions) {
    const auto good = (*sink)->session(session);
    REQUIRE_MESSAGE(good.has_value(), (good ? "" : good.error().text()));
  }
  REQUIRE((*sink)->done().has_value());
}

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The difference between the release time of each request, if its predecessors end as recorded, and its
// recorded issue time.
struct StepError {
  int node;
  int64_t ns;
};

inline std::vector<StepError> step_errors(const v1::Session& session) {
  std::vector<int64_t> end(static_cast<size_t>(session.nodes_size()));
  std::vector<StepError> errors;
  for (int i = 0; i < session.nodes_size(); ++i) {
    const v1::Node& node = session.nodes(i);
    int64_t release = node.deps().empty() ? session.arrival_at_ns() + node.start_offset_ns() : INT64_MIN;
    for (const v1::Dep& dep : node.deps()) release = std::max(release, end[dep.node()] + dep.delay_ns());
    auto& finished = end[static_cast<size_t>(i)];
    if (node.has_tool()) finished = release + node.tool().duration_ns();
    if (node.has_opaque()) finished = release + node.opaque().duration_ns();
    if (!node.has_llm()) continue;
    if (!node.deps().empty()) release += node.llm().think_ns();
    errors.push_back({i, release - node.llm().recorded_at_ns()});
    finished = node.llm().recorded_at_ns() + node.llm().recorded_service_ns();
  }
  return errors;
}

inline int64_t percentile(std::vector<int64_t> values, double q) {
  REQUIRE(!values.empty());
  std::sort(values.begin(), values.end());
  return values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))];
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_TRACES_SUPPORT_H_
