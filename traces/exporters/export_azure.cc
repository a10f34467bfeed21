#include <fmt/format.h>

#include <chrono>

#include "traces/format/text_file.h"
#include "traces/importers/azure.h"
#include "traces/importers/importers.h"

namespace kvtwin {
namespace {

class AzureExport : public TraceSink {
 public:
  explicit AzureExport(const std::string& path) : file_(path) {}

  Result<void> header(const v1::TraceHeader& header) override {
    if (header.request_arrivals() != v1::ARR_OPEN_LOOP) {
      return make_error(file_.path(), "the trace's requests have no times of their own",
                        "Azure's CSV is for open-loop traces: azure, mooncake, flat llmservingsim");
    }
    origin_ = static_cast<int64_t>(header.origin_unix_ns());
    if (auto good = file_.open(); !good) return good;
    return file_.write(fmt::format("{}\n", kAzureTitles));
  }

  Result<void> shared_spans(const v1::SharedSpanTable&) override { return {}; }

  Result<void> session(const v1::Session& session) override {
    for (const v1::Node& node : session.nodes()) {
      if (!node.has_llm()) continue;
      const v1::LlmRequest& request = node.llm();
      auto good = file_.write(fmt::format("{},{},{}\n", azure_time(origin_ + request.recorded_at_ns()),
                                          request.prompt_tokens(), request.output_tokens()));
      if (!good) return good;
    }
    return {};
  }

  Result<void> done() override { return file_.commit(); }

 private:
  TextFile file_;
  int64_t origin_ = 0;
};

}  // namespace

std::string azure_time(int64_t unix_ns) {
  using namespace std::chrono;
  const sys_time<nanoseconds> at{nanoseconds(unix_ns)};
  const auto day = floor<days>(at);
  const year_month_day date(day);
  const hh_mm_ss time(at - day);
  return fmt::format("{:04}-{:02}-{:02} {:02}:{:02}:{:02}.{:07}", static_cast<int>(date.year()),
                     static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                     time.hours().count(), time.minutes().count(), time.seconds().count(),
                     time.subseconds().count() / 100);
}

std::unique_ptr<TraceSink> export_azure(const std::string& path) {
  return std::make_unique<AzureExport>(path);
}

}  // namespace kvtwin
