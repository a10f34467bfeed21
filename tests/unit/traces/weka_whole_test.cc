#include <sys/resource.h>

#include "tests/unit/traces/weka_acceptance.h"
#include "traces/inspect/cut.h"
#include "traces/inspect/inspect.h"

using namespace kvtwin;
using namespace kvtwin::testing;

TEST_CASE("WEKA whole: 692 sessions import within 30 CPU-seconds and 500 MB") {
  KVT_NEED_DATA(path, "weka-claude-code/traces_710.tar.xz");
  const auto cpu_s = [] {
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    return static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           1e-6 * static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec);
  };
  const double before = cpu_s();
  uint64_t prompt_tokens = 0;
  PerSession sink([&](const v1::TraceHeader&, const v1::Session& session) {
    for (const v1::Node& node : session.nodes()) prompt_tokens += node.llm().prompt_tokens();
  });
  REQUIRE(import_trace("weka", path, {}, &sink).has_value());
  CHECK(prompt_tokens == 5'467'403'989);
  const double took = cpu_s() - before;
  MESSAGE("import took " << took << " CPU-s");
#ifdef NDEBUG
  CHECK(took < 30);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  CHECK(usage.ru_maxrss < 500'000);  // KiB
#endif
}

TEST_CASE(
    "WEKA whole: all 46,218 requests are exported field by field, pass all checks, and replay in time") {
  KVT_NEED_DATA(path, "weka-claude-code/traces_710.tar.xz");
  WekaAcceptance got = accept_weka(path);
  CHECK(got.sessions == 692);
  CHECK(got.requests == 46'218);
  CHECK(got.requests_equal == 46'218);
  CHECK(got.agents == 63);
  CHECK(got.with_spans == 46'218);
  MESSAGE("step error p1 " << percentile(got.step_ns, 0.01) << " ns, p99 " << percentile(got.step_ns, 0.99)
                           << " ns");
  CHECK(percentile(got.step_ns, 0.01) >=
        -850'000'000);  // docs/design/trace-formats.md#importers: -0.85..+0.85 s; times are rounded to 1 s
  CHECK(percentile(got.step_ns, 0.99) <= 850'000'000);
  std::sort(got.drift.begin(), got.drift.end());
  MESSAGE("drift p1 " << got.drift[6] << ", p99 " << got.drift[684]);
  CHECK(got.drift[6] >= -0.025);
  CHECK(got.drift[684] <= 0.015);
}

TEST_CASE(
    "WEKA whole: inspect finds 96.3 % reuse, and cuts give the slices that docs/design/trace-formats.md#weka "
    "names") {
  KVT_NEED_DATA(path, "weka-claude-code/traces_710.tar.xz");
  TraceInspector inspector;
  REQUIRE(import_trace("weka", path, {}, &inspector).has_value());
  const auto got = inspector.json();
  CHECK(got["ideal_reuse"]["in_session"].get<double>() == doctest::Approx(0.9626).epsilon(0.0005));
  // docs/design/trace-formats.md#weka counts sessions whose head has at least 3 requests, and the requests
  // of all heads.
  const std::tuple<double, int, int> expected[] = {
      {0.059, 201, 1'992}, {0.25, 371, 8'517}, {0.72, 546, 25'021}, {0.93, 619, 42'223}};
  for (size_t i = 0; i < 4; ++i) {
    const auto& window = got["windows"][i];
    CHECK(window["requests_that_fit"].get<double>() ==
          doctest::Approx(std::get<0>(expected[i])).epsilon(0.01));
    CHECK(window["sessions_with_head"] == std::get<1>(expected[i]));
    CHECK(window["requests_in_all_heads"] == std::get<2>(expected[i]));
  }
  const auto cut = [&](CutOptions options) {
    std::pair<int, int> count{0, 0};
    PerSession sink([&](const v1::TraceHeader&, const v1::Session& session) {
      ++count.first;
      for (const v1::Node& node : session.nodes()) count.second += node.has_llm();
    });
    TraceCut filter(options, &sink);
    const auto good = import_trace("weka", path, {}, &filter);
    REQUIRE_MESSAGE(good.has_value(), (good ? "" : good.error().text()));
    return count;
  };
  CHECK(cut({.window_tokens = 32'768, .opaque_sub_agents = true}) == std::pair{376, 1'992});
  CHECK(cut({.window_tokens = 32'768, .head_requests_min = 3, .opaque_sub_agents = true}) ==
        std::pair{201, 1'761});
  CHECK(cut({.window_tokens = 32'768, .head_requests_min = 3}) == std::pair{201, 1'826});
}
