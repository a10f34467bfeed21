#include "scenarios/calibrate/calibrate_server.h"

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cmath>
#include <fstream>
#include <string>

#include "scenarios/app/compose.h"
#include "scenarios/calibrate/nelder_mead.h"
#include "scenarios/load/short_textproto.h"
#include "tests/support/folder.h"

namespace kvtwin {
namespace {

TEST_CASE("nelder mead: finds minima inside and at the bounds") {
  const auto bowl = [](const std::vector<double>& at) {
    return std::pow(at[0] - 3, 2) + 10 * std::pow(at[1] + 1, 2) + 5 * at[0] * at[1] * 0.1;
  };
  const Minimum inside = minimise({{0, 1, -10, 10}, {0, 1, -10, 10}}, 400, bowl);
  // The gradient is zero there.
  CHECK(std::abs(2 * (inside.at[0] - 3) + 0.5 * inside.at[1] - (0)) < 1e-2);
  CHECK(std::abs(20 * (inside.at[1] + 1) + 0.5 * inside.at[0] - (0)) < 1e-1);
  const Minimum bounded = minimise({{0, 1, -10, 2}, {0.5, 1, 0, 10}}, 400, bowl);
  CHECK(std::abs(bounded.at[0] - (2)) < 1e-2);
  CHECK(std::abs(bounded.at[1] - (0)) < 1e-2);
  CHECK(minimise({{0, 1, -10, 10}}, 20, [](const auto& at) { return at[0] * at[0]; }).evaluations <= 23u);
}

// 80 requests of different lengths, faster than one GPU serves them.
Scenario small_server(const std::string& folder) {
  std::ofstream trace(folder + "/trace.jsonl");
  for (int i = 0; i < 80; ++i) {
    trace << fmt::format("{{\"timestamp\": {}, \"input_length\": {}, \"output_length\": {}}}\n",
                         100 * i + 37 * (i % 5), 200 + 613 * (i * 7 % 11), 20 + 41 * (i * 5 % 13));
  }
  trace.close();
  const tl::expected<Scenario, Errors> scenario = parse_scenario(
      R"(model { name: "llama-3.1-8b" } hardware { node: "h100" } limits { preset: "vllm_v1" }
         trace { path: "trace.jsonl" format: "mooncake" } replay { mode: "open_loop" })",
      folder + "/server.textproto", {});
  REQUIRE(scenario);
  return *scenario;
}

TEST_CASE("calibrate server: finds a server of known step times, the same each time") {
  if (!can_simulate()) return;
  const testing::Folder folder;
  const Scenario scenario = small_server(folder.path());
  const ServerTimes known{.host_step_ns = 1.5e6,
                          .host_request_ns = 30e3,
                          .weights = 1.2,
                          .kv = 1.4,
                          .prefill = 0.9,
                          .first_step_ns = 200'000'000};
  const tl::expected<std::vector<Request>, Errors> log = simulated_requests(scenario, &known);
  REQUIRE(log.has_value());
  const Result<ServerCalibration> found = calibrate_server({scenario, *log, "log", 30});
  REQUIRE(found.has_value());
  CHECK(found->distance_percent < 0.5);
  CHECK(found->before_percent > 10);
  for (const ComparedRow& row : found->fitted.comparison.rows) CHECK(std::abs(row.difference_percent()) < 2);
  CHECK(std::abs(static_cast<double>(found->profile.times.first_step_ns) - (2e8)) < 2e7);
  CHECK(found->profile.seen.requests == 30u);
  CHECK(found->rest.requests == 50u);
  // The same log gives the same figures.
  const Result<ServerCalibration> again = calibrate_server({scenario, *log, "log", 30});
  REQUIRE(again.has_value());
  CHECK(server_calibration_text(*again) == server_calibration_text(*found));
}

TEST_CASE("calibrate server: a fit that is worse than none is said, with the setting that may be wrong") {
  ServerCalibration found;
  for (auto& error : found.nothing.errors) error.median = 10;
  found.fitted.errors = found.nothing.errors;
  found.profile.seen.running_max = 128, found.requests_max = 256;
  CHECK_FALSE(found.worse_than_nothing());
  CHECK(server_calibration_text(found).find("warning") == std::string::npos);
  found.fitted.errors[0].median = 13;
  CHECK(found.worse_than_nothing());
  CHECK(server_calibration_text(found).find("--set=limits.requests_max=128") != std::string::npos);
}

TEST_CASE("calibrate server: refuses logs of other requests") {
  if (!can_simulate()) return;
  const testing::Folder folder;
  const Scenario scenario = small_server(folder.path());
  std::vector<Request> log = *simulated_requests(scenario, nullptr);
  CHECK_FALSE(calibrate_server({scenario, log, "log", 80}).has_value());
  CHECK_FALSE(calibrate_server({scenario, log, "log", 4}).has_value());
  std::vector<Request> fewer(log.begin(), log.end() - 1);
  CHECK_FALSE(calibrate_server({scenario, fewer, "log", 30}).has_value());
  log[7].output_tokens += 1;
  const Result<ServerCalibration> other = calibrate_server({scenario, log, "log", 30});
  REQUIRE_FALSE(other.has_value());
  CHECK(other.error().what.find("request 7 ") != std::string::npos);
}

TEST_CASE("short textproto: has no defaults, and loads to the same scenario") {
  const testing::Folder folder;
  const Scenario scenario = small_server(folder.path());
  const std::string text = short_textproto(scenario);
  CHECK(text.find("seed") == std::string::npos);
  CHECK(text.find("placement") == std::string::npos);
  CHECK(text.size() < 500u);
  const tl::expected<Scenario, Errors> again = parse_scenario(text, scenario.path, {});
  REQUIRE(again.has_value());
  CHECK(again->values.DebugString() == scenario.values.DebugString());
}

}  // namespace
}  // namespace kvtwin
