// Storage formats of KV entries and the bytes that they take. All arithmetic is on integers, so that kernels
// (which write the bytes), policies (which count pages) and models (which price them) agree.
//
// docs/design/methods/triaxialkv.md#bytes. A KV entry is K and V of one token in one KV head. A group of
// values shares one fp16 scale and one fp16 zero point:
//   int4     K and V: `group` channels of one token
//   int2     K: `group` tokens of one channel; V: `group` channels of one token
//   fp4      E2M1; 16 channels of one token share an 8-bit power of two
//   fp8      E4M3; one scale per layer, not counted here

#ifndef KVTWIN_ENGINE_BASE_KV_FORMAT_H_
#define KVTWIN_ENGINE_BASE_KV_FORMAT_H_

#include <cstdint>

namespace kvtwin {

enum class Format : uint8_t { kBf16, kFp8, kInt4, kInt2, kFp4 };

constexpr uint32_t kScaleZeroBytes = 4;  // fp16 + fp16, per group
constexpr uint32_t kFp4Block = 16;       // values that share a power of two

constexpr const char* format_name(Format format) {
  constexpr const char* kNames[] = {"bf16", "fp8", "int4", "int2", "fp4"};
  return kNames[static_cast<uint8_t>(format)];
}

// Geometry of a page. `group` applies to int4 and int2 only.
// REQUIRES: group divides head_dim, or head_dim divides group (a token's group is then all its channels);
// int2: group divides page_tokens, because its keys are grouped along tokens.
struct PageShape {
  uint32_t page_tokens = 32;
  uint32_t head_dim = 128;
  uint32_t group = 32;
};

constexpr bool page_shape_is_possible(const PageShape& s, Format format) {
  if (s.page_tokens == 0 || s.head_dim == 0 || s.head_dim % 16 != 0) return false;
  if (format != Format::kInt4 && format != Format::kInt2) return true;
  if (s.group < 4 || s.group % 4 != 0) return false;
  if (s.head_dim % s.group != 0 && s.group % s.head_dim != 0) return false;
  return format != Format::kInt2 || s.page_tokens % s.group == 0;
}

// Number of groups that the channels of a token form.
constexpr uint32_t channel_groups(const PageShape& s) {
  return s.group >= s.head_dim ? 1 : s.head_dim / s.group;
}

// Bytes of V of one token in one KV head, and of its K (int2 excepted).
constexpr uint32_t token_bytes(Format format, const PageShape& s) {
  switch (format) {
    case Format::kFp8:
      return s.head_dim;
    case Format::kFp4:
      return s.head_dim / 2 + s.head_dim / kFp4Block;
    case Format::kInt4:
      return s.head_dim / 2 + kScaleZeroBytes * channel_groups(s);
    case Format::kInt2:
      return s.head_dim / 4 + kScaleZeroBytes * channel_groups(s);
    case Format::kBf16:
      break;
  }
  return 2 * s.head_dim;
}

// Bytes of K of one group of tokens with scales per channel (docs/design/methods/triaxialkv.md#bytes).
constexpr uint32_t key_group_bytes(uint32_t bits, const PageShape& s) {
  return s.head_dim * (s.group * bits / 8 + kScaleZeroBytes);
}

// Bytes of K and V of one page in one KV head.
constexpr uint64_t page_bytes(Format format, const PageShape& s) {
  const uint64_t values = uint64_t{s.page_tokens} * token_bytes(format, s);
  if (format != Format::kInt2) return 2 * values;
  return values + uint64_t{s.page_tokens / s.group} * key_group_bytes(2, s);
}

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_BASE_KV_FORMAT_H_
