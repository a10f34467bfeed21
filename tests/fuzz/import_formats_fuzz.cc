// Any bytes, read as a foreign format (the first byte picks it), written to the exporters of the rest.
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "traces/check.h"
#include "traces/formats.h"
#include "traces/weka.h"

namespace {

using namespace kvtwin;

struct Checked : TraceSink {  // what an importer passes on may be refused, but must not crash anyone
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

const std::string& directory() {
  static const std::string made = [] {
    std::string name = "/tmp/kvtwin_fuzz_XXXXXX";
    if (mkdtemp(name.data()) == nullptr) std::abort();
    return name;
  }();
  return made;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto& all = formats();
  const std::string& format = all[data[0] % all.size()].name;
  const std::string path = directory() + "/input.json";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(data) + 1, static_cast<std::streamsize>(size - 1));
  ImportOptions options;
  options.infer_sessions = (data[0] & 0x80) != 0;
  options.jitter_ns = (data[0] & 0x40) != 0 ? 1000 : 0;
  options.sharing = static_cast<PrefixSharing>((data[0] >> 4) % 3);
  Checked checked;
  (void)import_trace(format, path, options, &checked);
  const std::string out = directory() + "/out";
  auto sink = make_exporter((data[0] & 1) != 0 ? "azure" : "mooncake", out);
  (void)import_trace("auto", path, options, sink->get());
  return 0;
}
