#include "models/cost/plan_price.h"

#include <doctest/doctest.h>

#include "models/cost/host_time.h"

namespace kvtwin {

TEST_CASE("plan price: at, between and beyond the measured points") {
  const PlanPrice once{1, 1, 0};
  CHECK(once.ns(0) == 0);
  CHECK(once.ns(1) == 3'400);
  CHECK(once.ns(8) == 4'000);
  CHECK(once.ns(20) == 4'750);
  CHECK(once.ns(128) == 12'200);
  CHECK(once.ns(224) == 12'200 + 6'700);
  const PlanPrice ragged{32, 8, 0};  // Llama-3.1-8B, each head with its own length in every layer
  CHECK(ragged.ns(1) == 32 * 8'900);
  CHECK(ragged.ns(32) == 32 * 25'200);
  CHECK(PlanPrice{32, 8, 200'000}.ns(4) == 6'400'000);  // 6.4 ms: TANGRAM's figure for this model
  CHECK(PlanPrice{}.ns(100) == 0);
  int64_t before = 0;
  for (uint32_t decodes = 1; decodes < 2000; ++decodes) {
    CHECK(ragged.ns(decodes) >= before);
    before = ragged.ns(decodes);
  }
}

TEST_CASE("plan price: it is host time of steps that decode") {
  HostTime host{1'000, 2'000, 3'000, 512, {}};
  StepShape shape;
  shape.decodes = 8, shape.tokens = 8;
  CHECK(host.of(shape) == 1'000 * kTicksPerNs);
  host.planning = {1, 1, 0};
  CHECK(host.of(shape) == 5'000 * kTicksPerNs);
  const ChunkShape chunk{100, 0};
  shape.chunks = {&chunk, 1};
  shape.decodes = 0, shape.tokens = 100;
  CHECK(host.of(shape) == 2'000 * kTicksPerNs);
}

}  // namespace kvtwin
