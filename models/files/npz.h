// Reads the parts of Numpy's array files that profiles use: .npy (one array) and .npz (a zip archive of
// them).
//
// Safe on any bytes: sizes are checked before anything is allocated, and a member that unpacks to more than
// kNpzMemberBytesMax is refused. .npz needs libarchive.

#ifndef KVTWIN_MODELS_FILES_NPZ_H_
#define KVTWIN_MODELS_FILES_NPZ_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"

namespace kvtwin {

constexpr size_t kNpzMemberBytesMax = size_t{64} << 20;
constexpr size_t kNpzMembersMax = 64;

// Values in C order, converted from their type.
struct NpyArray {
  std::vector<uint64_t> shape;
  std::vector<double> values;
};

// Reads little-endian f4, f8, i4, i8, u1 and b1 in C order. `where` names the file and member.
Result<NpyArray> parse_npy(std::string_view bytes, const std::string& where);

// Members by name without ".npy".
using NpzMembers = std::map<std::string, std::string>;
Result<NpzMembers> unpack_npz(std::string_view bytes, const std::string& where);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_FILES_NPZ_H_
