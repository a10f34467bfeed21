#include "traces/importers/azure.h"

#include "tests/unit/traces/support.h"

using namespace kvtwin;
using namespace kvtwin::testing;

TEST_CASE("Azure: times are read to 100 ns and written back") {
  CHECK(parse_azure_time("1970-01-02 00:00:01.0000001").value() == 86'401'000'000'100);
  CHECK(parse_azure_time("2024-02-29 23:59:59").value() == 1'709'251'199'000'000'000);
  CHECK(parse_azure_time("2024-05-10 00:00:00.009930+00:00").value() ==
        parse_azure_time("2024-05-10 00:00:00.0099300").value());
  for (const char* const text : {"2023-11-16 18:15:46.6805900", "1999-12-31 00:00:00.0000000"}) {
    CHECK(azure_time(parse_azure_time(text).value()) == text);
  }
  for (const char* const text : {"", "2023-02-30 00:00:00", "2023-11-16T18:15:46", "2023-11-16 24:00:00", "x",
                                 "-023-11-16 18:15:46", "2023-11-16 18:15:46.1x", "9999-11-16 18:15:46"}) {
    CAPTURE(text);
    CHECK(!parse_azure_time(text).has_value());
  }
}

TEST_CASE("Azure: both real files are exported byte for byte, and arrivals are the recorded ones") {
  for (const auto& [name, rows] : {std::pair{"azure-llm-2023/AzureLLMInferenceTrace_code.csv", size_t{8'819}},
                                   {"azure-llm-2023/AzureLLMInferenceTrace_conv.csv", size_t{19'366}}}) {
    const std::string path = data(name);
    if (path.empty()) {
      MESSAGE("skipped: " << name << " is not there; set KVTWIN_DATA to its folder");
      return;
    }
    const KeepAll all = imported("auto", path);
    CHECK(all.sessions.size() == rows);
    for (const v1::Session& session : all.sessions) {
      for (const StepError& error : step_errors(session)) REQUIRE(error.ns == 0);
    }
    const Folder dir;
    export_to("azure", all, dir.file("back.csv"));
    std::string source = slurp(path);
    source.erase(std::remove(source.begin(), source.end(), '\r'), source.end());
    if (!source.ends_with('\n')) source += '\n';
    CHECK(slurp(dir.file("back.csv")) == source);
  }
}

TEST_CASE("Azure: a trace without times of its own cannot be exported") {
  v1::TraceHeader header;
  header.set_request_arrivals(v1::ARR_CLOSED_LOOP);
  const Folder dir;
  CHECK(contains(make_exporter("azure", dir.file("x")).value()->header(header).error().text(), "no times"));
}
