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

void rerotate_rows(const RopePlanes& planes, const HeadsView& k, Positions positions, std::span<float> out) {
  KVT_CHECK(out.size() == size_t{k.heads} * k.rows * k.dim && planes.inv_freq.size() * 2 == k.dim);
  RopePlanes pure = planes;
  pure.magnitude = 1.0f;  // the rows already include it
  for (uint32_t h = 0; h < k.heads; ++h) {
    for (uint32_t i = 0; i < k.rows; ++i) {
      const int64_t by = int64_t{i} - int64_t{positions.at(h, i)};
      apply_planes(rotation_at(pure, by), k.row(h, i), out.data() + (size_t{h} * k.rows + i) * k.dim);
    }
  }
}

}  // namespace kvtwin::kernels
