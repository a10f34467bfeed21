// Chooses which tags get 4 bits: min sum D_k(b_k) with sum N_k b_k <= B sum N_k, b in {2, 4}
// (docs/design/methods/triaxialkv.md#allocation).
//
// This is a 0/1 knapsack over the tags that are present and gain from 4 bits (D(2) > D(4)); an upgrade costs
// 2 N_k. Exact: branch and bound with the fractional bound (any number of tags; 56 take no measurable time).
// Greedy, as in the paper: descending gain per bit, upgrade if it fits, continue after a miss. Ties: smaller
// tag code first. Policies take the result as integers (engine/kv/precision_spec.h).

#ifndef KVTWIN_KERNELS_QUANT_TRIAXIAL_ALLOCATE_H_
#define KVTWIN_KERNELS_QUANT_TRIAXIAL_ALLOCATE_H_

#include <cstdint>

#include "kernels/quant/triaxial_calibrate.h"

namespace kvtwin::kernels {

struct TagBits {
  uint64_t four_bit_tags = 0;  // bit k: tag k has 4 bits
  double loss = 0;             // sum of D_k(b_k) over the tags present
};

// bits_milli: 1000 B, from 2000 to 4000 (2.7 bits: 2700). Absent tags get 4 bits: they cost nothing in the
// calibration, and 4 bits is the safe choice for tags that it has not seen.
TagBits allocate_exact(const TagTable& table, uint32_t bits_milli);
TagBits allocate_greedy(const TagTable& table, uint32_t bits_milli);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_QUANT_TRIAXIAL_ALLOCATE_H_
