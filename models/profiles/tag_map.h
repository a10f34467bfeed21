// TagMap: the token tags whose KV entries get 4 bits, as a TriAxialKV calibration found them
// (traces/proto/profile.proto). Tags are codes 0 to 55 of engine/base/tags.h.

#ifndef KVTWIN_MODELS_PROFILES_TAG_MAP_H_
#define KVTWIN_MODELS_PROFILES_TAG_MAP_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/result.h"

namespace kvtwin {

constexpr uint32_t kTagMapCodes = 56;

struct TagMap {
  struct Loss {
    uint64_t tokens = 0;  // 0: the calibration did not see the tag
    double two_bits = 0, four_bits = 0;
  };
  std::string name, model, source;
  double bits = 4;  // nominal bits per value, 2 to 4
  bool exact = false;
  uint64_t four_bit_tags = 0;
  std::array<Loss, kTagMapCodes> losses{};
};

Result<TagMap> parse_tag_map(std::string_view text, const std::string& where);
std::string tag_map_textproto(const TagMap& map);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_PROFILES_TAG_MAP_H_
