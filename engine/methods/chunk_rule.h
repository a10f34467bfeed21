// The ratio of the released chunk rule (docs/design/methods/tangram.md#released-chunks). It converts a
// retained fraction of all tokens into one of the ranked tokens. Sinks and window are always retained, so the
// ranked tokens get the rest.

#ifndef KVTWIN_ENGINE_METHODS_CHUNK_RULE_H_
#define KVTWIN_ENGINE_METHODS_CHUNK_RULE_H_

#include <cstdint>

namespace kvtwin {

// With n = max(0, tokens - sinks) and `ratio` in Q0.32 (2^32: 1):
//   1 if ratio >= 1 or n <= window;  0 if ratio * n < window;  else (ratio * n - window) / (n - window), in
//   [0, 1].
// Rounded to nearest, Q0.32.
constexpr uint64_t adjusted_ratio(uint64_t ratio, uint32_t tokens, uint32_t sinks, uint32_t window) {
  constexpr uint64_t kOne = uint64_t{1} << 32;
  const uint64_t n = tokens > sinks ? tokens - sinks : 0;
  if (ratio >= kOne || n <= window) return kOne;
  const uint64_t retained = ratio * n;  // below 2^64: both factors are below 2^32
  const uint64_t always = uint64_t{window} << 32;
  if (retained < always) return 0;
  const uint64_t others = n - window;
  return (retained - always) / others + (2 * ((retained - always) % others) >= others ? 1 : 0);
}

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_CHUNK_RULE_H_
