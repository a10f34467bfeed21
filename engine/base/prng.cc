#include "engine/base/prng.h"

#include "engine/base/check.h"

namespace kvtwin {

uint64_t Prng::range(uint64_t low, uint64_t high) {
  KVT_CHECK(low <= high);
  const uint64_t count = high - low + 1;
  return count == 0 ? next() : low + next() % count;  // modulo bias < 2^-32 for our ranges
}

}  // namespace kvtwin
