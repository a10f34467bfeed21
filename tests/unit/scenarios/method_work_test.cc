// MethodWork of shipped scenarios: the operations that their policies add to a step.

#include "scenarios/app/method_work.h"

#include <doctest/doctest.h>

#include <string>

#include "scenarios/app/compose.h"
#include "scenarios/load/scenario.h"
#include "scenarios/load/shipped.h"

namespace kvtwin {
namespace {

MethodWork work_of(const std::string& scenario) {
  const tl::expected<Scenario, Errors> loaded = load_scenario(path_of_shipped("suites/" + scenario), {});
  REQUIRE(loaded);
  const tl::expected<Composed, Errors> composed = compose(*loaded);
  REQUIRE(composed);
  return method_work(composed->options.engines.front(), composed->llm);
}

TEST_CASE("method work: query rows or probe rows whose attention scores the entries") {
  CHECK(work_of("validation/snapkv").asked_rows == 64);   // the last rows of the prompt
  CHECK(work_of("validation/judge_q").asked_rows == 32);  // soft tokens behind it
  CHECK_FALSE(work_of("validation/judge_q").captures);    // which nothing is stored for
  CHECK(work_of("validation/knorm").asked_rows == 0);
  CHECK(work_of("validation/h2o").asked_rows == 0);
}

TEST_CASE("method work: compressions are staged where the retained counts of a chunk are known") {
  CHECK(work_of("validation/knorm").staged);
  CHECK(work_of("calibration/tangram").staged);
  for (const char* const other : {"validation/snapkv", "validation/h2o", "calibration/adakv"})
    CHECK_FALSE(work_of(other).staged);
}

}  // namespace
}  // namespace kvtwin
