#include <sys/resource.h>

#include "weka_acceptance.h"

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

TEST_CASE("WEKA whole: all 46,218 calls come back field by field, keep all rules, and replay in time") {
  KVT_NEED_DATA(path, "weka-claude-code/traces_710.tar.xz");
  WekaAcceptance got = accept_weka(path);
  CHECK(got.sessions == 692);
  CHECK(got.calls == 46'218);
  CHECK(got.calls_equal == 46'218);
  CHECK(got.agents == 63);
  CHECK(got.with_spans == 46'218);
  MESSAGE("step error p1 " << percentile(got.step_ns, 0.01) << " ns, p99 " << percentile(got.step_ns, 0.99)
                           << " ns");
  CHECK(percentile(got.step_ns, 0.01) >= -850'000'000);  // TRACES 6: -0.85..+0.85 s; times are rounded to 1 s
  CHECK(percentile(got.step_ns, 0.99) <= 850'000'000);
  std::sort(got.drift.begin(), got.drift.end());
  MESSAGE("drift p1 " << got.drift[6] << ", p99 " << got.drift[684]);
  CHECK(got.drift[6] >= -0.025);
  CHECK(got.drift[684] <= 0.015);
}
