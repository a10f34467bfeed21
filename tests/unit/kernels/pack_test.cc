#include "kernels/quant/pack.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>
#include <vector>

#include "kernels/common/small_floats.h"
#include "kernels/quant/pack_low_bit.h"
#include "tests/unit/kernels/random_rows.h"

using namespace kvtwin;
using namespace kvtwin::kernels;
using kvtwin::testing::random_rows;

namespace {

// The error bound of Q-1 (docs/design/methods/triaxialkv.md#numbers): half a step, or the shift of the ends
// by rounding scale and zero to fp16.
float error_bound(const std::vector<float>& group, Affine shared, uint32_t bits) {
  const auto [low, high] = std::minmax_element(group.begin(), group.end());
  const float scale = from_fp16(shared.scale), zero = from_fp16(shared.zero);
  const float top = value_of((1u << bits) - 1, shared);
  const float fp32 = 1e-6f * std::max(std::abs(*low), std::abs(*high));
  return std::max({scale / 2, std::abs(*low - zero), *high - top}) + fp32;
}

void check_group(const std::vector<float>& group, uint32_t bits) {
  const Affine shared = affine_of(group.data(), group.size(), 1, bits);
  const float bound = error_bound(group, shared, bits);
  for (const float x : group) {
    const uint32_t code = code_of(x, shared, bits);
    REQUIRE(code < (1u << bits));
    CHECK(std::abs(value_of(code, shared) - x) <= bound);
  }
  // The bound itself is tight: ulp/2 of scale and zero.
  const float range =
      *std::max_element(group.begin(), group.end()) - *std::min_element(group.begin(), group.end());
  const float largest = std::max(std::abs(group[0]), range + std::abs(group[0]));
  CHECK(bound <= range / static_cast<float>((1u << bits) - 1) * 0.5f * 1.01f + largest * 0.0012f + 1e-6f);
}

const PageShape kShapes[] = {{32, 128, 32}, {64, 128, 64},  {128, 128, 128}, {32, 64, 32},
                             {64, 64, 64},  {128, 64, 128}, {32, 32, 32}};

}  // namespace

TEST_CASE("Q-1 the error of a number is at most half a step and fp16 rounding") {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    CAPTURE(seed);
    const float offset = static_cast<float>(seed % 7) * 3 - 9,
                spread = std::ldexp(1.0f, static_cast<int>(seed % 9) - 4);
    for (const uint32_t bits : {2u, 4u}) check_group(random_rows(seed, 32, spread, offset), bits);
  }
  check_group({0, 0, 0}, 4);
  check_group({-3, 60000}, 2);
}

TEST_CASE("Q-1 a group without spread has scale 0 and code 0") {
  for (const float x : {0.0f, -1.5f, 1000.0f}) {
    const std::vector<float> group(32, x);
    const Affine shared = affine_of(group.data(), 32, 1, 2);
    CHECK(shared.scale == 0);
    CHECK(code_of(x, shared, 2) == 0);
    CHECK(value_of(0, shared) == x);
  }
}

