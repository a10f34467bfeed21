// Parameters of the precision axis, as plain integers: what a calibration measured in floats has been turned
// into a bit map before (kernels/quant/triaxial_allocate.h).

#ifndef KVTWIN_ENGINE_KV_PRECISION_SPEC_H_
#define KVTWIN_ENGINE_KV_PRECISION_SPEC_H_

#include <cstdint>

#include "engine/base/tags.h"

namespace kvtwin {

// Treatment of KV entries that got 4 bits when they were written and whose tag has 2 bits by now
// (docs/design/methods/triaxialkv.md#serving).
enum class Ageing : uint8_t {
  kIgnore,      // none, as in the paper
  kForecast,    // bits are those of the tag that a token has for most of its life: older
  kRequantise,  // at the start of a turn, whole pages of such KV entries become int2; never the reverse
};

struct PrecisionSpec {
  uint32_t group = 32;             // values that share scale and zero point: 32, 64 or 128
  uint32_t residual_tokens = 128;  // kivi_int2: keys packed at once, and newest values left unpacked
  // triaxial: bit k is set if KV entries of tag k get int4; the others get int2.
  uint64_t four_bit_tags = kAllTags;
  // Nominal bits per value above 2, Q0.32: pools are divided n2 : n4 = (2 - b) : b. 2.7 bits: 0.7 * 2^32.
  // At most 2 * 2^32.
  uint64_t bits_above_two = uint64_t{2} << 32;
  Ageing ageing = Ageing::kIgnore;
};

// The next `count` KV entries of a request, in order of position. count == 0 with 4 bits marks the end of the
// prompt: KV entries that wait for a full group go to int4.
struct BitRun {
  uint32_t count = 0;
  bool four = false;
  friend bool operator==(const BitRun&, const BitRun&) = default;
};

// The bits of a token that is written, or reconsidered at the start of a turn, when the last turn is
// last_turn.
constexpr bool gets_four_bits(const PrecisionSpec& spec, const TokenRole& role, uint32_t last_turn) {
  const uint32_t tag = spec.ageing == Ageing::kForecast
                           ? tag_code(Temporal::kOlder, role.modal, role.semantic)
                           : tag_code(role, last_turn);
  return ((spec.four_bit_tags >> tag) & 1) != 0;
}

// Whether the bits of a prefix are independent of everything that follows it
// (docs/design/methods/composition.md#causality): true if all turns of a (modal, semantic) pair have the same
// bits, or if the forecast fixes the turn.
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
