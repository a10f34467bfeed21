// An apply() that neither admits, finishes nor preempts allocates no memory
// (docs/design/backend-interface-and-digest.md#interface). This program replaces operator new to count.

#include <doctest/doctest.h>
#include <malloc.h>

#include <cstdlib>
#include <new>
#include <vector>

#include "engine/scheduler/core.h"
#include "tests/support/test_policies.h"

namespace {

size_t allocations = 0;
int64_t bytes_live = 0;

void release(void* memory) {
  bytes_live -= memory == nullptr ? 0 : static_cast<int64_t>(malloc_usable_size(memory));
  std::free(memory);
}

}  // namespace

void* operator new(size_t bytes) {
  ++allocations;
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  bytes_live += static_cast<int64_t>(malloc_usable_size(memory));
  return memory;
}
void operator delete(void* memory) noexcept { release(memory); }
void operator delete(void* memory, size_t) noexcept { release(memory); }

using namespace kvtwin;

namespace {

// Lets `requests` requests decode together and counts the allocations of `steps` applies after warm-up.
size_t allocations_of(const CoreConfig& config, uint32_t requests, uint32_t steps,
                      CompressionTrigger compression_trigger = CompressionTrigger::kAtNoTime) {
  Core core(config, testing::axes_with_scorer(config, compression_trigger));
  std::vector<Command> commands;
  Instant now{};
  uint64_t step = 0;
  const auto done = [&](uint32_t count) {
    const std::vector<Instant> ends(count, now = now + Duration{10});
    commands.clear();
    const size_t before = allocations;
    core.apply(now, StepDone{config.engine, StepId{step}, ends, {}, {}}, &commands);
    step += count;
    return allocations - before;
  };
  for (uint32_t i = 0; i < requests; ++i) {
    const std::vector<UnitRun> identity{{i, 0, 4}};
    RequestReady ready;
    ready.request = RequestId{i};
    ready.prompt_tokens = 64;
    ready.output_tokens = 4'000;
    ready.identity = identity;
    core.apply(now, ready, &commands);
  }
  for (int warm_up = 0; warm_up < 200; ++warm_up) done(1);
  size_t counted = 0;
  for (uint32_t i = 0; i < steps; ++i) {
    counted += done(1);
    for (const Command& command : commands) REQUIRE(std::holds_alternative<LaunchStep>(command));
  }
  return counted;
}

CoreConfig steady() {
  CoreConfig config;
  config.pages_gpu = 50'000;
  config.step_tokens_max = 4'096;
  config.repeat_max = 1;
  return config;
}

}  // namespace

TEST_CASE("allocation: operator new is counted") {
  const size_t before = allocations;
  ::operator delete(::operator new(8));  // not a new-expression, which the compiler may optimise away
  CHECK(allocations == before + 1);
}

TEST_CASE("allocation: steady decoding allocates only when a request's page table doubles") {
  // 50 requests x 1,600 steps cross 5,000 page boundaries. Each table grows from 16 to 116 pages: 3
  // doublings.
  CHECK(allocations_of(steady(), 50, 1'600) <= 50 * 3);
}

TEST_CASE("allocation: within a page table's capacity steady decoding allocates nothing") {
  CHECK(allocations_of(steady(), 50, 40) == 0);
  CoreConfig two = steady();
  two.steps_in_flight_max = 2;
  CHECK(allocations_of(two, 50, 40) == 0);
}

TEST_CASE(
    "allocation: steady decoding allocates nothing with a host tier, and requests that can be swapped") {
  CoreConfig config = steady();
  config.policies.placement = "host";
  config.pages_host = 10'000;
  config.offload_pages_target = 100;
  config.preemption = PreemptionKind::kSwap;
  CHECK(allocations_of(config, 50, 40) == 0);
}

TEST_CASE("allocation: steady decoding allocates nothing where KV entries are dropped in place") {
  CoreConfig config = steady();
  config.policies.layout = "page_mask";
  config.policies.budget = "ratio";
  config.policies.identity = "session";
  CHECK(allocations_of(config, 50, 40, CompressionTrigger::kPromptEnd) == 0);
}

TEST_CASE("allocation: steady decoding allocates nothing in mixed precision") {
  CoreConfig config = steady();
  config.page_tokens = 32;
  config.policies.precision = "triaxial";
  config.pages_int2 = 10'000;
  CHECK(allocations_of(config, 50, 40) == 0);
}

TEST_CASE("allocation: steady decoding allocates nothing with resident pages") {
  CoreConfig config = steady();
  config.policies.placement = "resident";
  config.policies.retrieval = "freekv";
  config.policies.retrieval_spec.budget_tokens = 256;
  config.policies.retrieval_spec.sink_tokens = config.policies.retrieval_spec.window_tokens = 32;
  config.pages_host = 50'000;
  CHECK(allocations_of(config, 50, 40) == 0);
}

TEST_CASE("allocation: steady decoding allocates nothing with a page table per head group") {
  CoreConfig config = steady();
  config.policies.layout = "ragged";
  config.policies.budget = "ratio";
  config.policies.layout_spec = {.layers = 4, .kv_heads = 8, .heads_per_group = 2};
  config.policies.budget_spec.chunk_tokens = 16;
  CHECK(allocations_of(config, 50, 40, CompressionTrigger::kChunkEnd) == 0);
  config.prefix_cache = false;
  CHECK(allocations_of(config, 50, 40, CompressionTrigger::kChunkEnd) == 0);
  config.policies.layout = "ring";
  config.policies.budget = "uniform";
  CHECK(allocations_of(config, 50, 40) == 0);
}

// Requests come and go: an engine remembers those that are live, and its cache as far as it has pages.
TEST_CASE("allocation: memory of 64 engines does not grow with the number of requests that they served") {
  constexpr uint32_t kEngines = 64, kRequests = 1'000'000, kWarmUp = 200'000;
  std::vector<Core> engines;
  for (uint16_t i = 0; i < kEngines; ++i) {
    CoreConfig config;
    config.engine = EngineId{i};
    config.pages_gpu = 64;
    engines.emplace_back(config);
  }
  std::vector<uint64_t> steps(kEngines, 0);
  std::vector<Command> commands;
  const std::vector<Instant> ends{Instant{}};
  int64_t before = 0;
  for (uint32_t i = 0; i < kRequests; ++i) {
    if (i == kWarmUp) before = bytes_live;
    Core& engine = engines[i % kEngines];
    const UnitRun identity[1] = {{i, 0, 3}};
    RequestReady ready;
    ready.request = RequestId{i};
    ready.session = SessionId{i / 8};
    ready.prompt_tokens = 47;
    ready.output_tokens = 1;
    ready.identity = identity;
    commands.clear();
    engine.apply(Instant{}, ready, &commands);
    engine.apply(Instant{}, StepDone{EngineId{0}, StepId{steps[i % kEngines]++}, ends, {}, {}}, &commands);
    REQUIRE(std::holds_alternative<FinishRequest>(commands[commands.size() - 2]));
  }
  const int64_t grown = bytes_live - before;
  CAPTURE(grown);
  CHECK(grown / (kRequests - kWarmUp) < 1);  // bytes of each further request
}
