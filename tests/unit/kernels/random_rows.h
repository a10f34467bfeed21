// Rows of random numbers for kernel tests, drawn from integers so that they are equal on every machine.

#ifndef KVTWIN_TESTS_UNIT_KERNELS_RANDOM_ROWS_H_
#define KVTWIN_TESTS_UNIT_KERNELS_RANDOM_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/base/prng.h"

namespace kvtwin::testing {

// Approximately normal: mean `offset`, standard deviation `spread` (a sum of four uniform draws).
inline std::vector<float> random_rows(uint64_t seed, size_t count, float spread = 1, float offset = 0) {
  Prng prng(seed);
  std::vector<float> rows(count);
  for (float& x : rows) {
    int64_t sum = 0;
    for (int i = 0; i < 4; ++i) sum += static_cast<int64_t>(prng.range(0, 20'000)) - 10'000;
    x = offset + spread * static_cast<float>(sum) / 11'547.0f;
  }
  return rows;
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_KERNELS_RANDOM_ROWS_H_
