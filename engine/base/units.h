// Distinct types for times and ids.
//
// An Instant is a point on the backend's own clock, a Duration the distance between two points. Both count
// nanoseconds in a signed 64-bit integer (292 years), so that the simulator, a real engine and a replay agree
// to the bit. Seconds as doubles exist only at the edges: SimGrid, models, reports.

#ifndef KVTWIN_ENGINE_BASE_UNITS_H_
#define KVTWIN_ENGINE_BASE_UNITS_H_

#include <compare>
#include <cstdint>
#include <type_traits>

namespace kvtwin {

struct Duration {
  int64_t ns = 0;
  friend constexpr auto operator<=>(const Duration&, const Duration&) = default;
};

struct Instant {
  int64_t ns = 0;
  friend constexpr auto operator<=>(const Instant&, const Instant&) = default;
};

constexpr Instant operator+(Instant at, Duration by) { return {at.ns + by.ns}; }
constexpr Duration operator-(Instant to, Instant from) { return {to.ns - from.ns}; }
constexpr Duration operator+(Duration a, Duration b) { return {a.ns + b.ns}; }

constexpr Instant kNever{INT64_MAX};

// Each id has its own type: passing a PageId for a RequestId does not compile. The Client assigns ids of
// requests and sessions; the Core that uses an id assigns all others.
enum class RequestId : uint32_t {};
enum class SessionId : uint32_t {};
enum class EngineId : uint16_t {};
enum class PageId : uint32_t {};  // one address space per engine; tiers own disjoint ranges
enum class StepId : uint64_t {};  // counts single steps of one engine, coalesced or not
enum class TransferId : uint64_t {};
enum class TimerId : uint64_t {};

template <typename Id>
constexpr auto raw(Id id) {
  return static_cast<std::underlying_type_t<Id>>(id);
}

template <typename T>
constexpr T div_ceil(T a, T b) {
  return static_cast<T>((a + b - 1) / b);
}

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_BASE_UNITS_H_
