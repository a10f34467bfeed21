// SimGrid and plain arithmetic agree on every event, every instant and every order: also for simultaneous
// events, interrupted coalesced steps, two steps in flight, and 10^6 s after the start.

#include <doctest/doctest.h>

#include <string>

#include "tests/support/analytic_backend.h"
#include "tests/unit/sim/in_child.h"
#include "tests/unit/sim/script.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

struct TestBackend {
  std::vector<ToyCost> costs;
  sim::SimConfig config;

  explicit TestBackend(uint64_t seed) {
    Prng prng(seed);
    const auto engines = static_cast<uint32_t>(prng.range(1, 4));
    const bool coarse = prng.chance(1, 2);
    for (uint32_t i = 0; i < engines; ++i) {
      costs.emplace_back(draw({seed, i}), coarse,
                         static_cast<Ticks>(prng.range(0, 2) * prng.range(0, 3'000'000)));
    }
    uint32_t gpus = 0;
    for (uint32_t i = 0; i < engines; ++i) {
      sim::SimEngine engine{.cost = &costs[i],
                            .page_bytes = prng.range(1, 3'000'000),
                            .steps_in_flight_max = static_cast<uint32_t>(prng.range(1, 2)),
                            .gpu_first = gpus,
                            .gpus = static_cast<uint32_t>(prng.range(1, 4))};
      gpus += engine.gpus;
      config.engines.push_back(engine);
    }
    config.node.gpus = gpus;
    config.node.sockets = gpus > 1 ? 2 : 1;
    config.node.host_memory_gb_per_s = 100'000;  // no contention
    config.node.pcie_gb_per_s = prng.chance(1, 2) ? 55.4 : 25;
    if (prng.chance(1, 3)) config.node.copy_overhead_in = config.node.copy_overhead_out = {0};
  }
};

ScriptOptions options_for(uint64_t seed) {
  Prng prng(draw({seed, 77}));
  ScriptOptions options;
  options.seed = seed;
  options.coarse = prng.chance(1, 2);
  options.coalesce = prng.chance(3, 4);
  options.outside_gap_ns_max = static_cast<int64_t>(prng.range(2'000, 200'000));
  if (prng.chance(1, 5)) options.start = Instant{1'000'000'000'000'000};  // 10^6 s
  return options;
}

std::string simulated(const TestBackend& test_backend, const ScriptOptions& options) {
  return in_child([&] {
    std::string log;
    sim::simulate(test_backend.config,
                  [&](Backend* backend) { log = Script(test_backend.config, options, backend).run(); });
    return log;
  });
}

std::string computed(const TestBackend& test_backend, const ScriptOptions& options) {
  AnalyticBackend backend(test_backend.config);
  return Script(test_backend.config, options, &backend).run();
}

std::string first_difference(const std::string& a, const std::string& b) {
  if (a == b) return {};
  const size_t at =
      static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
  const size_t from = at < 200 ? 0 : at - 200;
  return "\n--- simulated\n" + a.substr(from, 400) + "\n--- computed\n" + b.substr(from, 400);
}

}  // namespace

TEST_CASE("parity: SimGrid and arithmetic report the same events at the same instants in the same order") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    CAPTURE(seed);
    TestBackend test_backend(seed);
    const ScriptOptions options = options_for(seed);
    const std::string want = computed(test_backend, options);
    REQUIRE(want.find("step") != std::string::npos);
    REQUIRE(first_difference(simulated(test_backend, options), want) == "");
  }
}

// Transfers may end during coalesced steps, and both runs report them. Host time sums to the nanosecond.
TEST_CASE("parity: coalesced and uncoalesced steps end at the same instants, with any interruptions") {
  uint64_t coalesced_requests = 0, uncoalesced_requests = 0;
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    ScriptOptions options = options_for(seed);
    options.coalesce = true;
    TestBackend test_backend(seed);
    const std::string coalesced =
        seed % 10 == 0 ? simulated(test_backend, options) : computed(test_backend, options);
    coalesced_requests += static_cast<uint64_t>(std::count(coalesced.begin(), coalesced.end(), '\n'));
    options.coalesce = false;
    TestBackend again(seed);
    const std::string uncoalesced = computed(again, options);
    uncoalesced_requests += static_cast<uint64_t>(std::count(uncoalesced.begin(), uncoalesced.end(), '\n'));
    REQUIRE(coalesced.find("WRONG") == std::string::npos);
    // The order of lines may differ between engines, so the comparison is per engine.
    for (size_t engine = 0; engine < test_backend.config.engines.size(); ++engine) {
      const auto own = [&](const std::string& log) {
        const std::string mark = fmt::format(" e{} ", engine);
        std::string lines;
        for (size_t from = 0; from < log.size();) {
          const size_t to = log.find('\n', from) + 1;
          const std::string line = log.substr(from, to - from);
          if (line.find(mark) != std::string::npos) lines += line;
          from = to;
        }
        return lines;
      };
      REQUIRE(own(coalesced).find("finished") != std::string::npos);
      REQUIRE(first_difference(own(coalesced), own(uncoalesced)) == "");
    }
  }
  CHECK(coalesced_requests == uncoalesced_requests);
}

TEST_CASE("parity: the same run in two processes gives the same bytes") {
  TestBackend test_backend(5);
  test_backend.config.node.host_memory_gb_per_s = 60;  // contended
  const ScriptOptions options{.seed = 5, .outside = 400, .outside_gap_ns_max = 9'000};
  const std::string once = simulated(test_backend, options);
  CHECK(once.find("transfer") != std::string::npos);
  CHECK(once == simulated(test_backend, options));
}

TEST_CASE("parity: centuries after the start, steps still end at the same nanoseconds") {
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    CAPTURE(seed);
    ScriptOptions options = options_for(seed);
    options.transfers = false;
    options.start = {};
    TestBackend near(seed);
    const std::string want = computed(near, options);
    options.start = Instant{9'000'000'000'000'000'000};
    TestBackend far(seed);
    REQUIRE(first_difference(simulated(far, options), want) == "");
  }
}
