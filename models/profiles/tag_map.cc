#include "models/profiles/tag_map.h"

#include <fmt/format.h>

#include "models/files/textproto.h"
#include "traces/proto/profile.pb.h"

namespace kvtwin {
namespace {

tl::unexpected<Error> no_code(const std::string& where, const char* field, uint32_t code) {
  return make_error(where, fmt::format("{} has the tag {}", field, code), "tags are 0 to 55");
}

}  // namespace

Result<TagMap> parse_tag_map(std::string_view text, const std::string& where) {
  v1::TagMap in;
  if (auto good = parse_textproto(text, where, &in); !good) return tl::unexpected(good.error());
  TagMap map;
  map.name = in.name(), map.model = in.model(), map.source = in.source();
  map.bits = in.bits(), map.exact = in.exact();
  if (!(map.bits >= 2 && map.bits <= 4))
    return make_error(where, fmt::format("bits is {}", map.bits), "from 2 to 4");
  for (const uint32_t code : in.four_bit_tags()) {
    if (code >= kTagMapCodes) return no_code(where, "four_bit_tags", code);
    map.four_bit_tags |= uint64_t{1} << code;
  }
  for (const v1::TagMap::Loss& loss : in.losses()) {
    if (loss.tag() >= kTagMapCodes) return no_code(where, "losses", loss.tag());
    if (!(loss.two_bits() >= 0 && loss.four_bits() >= 0))
      return make_error(
          where, fmt::format("losses of tag {} are {} and {}", loss.tag(), loss.two_bits(), loss.four_bits()),
          "0 or more");
    map.losses[loss.tag()] = {loss.tokens(), loss.two_bits(), loss.four_bits()};
  }
  return map;
}

std::string tag_map_textproto(const TagMap& map) {
  v1::TagMap out;
  out.set_name(map.name), out.set_model(map.model), out.set_source(map.source);
  out.set_bits(map.bits), out.set_exact(map.exact);
  for (uint32_t code = 0; code < kTagMapCodes; ++code) {
    if (((map.four_bit_tags >> code) & 1) != 0) out.add_four_bit_tags(code);
    const TagMap::Loss& loss = map.losses[code];
    if (loss.tokens == 0) continue;
    v1::TagMap::Loss* const entry = out.add_losses();
    entry->set_tag(code), entry->set_tokens(loss.tokens);
    entry->set_two_bits(loss.two_bits), entry->set_four_bits(loss.four_bits);
  }
  return textproto_file(out);
}

}  // namespace kvtwin
