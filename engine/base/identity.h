// Identity of tokens, without their values.
//
// The identity of a prompt is a list of runs of *units*. A unit is CoreConfig::unit_tokens tokens (the
// greatest common divisor of the source's hash block and our page). Two units hold the same tokens at the
// same place if and only if space and number are equal. The Client makes the runs
// (docs/design/trace-formats.md#identity) and gives every position without a known identity a space of its
// own.

#ifndef KVTWIN_ENGINE_BASE_IDENTITY_H_
#define KVTWIN_ENGINE_BASE_IDENTITY_H_

#include <cstdint>

namespace kvtwin {

// Set in UnitRun::space if the units belong to one request alone: after it has ended, no prompt can match
// them.
constexpr uint64_t kPrivateSpace = uint64_t{1} << 63;

// Units first, first+1, ..., first+count-1 of `space`, in this order.
struct UnitRun {
  uint64_t space = 0;
  uint64_t first = 0;
  uint32_t count = 0;
  friend bool operator==(const UnitRun&, const UnitRun&) = default;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_BASE_IDENTITY_H_
