#include "engine/base/retired_names.h"

#include <doctest/doctest.h>

using kvtwin::name_now;

TEST_CASE("retired names: the successor is named where it is known") {
  CHECK(name_now("arena", {"paged", "ring"}) == "ring");
  CHECK(name_now("arena", {"gpu", "host", "resident"}) == "resident");
  CHECK(name_now("arena", {"gpu", "host"}).empty());
  CHECK(name_now("ring", {"paged", "ring"}).empty());
}
