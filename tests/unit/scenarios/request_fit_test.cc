// Requests that can never run are found before the run, by the rule that the policy uses to reject them.

#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "scenarios/app/compose.h"
#include "tests/support/source_dir.h"

namespace kvtwin {
namespace {

// The longest request has 4,117 tokens: 258 pages of 16.
const std::string kMixed =
    "model { name: \"llama-3.1-8b\" }\n"
    "hardware { node: \"h200\" }\n"
    "memory { page_tokens: 16 }\n"
    "limits { watermark_pages: 5 }\n"
    "trace { path: \"suites/validation_traces/mixed.csv\" format: \"azure\" }\n";

// The error of composing it with `pages` pages; empty: none.
std::string complaint(uint32_t pages, std::vector<std::string> sets) {
  sets.push_back("memory.gpu_pages=" + std::to_string(pages));
  const auto scenario = parse_scenario(kMixed, testing::source_dir() + "/scenarios/test.textproto", sets);
  REQUIRE_MESSAGE(scenario, (scenario ? std::string() : scenario.error().front().text()));
  const auto composed = compose(*scenario);
  return composed ? std::string() : composed.error().front().text();
}

// The number that the error suggests.
uint32_t suggested(const std::string& text) {
  const std::string flag = "--set=memory.gpu_pages=";
  const size_t at = text.find(flag, text.find("smallest change"));
  REQUIRE_MESSAGE(at != std::string::npos, text);
  return static_cast<uint32_t>(std::stoul(text.substr(at + flag.size())));
}

void check_suggestion(uint32_t pages, const std::vector<std::string>& sets) {
  const std::string text = complaint(pages, sets);
  CHECK_MESSAGE(text.find("can never run") != std::string::npos, text);
  const uint32_t fits = suggested(text);
  CHECK(fits > pages);
  CHECK(complaint(fits, sets) == "");
  CHECK(suggested(complaint(fits - 1, sets)) == fits);
}

}  // namespace

TEST_CASE("request fit: pages of the watermark hold no request, and the suggestion includes them") {
  CHECK(suggested(complaint(260, {})) == 263);
  CHECK(complaint(260, {}).find(": 1 request can never run") != std::string::npos);
  check_suggestion(260, {});
  check_suggestion(262, {"memory.reserved_pages=1"});
  check_suggestion(100, {});
}

TEST_CASE("request fit: with formats by tag, int4 pages are the missing ones") {
  check_suggestion(90, {"policies.precision=triaxial", "memory.page_tokens=32"});
}

}  // namespace kvtwin
