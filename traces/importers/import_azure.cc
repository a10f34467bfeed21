// Azure's LLM inference traces (2023): a CSV of arrivals without identity or sessions.

#include <fmt/format.h>

#include <charconv>
#include <chrono>

#include "traces/format/source_files.h"
#include "traces/importers/azure.h"
#include "traces/importers/importers.h"

namespace kvtwin {
namespace {

// Reads a number of exactly `digits` digits and, if `after` is not 0, the character after it.
bool take(std::string_view* text, size_t digits, char after, int* value) {
  if (text->size() < digits) return false;
  const auto [end, error] = std::from_chars(text->data(), text->data() + digits, *value);
  if (error != std::errc() || end != text->data() + digits || *value < 0) return false;
  text->remove_prefix(digits);
  if (after == 0) return true;
  if (!text->starts_with(after)) return false;
  text->remove_prefix(1);
  return true;
}

bool take_count(std::string_view text, uint32_t* value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *value);
  return error == std::errc() && end == text.data() + text.size();
}

class AzureImport {
 public:
  AzureImport(const std::string& path, TraceSink* sink) : path_(path), sink_(sink) {}

  Result<void> line(uint64_t number, std::string_view text) {
    const std::string where = fmt::format("{}:{}", path_, number);
    if (!titled_) {
      titled_ = true;
      if (text.starts_with("\xef\xbb\xbf")) text.remove_prefix(3);
      if (text == kAzureTitles) return {};
      return make_error(where, fmt::format("starts with '{}'", text.substr(0, 60)),
                        std::string(kAzureTitles));
    }
    const size_t second = text.rfind(',');
    const size_t first =
        second == std::string_view::npos || second == 0 ? second : text.rfind(',', second - 1);
    if (first == std::string_view::npos || first == second) {
      return make_error(where, fmt::format("'{}' has not three fields", text.substr(0, 60)),
                        std::string(kAzureTitles));
    }
    uint32_t prompt = 0, output = 0;
    if (!take_count(text.substr(first + 1, second - first - 1), &prompt) ||
        !take_count(text.substr(second + 1), &output)) {
      return make_error(where, fmt::format("'{}' is no pair of token counts", text.substr(first + 1, 60)));
    }
    const auto at = parse_azure_time(text.substr(0, first));
    if (!at) return make_error(where, at.error().what, at.error().hint);
    return row(*at, prompt, output, where);
  }

  Result<void> done() {
    if (rows_ == 0) return make_error(path_, "holds no rows");
    return sink_->done();
  }

 private:
  Result<void> row(int64_t at, uint32_t prompt, uint32_t output, const std::string& where) {
    if (rows_ == 0) {
      origin_ = at;
      if (auto good = sink_->header(make_header()); !good) return good;
    }
    if (at < latest_) return make_error(where, "is earlier than the row before", "rows in order of time");
    latest_ = at;
    session_.Clear();
    session_.set_id(fmt::format("{}", rows_++));
    session_.set_arrival_at_ns(at - origin_);
    session_.add_agents()->set_name("main");
    v1::LlmRequest& request = *session_.add_nodes()->mutable_llm();
    request.set_prompt_tokens(prompt);
    request.set_output_tokens(output);
    request.set_recorded_at_ns(at - origin_);
    return sink_->session(session_);
  }

  v1::TraceHeader make_header() const {
    v1::TraceHeader header = imported_header("azure", path_);
    header.mutable_source()->set_url("https://github.com/Azure/AzurePublicDataset");
    header.mutable_source()->set_licence("CC-BY-4.0");
    header.set_session_arrivals(v1::ARR_OPEN_LOOP);
    header.set_request_arrivals(v1::ARR_OPEN_LOOP);
    header.set_origin_unix_ns(static_cast<uint64_t>(origin_));
    header.set_time_resolution_ns(100);
    for (const char* const field : {"LlmRequest.prompt_tokens", "LlmRequest.output_tokens",
                                    "LlmRequest.recorded_at_ns", "Session.arrival_at_ns"}) {
      add_policy(&header, field, v1::RECORDED);
    }
    for (const char* const field :
         {"LlmRequest.prompt_key", "LlmRequest.recorded_service_ns", "LlmRequest.think_ns", "Span.role"}) {
      add_policy(&header, field, v1::UNKNOWN);
    }
    return header;
  }

  const std::string& path_;
  TraceSink* const sink_;
  bool titled_ = false;
  uint64_t rows_ = 0;
  int64_t origin_ = 0;
  int64_t latest_ = 0;
  v1::Session session_;
};

}  // namespace

// 2023-11-16 18:15:46.6805900, with up to 9 digits after the point, taken as UTC.
Result<int64_t> parse_azure_time(std::string_view text) {
  using namespace std::chrono;
  const std::string whole(text.substr(0, 60));
  const auto bad = [&whole] {
    return make_error("", fmt::format("'{}' is no time", whole),
                      "like 2023-11-16 18:15:46.6805900, from 1970 to 2200");
  };
  int year = 0, month = 0, day = 0, hour = 0, minute = 0, second = 0;
  if (!take(&text, 4, '-', &year) || !take(&text, 2, '-', &month) || !take(&text, 2, ' ', &day) ||
      !take(&text, 2, ':', &hour) || !take(&text, 2, ':', &minute) || !take(&text, 2, 0, &second)) {
    return bad();
  }
  int64_t fraction = 0;
  if (text.starts_with('.')) {
    text.remove_prefix(1);
    size_t digits = 0;
    for (; digits < text.size() && digits < 9 && text[digits] >= '0' && text[digits] <= '9'; ++digits) {
      fraction = fraction * 10 + (text[digits] - '0');
    }
    text.remove_prefix(digits);
    for (; digits < 9; ++digits) fraction *= 10;
  }
  if (text == "+00:00" || text == "Z") text = {};
  const year_month_day date{std::chrono::year(year), std::chrono::month(static_cast<unsigned>(month)),
                            std::chrono::day(static_cast<unsigned>(day))};
  if (!text.empty() || !date.ok() || year < 1970 || year > 2200 || hour > 23 || minute > 59 || second > 59) {
    return bad();
  }
  const int64_t days = sys_days(date).time_since_epoch().count();
  return (((days * 24 + hour) * 60 + minute) * 60 + second) * 1'000'000'000 + fraction;
}

Result<void> import_azure(const std::string& path, const ImportOptions&, TraceSink* sink) {
  AzureImport import(path, sink);
  const auto take_line = [&](uint64_t number, std::string_view text) { return import.line(number, text); };
  if (auto good = for_each_line(path, take_line); !good) return good;
  return import.done();
}

}  // namespace kvtwin
