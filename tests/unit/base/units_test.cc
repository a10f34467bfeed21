#include "engine/base/units.h"

#include <doctest/doctest.h>

#include <type_traits>

using namespace kvtwin;

TEST_CASE("units: instants and durations keep nanoseconds exactly") {
  const Instant a{1'000};
  CHECK((a + Duration{5}).ns == 1'005);
  CHECK((Instant{7} - Instant{10}).ns == -3);
  CHECK((Duration{2} + Duration{3}).ns == 5);
  CHECK(Instant{1} < Instant{2});
  CHECK(kNever > Instant{INT64_MAX - 1});
}

TEST_CASE("units: one kind of id is not another, and neither is a number") {
  static_assert(!std::is_convertible_v<PageId, RequestId>);
  static_assert(!std::is_convertible_v<PageId, uint32_t>);
  static_assert(!std::is_convertible_v<uint32_t, PageId>);
  CHECK(raw(PageId{7}) == 7u);
  static_assert(std::is_same_v<decltype(raw(StepId{})), uint64_t>);
}

TEST_CASE("units: div_ceil rounds up") {
  CHECK(div_ceil(0u, 16u) == 0);
  CHECK(div_ceil(1u, 16u) == 1);
  CHECK(div_ceil(16u, 16u) == 1);
  CHECK(div_ceil(17u, 16u) == 2);
}
