// The tag of a token on TriAxialKV's three axes (docs/design/methods/triaxialkv.md#tags): the age of its turn
// (temporal), text or image (modal), and its role (semantic). The tag decides the number of bits of its KV
// entries.
//
// The temporal axis changes with every turn. Therefore a token stores its turn, and the axis is derived.

#ifndef KVTWIN_ENGINE_BASE_TAGS_H_
#define KVTWIN_ENGINE_BASE_TAGS_H_

#include <cstdint>

namespace kvtwin {

enum class Temporal : uint8_t { kOlder, kTurnM2, kTurnM1, kCurrent };
enum class Modal : uint8_t { kText, kImage };
enum class Semantic : uint8_t { kInst, kUser, kAssistant, kReasoning, kToolCall, kObs, kDelim };

constexpr uint32_t kTemporals = 4, kModals = 2, kSemantics = 7;
constexpr uint32_t kTags = kTemporals * kModals * kSemantics;  // 56
constexpr uint64_t kAllTags = (uint64_t{1} << kTags) - 1;

// The constant part of a token's tag. Turn 0 is everything before the first user message, which opens turn 1.
struct TokenRole {
  uint32_t turn = 0;
  Modal modal{};
  Semantic semantic{};
  friend bool operator==(const TokenRole&, const TokenRole&) = default;
};

// `count` consecutive tokens of one role.
struct RoleRun {
  TokenRole role;
  uint32_t count = 0;
  friend bool operator==(const RoleRun&, const RoleRun&) = default;
};

// REQUIRES: turn <= last_turn.
constexpr Temporal temporal_of(uint32_t turn, uint32_t last_turn) {
  const uint32_t age = last_turn - turn;
  return age >= 3 ? Temporal::kOlder : static_cast<Temporal>(3 - age);
}

// t * 14 + m * 7 + s, in [0, 56).
constexpr uint32_t tag_code(Temporal t, Modal m, Semantic s) {
  return static_cast<uint32_t>(t) * kModals * kSemantics + static_cast<uint32_t>(m) * kSemantics +
         static_cast<uint32_t>(s);
}
constexpr uint32_t tag_code(const TokenRole& role, uint32_t last_turn) {
  return tag_code(temporal_of(role.turn, last_turn), role.modal, role.semantic);
}
constexpr Semantic semantic_of_tag(uint32_t tag) { return static_cast<Semantic>(tag % kSemantics); }

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_BASE_TAGS_H_
