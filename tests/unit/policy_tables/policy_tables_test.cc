#include <doctest/doctest.h>

#include "tests/support/table_file.h"

TEST_CASE("policy: the decision tables of admission, batches, prefixes, tiers and preemption") {
  CHECK(kvtwin::testing::check_table_files("tests/unit/policy_tables") >= 93);
}

TEST_CASE("policy: the decision tables of requests that retain part of their KV") {
  CHECK(kvtwin::testing::check_table_files("tests/unit/retention") >= 48);
}
