#include "traces/format/compact_json.h"

#include <doctest/doctest.h>

#include <string>

using namespace kvtwin;

namespace {
constexpr CompactKeys kKeys{.run_key = "hash_ids", .number_suffix = "_tok_ids"};
}

TEST_CASE("compact_json: lists under the named keys are stored separately, the rest is a plain tree") {
  const auto parsed = parse_compact_json(
      R"({"a":[1,-2,"x",{"b":null}],"hash_ids":[3,4,5,9],"in_tok_ids":[7,7],"sub":{"hash_ids":[]}})", kKeys);
  REQUIRE(parsed.has_value());
  CHECK(parsed->tree.dump() ==
        R"({"a":[1,-2,"x",{"b":null}],"hash_ids":0,"in_tok_ids":0,"sub":{"hash_ids":1}})");
  REQUIRE(parsed->runs.size() == 2);
  CHECK(parsed->runs[0] == IdRuns{{3, 3, v1::SCOPE_NONE}, {9, 1, v1::SCOPE_NONE}});
  CHECK(parsed->numbers[0] == std::vector<uint32_t>{7, 7});
}

TEST_CASE("compact_json: without keys it builds the same as nlohmann") {
  const std::string text = R"([{"hash_ids":[1,2],"x":1.5e3,"y":[[],{}]},true,"é"])";
  CHECK(parse_compact_json(text, {}).value().tree == nlohmann::json::parse(text));
}

TEST_CASE("compact_json: a number in place of a list is not taken for an index") {
  const auto parsed = parse_compact_json(R"({"hash_ids":[1],"x":{"hash_ids":0}})", kKeys);
  REQUIRE(!parsed.has_value());
  CHECK(parsed.error().what == "\"hash_ids\" is no list");
}

TEST_CASE("compact_json: other input is an error with its position") {
  for (const char* const text :
       {"", "{", "[1,]", "{\"hash_ids\":[1,-2]}", "{\"hash_ids\":[1.5]}", "{\"hash_ids\":[[1]]}",
        "{\"hash_ids\":[{}]}", "{\"hash_ids\":[99999999999999999999]}", "{\"a_tok_ids\":[4294967296]}", "nul",
        "\xff\xfe", "{} x"}) {
    CAPTURE(text);
    CHECK(!parse_compact_json(text, kKeys).has_value());
  }
  CHECK(parse_compact_json("[1,2", kKeys).error().where == "byte 5");
}

TEST_CASE("compact_json: depth and number of values are limited") {
  CHECK(!parse_compact_json(std::string(100'000, '['), kKeys).has_value());
  std::string many = "[0";
  for (uint64_t i = 0; i < kJsonValuesMax; ++i) many += ",0";
  const auto parsed = parse_compact_json(many + "]", kKeys);
  REQUIRE(!parsed.has_value());
  CHECK(parsed.error().what == "more than 4194304 values");
}
