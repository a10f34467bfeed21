// Rotary phases for scorers: removing, applying, and averaging them over future positions.
//
// Plane f of a head pairs dimensions f and f + d/2 (the layout of Llama and Qwen checkpoints). At position p
// it is rotated by the angle float(p) * inv_freq[f], multiplied in fp32 as the models do, and scaled by
// `magnitude` (1, except for YaRN).

#ifndef KVTWIN_KERNELS_SCORING_SCORE_ROTATION_H_
#define KVTWIN_KERNELS_SCORING_SCORE_ROTATION_H_

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/common/view.h"

namespace kvtwin::kernels {

struct RopePlanes {
  std::span<const float> inv_freq;  // [d/2], radians per position
  float magnitude = 1.0f;
};

// One linear map per plane: (a, b) -> (c*a - s*b, s*a + c*b). A rotation, or a mean of rotations.
struct PlaneMap {
  std::vector<float> c, s;  // [d/2]
};
PlaneMap rotation_at(const RopePlanes& planes, int64_t position);
// The mean of the maps at positions [first, first + count), which is not a rotation. Expected Attention's R.
PlaneMap mean_rotation(const RopePlanes& planes, int64_t first, uint32_t count);
// The transpose. For a rotation of magnitude 1 it is the inverse.
PlaneMap transposed(const PlaneMap& map);

// out = map(in), [d]; in and out may be the same.
void apply_planes(const PlaneMap& map, const float* in, float* out);

// Removes the phase of `position` from a rotated row, [d]. Exact up to rounding, q-norm included.
void unrotate(const RopePlanes& planes, int64_t position, const float* in, float* out);

}  // namespace kvtwin::kernels

#endif  // KVTWIN_KERNELS_SCORING_SCORE_ROTATION_H_
