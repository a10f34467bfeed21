// The cached tokens that an engine reports to a router equal the tokens that a request there starts with, for
// every kind of prefix storage.

#include <doctest/doctest.h>

#include <optional>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/methods/registry.h"
#include "engine/scheduler/core.h"
#include "tests/support/policy_configs.h"
#include "tests/support/test_policies.h"

using namespace kvtwin;
using namespace kvtwin::testing;

namespace {

// An engine that is idle when a request comes: each request has ended before the next one arrives.
class Alone {
 public:
  Alone(const CoreConfig& config, PolicyAxes axes) : core_(config, std::move(axes)) {}

  // The first `units` units of the prompt are those of space 7; the rest is private.
  RequestReady request(uint32_t prompt, uint32_t units) {
    run_ = {7, 0, units};
    RequestReady ready;
    ready.request = RequestId{requests_++};
    ready.prompt_tokens = prompt;
    ready.output_tokens = 1;
    if (units > 0) ready.identity = {&run_, 1};
    return ready;
  }
  uint32_t cached(const RequestReady& request) const { return core_.tokens_cached(request); }

  // The number of prompt tokens that the request reuses.
  uint32_t begins_with(const RequestReady& request) {
    begun_.reset();
    apply(request);
    KVT_CHECK(core_.idle() && begun_.has_value());
    return *begun_;
  }

 private:
  void apply(const Event& event) {
    now_ = now_ + Duration{10};
    std::vector<Command> commands;
    core_.apply(now_, event, &commands);
    core_.check_invariants();
    for (const Command& command : commands) {
      if (const auto* launch = std::get_if<LaunchStep>(&command)) {
        if (!begun_.has_value()) begun_ = launch->entries.front().context;
        apply(StepDone{EngineId{}, launch->step, {&now_, 1}, {}, {}, {}});
      }
      if (const auto* transfer = std::get_if<StartTransfer>(&command)) {
        apply(TransferDone{EngineId{}, transfer->transfer});
      }
    }
  }

  Core core_;
  UnitRun run_;
  Instant now_{};
  uint32_t requests_ = 0;
  std::optional<uint32_t> begun_;
};

void check_cached(const CoreConfig& config, PolicyAxes axes, uint32_t unit, uint32_t whole) {
  const uint32_t prompt = 3 * whole + 1;
  Alone engine(config, std::move(axes));
  const RequestReady first = engine.request(prompt, prompt / unit);
  CHECK(engine.cached(first) == 0);
  CHECK(engine.begins_with(first) == 0);
  for (const uint32_t shared : {3 * whole, 2 * whole, 2 * whole - unit, 0u}) {
    CAPTURE(shared);
    const RequestReady next = engine.request(prompt, shared / unit);
    CHECK(engine.cached(next) == shared / whole * whole);
    CHECK(engine.begins_with(next) == shared / whole * whole);
  }
}

CoreConfig caching() {
  CoreConfig config = table_config();
  config.prefix_cache = true;
  config.unit_tokens = 8;
  return config;
}

}  // namespace

TEST_CASE("cached: pages on the GPU, host pages of resident requests, pages of two formats") {
  check_cached(caching(), make_axes({}), 8, 16);

  CoreConfig host_copies = resident_config();
  host_copies.prefix_cache = true;
  host_copies.unit_tokens = 8;
  host_copies.pages_gpu = 12;
  check_cached(host_copies, make_axes(host_copies.policies), 8, 16);

  CoreConfig formats = caching();
  formats.page_tokens = 32;
  formats.pages_int2 = 50;
  formats.policies.precision = "triaxial";
  formats.policies.precision_spec.ageing = Ageing::kForecast;
  REQUIRE(!validate_core_config(formats));
  check_cached(formats, make_axes(formats.policies), 8, 32);
}

TEST_CASE("cached: compressed prefixes, in chunks") {
  CoreConfig config = caching();
  config.page_tokens = config.unit_tokens = 4;
  config.policies.layout = "ragged";
  config.policies.budget = "reserved";
  config.policies.layout_spec = {.layers = 1, .kv_heads = 2, .heads_per_group = 1};
  config.policies.budget_spec.sinks = config.policies.budget_spec.window = 1;
  config.policies.budget_spec.chunk_tokens = 12;
  config.policies.budget_spec.mu = {kWhole / 2, kWhole / 4};
  config.policies.budget_spec.sigma = {0, 0};
  check_cached(config, axes_with_scorer(config, CompressionTrigger::kChunkEnd), 4, 12);
}
