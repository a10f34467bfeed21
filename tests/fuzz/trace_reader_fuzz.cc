// Reads any bytes as a canonical trace: a trace or an Error. A trace that was read is written and read again.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>

#include "traces/format/check.h"
#include "traces/format/reader.h"
#include "traces/importers/formats.h"
#include "traces/inspect/cut.h"
#include "traces/inspect/inspect.h"

namespace {

using namespace kvtwin;

// Forwards everything to several sinks.
struct SinkFanout : TraceSink {
  std::vector<TraceSink*> sinks;
  template <typename F>
  Result<void> all(F f) {
    for (TraceSink* sink : sinks) {
      if (auto good = f(*sink); !good) return good;
    }
    return {};
  }
  Result<void> header(const v1::TraceHeader& h) override {
    return all([&](TraceSink& s) { return s.header(h); });
  }
  Result<void> shared_spans(const v1::SharedSpanTable& t) override {
    return all([&](TraceSink& s) { return s.shared_spans(t); });
  }
  Result<void> session(const v1::Session& t) override {
    return all([&](TraceSink& s) { return s.session(t); });
  }
  Result<void> done() override {
    return all([](TraceSink& s) { return s.done(); });
  }
};

struct CheckingSink : TraceSink {  // the result of a cut must pass all checks
  SessionChecker checker;
  static void demand(const Result<void>& good) {
    if (good) return;
    std::fprintf(stderr, "a cut broke a rule: %s\n", good.error().text().c_str());
    std::abort();
  }
  Result<void> header(const v1::TraceHeader& h) override { return checker.header(h); }
  Result<void> shared_spans(const v1::SharedSpanTable& t) override { return checker.shared_spans(t); }
  Result<void> session(const v1::Session& s) override {
    demand(checker.session(s));
    return {};
  }
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::istringstream in(std::string(reinterpret_cast<const char*>(data), size));
  TraceInspector inspector;
  CheckingSink head, opaque;
  TraceCut cut({.window_tokens = 100, .requests_max = 5}, &head);
  TraceCut no_agents({.opaque_sub_agents = true}, &opaque);
  SinkFanout tee;
  tee.sinks = {&inspector, &cut, &no_agents};
  if (read_trace(in, "fuzz", &tee)) inspector.table();
  return 0;
}
