// Reads any bytes as a foreign format and writes the result with an exporter. The first byte selects the
// format (a digit from 0), the second the options:
//   bit 7 infer_sessions, 6 jitter, 5..4 sharing, 3 name the file .tar, 2 guess the format, 1..0 exporter
#include <cstdint>
#include <fstream>
#include <string>

#include "tests/support/temp_directory.h"
#include "traces/format/check.h"
#include "traces/importers/formats.h"
#include "traces/importers/weka.h"

namespace {

using namespace kvtwin;

struct CheckingSink : TraceSink {  // an importer's output may be refused, but must not crash
  SessionChecker checker;
  v1::TraceHeader head;
  Result<void> header(const v1::TraceHeader& h) override { return head = h, checker.header(h); }
  Result<void> shared_spans(const v1::SharedSpanTable& t) override { return checker.shared_spans(t); }
  Result<void> session(const v1::Session& s) override {
    if (auto good = checker.session(s); !good) return good;
    if (head.source().name() == "weka") (void)weka_text(head, s);
    return {};
  }
};

// Passes an importer's output to an exporter if it is small: a row of sixty bytes can have 2^30 prompt
// tokens, whose two million block ids take the exporter a second and test nothing new.
struct Small : TraceSink {
  explicit Small(TraceSink* sink) : next(sink) {}
  TraceSink* next;
  CheckingSink checked;
  uint64_t tokens = 0;
  Result<void> header(const v1::TraceHeader& h) override {
    if (auto good = checked.header(h); !good) return good;
    return next->header(h);
  }
  Result<void> shared_spans(const v1::SharedSpanTable& t) override {
    if (auto good = checked.shared_spans(t); !good) return good;
    return next->shared_spans(t);
  }
  Result<void> session(const v1::Session& s) override {
    if (auto good = checked.session(s); !good) return good;
    for (const v1::Node& node : s.nodes()) tokens += node.llm().prompt_tokens();
    if (tokens > kTokensMax) return make_error("fuzz", "enough tokens");
    return next->session(s);
  }
  Result<void> done() override { return next->done(); }
  static constexpr uint64_t kTokensMax = 1 << 14;
};

const std::string& directory() {
  static const std::string made = kvtwin::testing::make_temp_directory("fuzz").string();
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const auto& all = formats();
  const uint8_t bits = data[1];
  const std::string format =
      (bits & 4) != 0 ? "auto" : all[static_cast<uint8_t>(data[0] - '0') % all.size()].name;
  const std::string path = directory() + ((bits & 8) != 0 ? "/input.tar" : "/input.json");
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data) + 2, static_cast<std::streamsize>(size - 2));
  ImportOptions options;
  options.infer_sessions = (bits & 0x80) != 0;
  options.jitter_ns = (bits & 0x40) != 0 ? 1000 : 0;
  options.sharing = static_cast<PrefixSharing>((bits >> 4) % 3);
  if ((bits & 3) == 3) {
    CheckingSink checked;
    (void)import_trace(format, path, options, &checked);
    return 0;
  }
  const char* const exporters[] = {"mooncake", "azure", "kvtwin"};
  auto sink = make_exporter(exporters[bits & 3], directory() + "/out");
  Small small(sink->get());
  (void)import_trace(format, path, options, &small);
  return 0;
}
