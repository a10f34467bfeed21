// Parameters of the precision axis. Plain integers: what a calibration measured in floats has become a
// bit map by the time it gets here (kernels/quant/triaxial_allocate.h).

#ifndef KVTWIN_ENGINE_KV_PRECISION_SPEC_H_
#define KVTWIN_ENGINE_KV_PRECISION_SPEC_H_

#include <array>
#include <cstdint>

#include "engine/base/tags.h"

namespace kvtwin {

// What happens to KV entries whose tag would get 2 bits now, and got 4 when they were written
// (docs/design/methods/triaxialkv.md#serving).
enum class Ageing : uint8_t {
  kIgnore,      // nothing; the paper
  kForecast,    // bits are those of the tag that a token has for most of its life: older
  kRequantise,  // at turn start, whole pages of such KV entries become int2; never the other way
};

struct PrecisionSpec {
  uint32_t group = 32;             // values that share scale and zero: 32, 64 or 128
  uint32_t residual_tokens = 128;  // kivi_int2: keys packed at once, values kept exact
  bool per_channel_keys = false;   // int4 in the fast layout: records of 128 tokens (kv_format.h)
  // triaxial: bit k says that KV entries of tag k get int4; the others int2.
  uint64_t four_bit_tags = kAllTags;
  // Tags in the order in which their int4 KV entries are requantised when nothing else is left to take
  // (ascending loss per bit, docs/design/methods/triaxialkv.md#serving).
  std::array<uint8_t, kTags> two_bit_order = [] {
    std::array<uint8_t, kTags> order{};
    for (uint8_t tag = 0; tag < kTags; ++tag) order[tag] = tag;
    return order;
  }();
  // Nominal bits per value above 2, Q0.32: pools are cut n2 : n4 = (2 - b) : b. 2.7 bits: 0.7 * 2^32.
  // At most 2 * 2^32.
  uint64_t bits_above_two = uint64_t{2} << 32;
  Ageing ageing = Ageing::kIgnore;
};

// The next `count` KV entries of a request, in order of position. Of none, with 4 bits: what waits for its
// group goes to int4 now (the end of the prompt).
struct BitRun {
  uint32_t count = 0;
  bool four = false;
  friend bool operator==(const BitRun&, const BitRun&) = default;
};

// The bits of a token now written, or looked at again at a turn start.
constexpr bool gets_four_bits(const PrecisionSpec& spec, const TokenRole& role, uint32_t last_turn) {
  const uint32_t tag = spec.ageing == Ageing::kForecast
                           ? tag_code(Temporal::kOlder, role.modal, role.semantic)
                           : tag_code(role, last_turn);
  return ((spec.four_bit_tags >> tag) & 1) != 0;
}

// Whether the bits of a prefix depend on nothing that follows it
// (docs/design/methods/composition.md#causality): then all turns of a (modal, semantic) pair have the same
// bits, or the forecast fixes which counts.
constexpr bool bits_are_prefix_closed(const PrecisionSpec& spec) {
  if (spec.ageing == Ageing::kForecast) return true;
  constexpr uint32_t kPairs = kModals * kSemantics;
  const uint64_t first = spec.four_bit_tags & ((uint64_t{1} << kPairs) - 1);
  for (uint32_t t = 1; t < kTemporals; ++t) {
    if (((spec.four_bit_tags >> (t * kPairs)) & ((uint64_t{1} << kPairs) - 1)) != first) return false;
  }
  return true;
}

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_PRECISION_SPEC_H_
