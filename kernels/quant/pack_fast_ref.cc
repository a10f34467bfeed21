#include <algorithm>

#include "engine/base/check.h"
#include "kernels/quant/pack_fast.h"

namespace kvtwin::kernels {
namespace {

constexpr uint32_t kTile = 16, kWarpLanes = 32, kVectorWords = 4;

uint64_t bytes_of(Side side, uint32_t bits, uint32_t head_dim) {
  return side == Side::kKey ? record_bytes(bits, head_dim) : value_record_bytes(bits, head_dim);
}

void check_record(uint32_t bits, uint32_t head_dim, size_t values) {
  KVT_CHECK(bits == 2 || bits == 4);
  KVT_CHECK(head_dim % (bits == 4 ? kTile : 2 * kTile) == 0);
  KVT_CHECK(values == size_t{kRecordTokens} * head_dim);
}

// Index of the scale of a value: its channel for keys, its token for values.
uint32_t shared_index(Side side, uint32_t token, uint32_t channel) {
  return side == Side::kKey ? channel : token;
}

}  // namespace

FastPlace fast_place(Side side, uint32_t bits, uint32_t head_dim, uint32_t token, uint32_t channel) {
  const uint32_t tile = token / kTile * (head_dim / kTile) + channel / kTile;
  const uint32_t row = (side == Side::kKey ? token : channel) % kTile;
  const uint32_t column = (side == Side::kKey ? channel : token) % kTile;
  const uint32_t lane = row % 8 * 4 + column % 8 / 2;
  const uint32_t reg = row / 8 + column / 8 * 2, half = column % 2;
  const uint32_t tiles_per_word = bits == 4 ? 1 : 2;
  const uint32_t field = tile % tiles_per_word * 4 + reg;
  const uint32_t slot = tile / tiles_per_word;  // index among a lane's words, in order of tiles
  return {(slot / kVectorWords * kWarpLanes + lane) * kVectorWords + slot % kVectorWords,
          16 * half + field * bits};
}

void pack_record(Side side, uint32_t bits, uint32_t head_dim, std::span<const float> rows,
                 std::span<uint8_t> record) {
  check_record(bits, head_dim, rows.size());
  KVT_CHECK(record.size() == bytes_of(side, bits, head_dim));
  std::fill(record.begin(), record.end(), uint8_t{0});
  const uint32_t groups = side == Side::kKey ? head_dim : kRecordTokens;
  uint8_t* const pairs = record.data() + size_t{kRecordTokens} * head_dim * bits / 8;
  for (uint32_t g = 0; g < groups; ++g) {
    const Affine shared = side == Side::kKey
                              ? affine_of(rows.data() + g, kRecordTokens, head_dim, bits)
                              : affine_of(rows.data() + size_t{g} * head_dim, head_dim, 1, bits);
    store_u16(pairs + 2 * g, shared.scale);
    store_u16(pairs + 2 * (groups + g), shared.zero);
  }
  for (uint32_t t = 0; t < kRecordTokens; ++t) {
    for (uint32_t c = 0; c < head_dim; ++c) {
      const uint32_t g = shared_index(side, t, c);
      const Affine shared{load_u16(pairs + 2 * g), load_u16(pairs + 2 * (groups + g))};
      const FastPlace place = fast_place(side, bits, head_dim, t, c);
      const uint32_t code = code_of(rows[size_t{t} * head_dim + c], shared, bits);
      uint8_t& byte = record[4 * place.word + place.shift / 8];
      byte = static_cast<uint8_t>(byte | (code << (place.shift % 8)));
    }
  }
}

void unpack_record(Side side, uint32_t bits, uint32_t head_dim, std::span<const uint8_t> record,
                   std::span<float> out) {
  check_record(bits, head_dim, out.size());
  KVT_CHECK(record.size() == bytes_of(side, bits, head_dim));
  const uint32_t groups = side == Side::kKey ? head_dim : kRecordTokens;
  const uint8_t* const pairs = record.data() + size_t{kRecordTokens} * head_dim * bits / 8;
  for (uint32_t t = 0; t < kRecordTokens; ++t) {
    for (uint32_t c = 0; c < head_dim; ++c) {
      const uint32_t g = shared_index(side, t, c);
      const Affine shared{load_u16(pairs + 2 * g), load_u16(pairs + 2 * (groups + g))};
      const FastPlace place = fast_place(side, bits, head_dim, t, c);
      const uint32_t byte = record[4 * place.word + place.shift / 8];
      out[size_t{t} * head_dim + c] = value_of((byte >> (place.shift % 8)) & ((1u << bits) - 1), shared);
    }
  }
}

}  // namespace kvtwin::kernels
