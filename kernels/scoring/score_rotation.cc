#include "kernels/scoring/score_rotation.h"

#include <cmath>

#include "engine/base/check.h"

namespace kvtwin::kernels {
namespace {

float angle_at(float inv_freq, int64_t position) { return static_cast<float>(position) * inv_freq; }

}  // namespace

PlaneMap rotation_at(const RopePlanes& planes, int64_t position) {
  PlaneMap map;
  for (const float inv_freq : planes.inv_freq) {
    const double angle = angle_at(inv_freq, position);
    map.c.push_back(static_cast<float>(std::cos(angle)) * planes.magnitude);
    map.s.push_back(static_cast<float>(std::sin(angle)) * planes.magnitude);
  }
  return map;
}

PlaneMap mean_rotation(const RopePlanes& planes, int64_t first, uint32_t count) {
  KVT_CHECK(count > 0);
  PlaneMap map;
  for (const float inv_freq : planes.inv_freq) {
    double c = 0, s = 0;
    for (uint32_t t = 0; t < count; ++t) {
      const double angle = angle_at(inv_freq, first + t);
      c += std::cos(angle);
      s += std::sin(angle);
    }
    map.c.push_back(static_cast<float>(c / count) * planes.magnitude);
    map.s.push_back(static_cast<float>(s / count) * planes.magnitude);
  }
  return map;
}

PlaneMap transposed(const PlaneMap& map) {
  PlaneMap out = map;
  for (float& s : out.s) s = -s;
  return out;
}

void apply_planes(const PlaneMap& map, const float* in, float* out) {
  const size_t half = map.c.size();
  for (size_t f = 0; f < half; ++f) {
    const float a = in[f], b = in[f + half];
    out[f] = map.c[f] * a - map.s[f] * b;
    out[f + half] = map.s[f] * a + map.c[f] * b;
  }
}

void unrotate(const RopePlanes& planes, int64_t position, const float* in, float* out) {
  PlaneMap map = transposed(rotation_at(planes, position));
  // The inverse is the transpose of magnitude * rotation divided by magnitude^2.
  const float scale = 1.0f / (planes.magnitude * planes.magnitude);
  for (float& c : map.c) c *= scale;
  for (float& s : map.s) s *= scale;
  apply_planes(map, in, out);
}

}  // namespace kvtwin::kernels
