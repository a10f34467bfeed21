// minimise(): the downhill simplex of Nelder and Mead with bounds, for functions without derivatives. The
// same function and start give the same result on every machine that computes doubles alike.

#ifndef KVTWIN_SCENARIOS_CALIBRATE_NELDER_MEAD_H_
#define KVTWIN_SCENARIOS_CALIBRATE_NELDER_MEAD_H_

#include <cstddef>
#include <functional>
#include <vector>

namespace kvtwin {

struct Bounded {
  double start = 0, step = 1, low = 0, high = 1;  // of one coordinate; `step` spans the first simplex
};

struct Minimum {
  std::vector<double> at;
  double value = 0;
  size_t evaluations = 0;
};

// Points outside of the bounds are moved to them. Ends when the simplex is smaller than a thousandth of the
// steps, or after `evaluations_max`.
// REQUIRES: low <= start <= high and step > 0 for every coordinate, of which there is at least one.
Minimum minimise(const std::vector<Bounded>& bounds, size_t evaluations_max,
                 const std::function<double(const std::vector<double>&)>& function);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_CALIBRATE_NELDER_MEAD_H_
