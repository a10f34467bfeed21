// An apply() that neither admits, finishes nor preempts allocates no memory
// (docs/design/backend-interface-and-digest.md#interface). This program replaces operator new to count.

#include <doctest/doctest.h>

#include <cstdlib>
#include <new>
#include <vector>

#include "engine/scheduler/core.h"
#include "tests/support/test_policies.h"

namespace {
size_t allocations = 0;
}

void* operator new(size_t bytes) {
  ++allocations;
  void* const memory = std::malloc(bytes == 0 ? 1 : bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

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

TEST_CASE("allocation: steady decoding allocates nothing in mixed precision") {
  CoreConfig config = steady();
  config.page_tokens = 32;
  config.policies.precision = "triaxial";
  config.pages_int2 = 10'000;
  CHECK(allocations_of(config, 50, 40) == 0);
}

TEST_CASE("allocation: steady decoding allocates nothing with a page table per head group") {
  CoreConfig config = steady();
  config.prefix_cache = false;
  config.policies.layout = "ragged";
  config.policies.budget = "ratio";
  config.policies.layout_spec = {.layers = 4, .kv_heads = 8, .heads_per_group = 2};
  CHECK(allocations_of(config, 50, 40, CompressionTrigger::kChunkEnd) == 0);
}
