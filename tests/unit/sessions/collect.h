// A sink that stores everything and checks each part with traces/format/check.h, as a writer does.

#ifndef KVTWIN_TESTS_UNIT_SESSIONS_COLLECT_H_
#define KVTWIN_TESTS_UNIT_SESSIONS_COLLECT_H_

#include <string>
#include <vector>

#include "traces/format/check.h"
#include "traces/format/sink.h"

namespace kvtwin::testing {

class Collect : public TraceSink {
 public:
  v1::TraceHeader head;
  std::vector<v1::SharedSpanTable> tables;
  std::vector<v1::Session> sessions;
  v1::TraceFooter counts;
  int finished = 0;

  Result<void> header(const v1::TraceHeader& header) override {
    head = header;
    return checker_.header(header);
  }
  Result<void> shared_spans(const v1::SharedSpanTable& table) override {
    tables.push_back(table);
    return checker_.shared_spans(table);
  }
  Result<void> session(const v1::Session& session) override {
    if (keep) sessions.push_back(session);
    checker_.count(session, &counts);
    return checker_.session(session);
  }
  Result<void> done() override {
    ++finished;
    return {};
  }

  // All bytes, to compare two traces.
  std::string bytes() const {
    std::string all = head.SerializeAsString();
    for (const auto& table : tables) all += table.SerializeAsString();
    for (const auto& session : sessions) all += session.SerializeAsString();
    return all;
  }

  bool keep = true;

 private:
  SessionChecker checker_;
};

template <typename T>
std::string problem(const Result<T>& result) {
  return result ? std::string() : result.error().text();
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_SESSIONS_COLLECT_H_