TEST_CASE("Q-1 round trip: a decoded code encodes to itself, for every fp16 scale and ordinary zeros") {
  int problem = 0, pairs = 0;
  for (uint32_t scale = 1; scale < 0x7000; ++scale) {
    for (const float times : {0.0f, -0.5f, -1.0f, -7.5f, -100.0f, 33.0f}) {
      const auto step = static_cast<uint16_t>(scale);
      const Affine shared{step, to_fp16(from_fp16(step) * times)};
      if (!(std::abs(value_of(0, shared)) < kFp16Max && std::abs(value_of(15, shared)) < kFp16Max)) continue;
      ++pairs;
      for (uint32_t code = 0; code < 16; ++code)
        problem += code_of(value_of(code, shared), shared, 4) != code;
    }
  }
  CHECK(problem == 0);
  CHECK(pairs > 100'000);
}

TEST_CASE("Q-1 ageing: int4 read and packed as int2 adds at most the two errors") {
  for (uint64_t seed = 0; seed < 100; ++seed) {
    CAPTURE(seed);
    const auto exact =
        random_rows(seed, 32, std::ldexp(1.0f, static_cast<int>(seed % 5) - 2), static_cast<float>(seed % 3));
    const Affine four = affine_of(exact.data(), 32, 1, 4);
    std::vector<float> once(32);
    for (size_t i = 0; i < 32; ++i) once[i] = value_of(code_of(exact[i], four, 4), four);
    const Affine two = affine_of(once.data(), 32, 1, 2);
    const float bound = error_bound(exact, four, 4) + error_bound(once, two, 2);
    for (size_t i = 0; i < 32; ++i)
      CHECK(std::abs(value_of(code_of(once[i], two, 2), two) - exact[i]) <= bound);
  }
}

TEST_CASE("Q-1 packing unpacked numbers gives the same bytes") {
  for (const PageShape& shape : kShapes) {
    for (const uint32_t bits : {2u, 4u}) {
      const Format format = bits == 2 ? Format::kInt2 : Format::kInt4;
      const auto rows = random_rows(shape.head_dim + bits, size_t{shape.group} * shape.head_dim, 2, 0.25f);
      std::vector<uint8_t> token(token_bytes(format, shape)), token_again(token.size());
      std::vector<float> back(shape.head_dim);
      for (uint32_t t = 0; t < shape.group; ++t) {
        pack_token(std::span(rows).subspan(size_t{t} * shape.head_dim, shape.head_dim), bits, shape, token);
        unpack_token(token, bits, shape, back);
        pack_token(back, bits, shape, token_again);
        CHECK(token == token_again);
      }
      std::vector<uint8_t> group(key_group_bytes(bits, shape)), group_again(group.size());
      std::vector<float> rows_back(rows.size());
      pack_key_group(rows, bits, shape, group);
      unpack_key_group(group, bits, shape, rows_back);
      pack_key_group(rows_back, bits, shape, group_again);
      CHECK(group == group_again);
    }
  }
}

TEST_CASE("pack: the bytes are placed as docs/design/methods/triaxialkv.md#bytes specifies") {
  const PageShape shape{32, 128, 32};
  CHECK(key_group_bytes(2, shape) == 1536);
  CHECK(token_bytes(Format::kInt2, shape) == 48);
  CHECK(token_bytes(Format::kInt4, shape) == 80);
  // Channel 5 of token 9 is the only number that is not low.
  std::vector<float> rows(32 * 128, -1.0f);
  rows[9 * 128 + 5] = 5;
  std::vector<uint8_t> page(1536);
  pack_key_group(rows, 2, shape, page);
  for (size_t i = 0; i < 1024; ++i) CHECK(page[i] == (i == 5 * 8 + 9 / 4 ? 3u << (2 * (9 % 4)) : 0u));
  CHECK(from_fp16(load_u16(&page[1024 + 2 * 5])) == 2.0f);
  CHECK(from_fp16(load_u16(&page[1024 + 2 * 4])) == 0.0f);
  CHECK(from_fp16(load_u16(&page[1280 + 2 * 5])) == -1.0f);
  // Channel 37 of a token: group 1, odd.
  std::vector<float> token(128, 0.0f);
  token[37] = 15;
  std::vector<uint8_t> four(80), two(48);
  pack_token(token, 4, shape, four);
  pack_token(token, 2, shape, two);
  for (size_t i = 0; i < 64; ++i) CHECK(four[i] == (i == 18 ? 0xf0 : 0));
  for (size_t i = 0; i < 32; ++i) CHECK(two[i] == (i == 9 ? 3 << 2 : 0));
  CHECK(from_fp16(load_u16(&four[64 + 2])) == 1.0f);
  CHECK(from_fp16(load_u16(&two[32 + 2])) == 5.0f);
}

TEST_CASE("Q-1 fp8 and fp4: the error is half a step of their scale, and packing again changes nothing") {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const auto rows = random_rows(seed, 128, std::ldexp(1.0f, static_cast<int>(seed % 12) - 6));
    std::vector<uint8_t> eight(128), eight_again(128), four(72), four_again(72);
    std::vector<float> back(128);
    pack_fp8(rows, 1, eight);
    unpack_fp8(eight, 1, back);
    for (size_t i = 0; i < 128; ++i) CHECK(std::abs(back[i] - rows[i]) <= std::abs(rows[i]) / 16 + 0x1p-10f);
    pack_fp8(back, 1, eight_again);
    CHECK(eight == eight_again);
    pack_fp4(rows, four);
    unpack_fp4(four, back);
    for (size_t block = 0; block < 8; ++block) {
      float largest = 0;
      for (size_t i = block * 16; i < block * 16 + 16; ++i) largest = std::max(largest, std::abs(rows[i]));
      // The unit is a power of two u with 3u < largest <= 6u; steps are at most 2u wide.
      for (size_t i = block * 16; i < block * 16 + 16; ++i) CHECK(std::abs(back[i] - rows[i]) <= largest / 3);
      CHECK(std::abs(back[block * 16]) <= largest * 4 / 3);
    }
    // After rounding a smaller unit may suffice; the numbers stay.
    std::vector<float> back_again(128);
    pack_fp4(back, four_again);
    unpack_fp4(four_again, back_again);
    CHECK(back_again == back);
  }
}

TEST_CASE("pack: KIVI leaves the tail of the keys and the last 128 values exact") {
  CHECK(kivi_split(127).keys_packed == 0);
  CHECK(kivi_split(128).keys_packed == 128);
  CHECK(kivi_split(128).values_packed == 0);
  CHECK(kivi_split(129).values_packed == 1);
  CHECK(kivi_split(300).keys_packed == 256);
  CHECK(kivi_split(300).values_packed == 172);
}

TEST_CASE("pack: INT2 and INT4 capacity, from the layout: x4.32 at 65 % and x4.57 at 75 % INT2") {
  const PageShape shape{32, 128, 32};
  const uint64_t bf16 = page_bytes(Format::kBf16, shape), two = page_bytes(Format::kInt2, shape),
                 four = page_bytes(Format::kInt4, shape);
  CHECK(bf16 == 32 * 512);
  CHECK(two == 32 * 96);
  CHECK(four == 32 * 160);
  const auto times_100 = [&](uint64_t percent) {  // rounded
    const uint64_t mixed = percent * two + (100 - percent) * four;
    return (bf16 * 100 * 100 + mixed / 2) / mixed;
  };
  CHECK(times_100(65) == 432);
  CHECK(times_100(75) == 457);
  CHECK(times_100(0) == 320);
  CHECK(times_100(100) == 533);
  // docs/design/kernels.md#floors: bytes per KV entry with wider groups.
  for (const auto& [group, int4, int2] : {std::array{32u, 160u, 96u}, {64u, 144u, 80u}, {128u, 136u, 72u}}) {
    const PageShape dequantized{128, 128, group};
    CHECK(page_bytes(Format::kInt4, dequantized) == 128 * int4);
    CHECK(page_bytes(Format::kInt2, dequantized) == 128 * int2);
  }
  CHECK(page_bytes(Format::kFp8, shape) == 32 * 256);
  CHECK(page_bytes(Format::kFp4, shape) == 32 * 144);
  CHECK(!page_shape_is_possible({16, 128, 32}, Format::kInt2));
  CHECK(page_shape_is_possible({16, 128, 32}, Format::kInt4));
}
