#include "models/profiles/tag_map.h"

#include <doctest/doctest.h>

namespace kvtwin {
namespace {

TagMap example() {
  TagMap map;
  map.name = "bfcl", map.bits = 2.7, map.exact = true;
  map.four_bit_tags = 1ull << 55 | 1ull << 3 | 1;
  map.losses[47] = {1000, 0.5, 0.125};
  return map;
}

std::string complaint(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != std::string::npos);
  const auto map = parse_tag_map(text.replace(at, from.size(), to), "map.textproto");
  return map ? "" : map.error().text();
}

}  // namespace

TEST_CASE("tag map: a file reads back unchanged, and errors are named") {
  const std::string text = tag_map_textproto(example());
  const auto back = parse_tag_map(text, "map.textproto");
  REQUIRE_MESSAGE(back, (back ? std::string() : back.error().text()));
  CHECK(back->four_bit_tags == example().four_bit_tags);
  CHECK(back->losses[47].tokens == 1000);
  CHECK(tag_map_textproto(*back) == text);
  const auto message = [](const std::string& whole, const char* part) {
    return whole.find(part) != std::string::npos;
  };
  CHECK(message(complaint(text, "four_bit_tags: [0", "four_bit_tags: [56"),
                "four_bit_tags has the tag 56; tags are 0 to 55"));
  CHECK(message(complaint(text, "bits: 2.7", "bits: 5"), "bits is 5"));
  CHECK(message(complaint(text, "two_bits: 0.5", "two_bits: -1"), "losses of tag 47"));
}

}  // namespace kvtwin
