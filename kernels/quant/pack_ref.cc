#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "kernels/common/small_floats.h"
#include "kernels/quant/pack.h"

namespace kvtwin::kernels {
namespace {

float in_range(float x) { return std::clamp(x, -kFp16Max, kFp16Max); }

// Code i of a row of codes of `bits` bits.
void put_code(uint8_t* row, uint32_t i, uint32_t bits, uint32_t code) {
  const uint32_t shift = i * bits % 8;
  uint8_t& byte = row[i * bits / 8];
  byte = static_cast<uint8_t>((byte & ~(((1u << bits) - 1) << shift)) | (code << shift));
}
uint32_t get_code(const uint8_t* row, uint32_t i, uint32_t bits) {
  return (row[i * bits / 8] >> (i * bits % 8)) & ((1u << bits) - 1);
}

// Scales first, then zeros: `count` of each.
void put_affine(uint8_t* pairs, uint32_t count, uint32_t i, Affine shared) {
  store_u16(pairs + 2 * i, shared.scale);
  store_u16(pairs + 2 * (count + i), shared.zero);
}
Affine get_affine(const uint8_t* pairs, uint32_t count, uint32_t i) {
  return {load_u16(pairs + 2 * i), load_u16(pairs + 2 * (count + i))};
}

void check_token(size_t values, size_t bytes, uint32_t bits, const PageShape& shape) {
  KVT_CHECK(bits == 2 || bits == 4);
  KVT_CHECK(values == shape.head_dim);
  KVT_CHECK(bytes == token_bytes(bits == 2 ? Format::kInt2 : Format::kInt4, shape));
}

void check_group(size_t values, size_t bytes, uint32_t bits, const PageShape& shape) {
  KVT_CHECK(bits == 2 || bits == 4);
  KVT_CHECK(values == size_t{shape.group} * shape.head_dim);
  KVT_CHECK(bytes == key_group_bytes(bits, shape));
}

}  // namespace

uint16_t load_u16(const uint8_t* at) { return static_cast<uint16_t>(at[0] | (at[1] << 8)); }
void store_u16(uint8_t* at, uint16_t value) {
  at[0] = static_cast<uint8_t>(value);
  at[1] = static_cast<uint8_t>(value >> 8);
}

Affine affine_of(const float* x, size_t count, size_t stride, uint32_t bits) {
  float low = in_range(x[0]), high = low;
  for (size_t i = 1; i < count; ++i) {
    low = std::min(low, in_range(x[i * stride]));
    high = std::max(high, in_range(x[i * stride]));
  }
  const float steps = static_cast<float>((1u << bits) - 1);
  return {to_fp16((high - low) / steps),
          to_fp16(low + 0.0f)};  // -0 becomes 0, independent of the order of both
}

uint32_t code_of(float x, Affine shared, uint32_t bits) {
  const float scale = from_fp16(shared.scale);
  if (scale == 0) return 0;
  const float code = std::nearbyint((in_range(x) - from_fp16(shared.zero)) / scale);  // ties to even
  return static_cast<uint32_t>(std::clamp(code, 0.0f, static_cast<float>((1u << bits) - 1)));
}

float value_of(uint32_t code, Affine shared) {
  // The product is exact (11 + 4 bits), so a fused multiply-add gives the same value.
  return static_cast<float>(code) * from_fp16(shared.scale) + from_fp16(shared.zero);
}

void pack_token(std::span<const float> x, uint32_t bits, const PageShape& shape, std::span<uint8_t> packed) {
  check_token(x.size(), packed.size(), bits, shape);
  const uint32_t groups = channel_groups(shape), width = shape.head_dim / groups;
  uint8_t* const pairs = packed.data() + shape.head_dim * bits / 8;
  for (uint32_t g = 0; g < groups; ++g) {
    const Affine shared = affine_of(x.data() + g * width, width, 1, bits);
    put_affine(pairs, groups, g, shared);
    for (uint32_t c = g * width; c < (g + 1) * width; ++c) {
      put_code(packed.data(), c, bits, code_of(x[c], shared, bits));
    }
  }
}

void unpack_token(std::span<const uint8_t> packed, uint32_t bits, const PageShape& shape,
                  std::span<float> out) {
  check_token(out.size(), packed.size(), bits, shape);
  const uint32_t groups = channel_groups(shape), width = shape.head_dim / groups;
  const uint8_t* const pairs = packed.data() + shape.head_dim * bits / 8;
  for (uint32_t c = 0; c < shape.head_dim; ++c) {
    out[c] = value_of(get_code(packed.data(), c, bits), get_affine(pairs, groups, c / width));
  }
}

void pack_key_group(std::span<const float> k, uint32_t bits, const PageShape& shape,
                    std::span<uint8_t> packed) {
  check_group(k.size(), packed.size(), bits, shape);
  const uint32_t row_bytes = shape.group * bits / 8;
  uint8_t* const pairs = packed.data() + size_t{shape.head_dim} * row_bytes;
  for (uint32_t c = 0; c < shape.head_dim; ++c) {
    const Affine shared = affine_of(k.data() + c, shape.group, shape.head_dim, bits);
    put_affine(pairs, shape.head_dim, c, shared);
    for (uint32_t t = 0; t < shape.group; ++t) {
      put_code(packed.data() + size_t{c} * row_bytes, t, bits,
               code_of(k[size_t{t} * shape.head_dim + c], shared, bits));
    }
  }
}

uint32_t key_code(std::span<const uint8_t> packed, uint32_t bits, const PageShape& shape, uint32_t token,
                  uint32_t channel) {
  return get_code(packed.data() + size_t{channel} * (shape.group * bits / 8), token, bits);
}

Affine key_affine(std::span<const uint8_t> packed, uint32_t bits, const PageShape& shape, uint32_t channel) {
  const uint8_t* const pairs = packed.data() + size_t{shape.head_dim} * (shape.group * bits / 8);
  return get_affine(pairs, shape.head_dim, channel);
}

void unpack_key_group(std::span<const uint8_t> packed, uint32_t bits, const PageShape& shape,
                      std::span<float> out) {
  check_group(out.size(), packed.size(), bits, shape);
  for (uint32_t c = 0; c < shape.head_dim; ++c) {
    const Affine shared = key_affine(packed, bits, shape, c);
    for (uint32_t t = 0; t < shape.group; ++t) {
      out[size_t{t} * shape.head_dim + c] = value_of(key_code(packed, bits, shape, t, c), shared);
    }
  }
}

}  // namespace kvtwin::kernels
