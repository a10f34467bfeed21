#include "kernels/scoring/score_position.h"

#include "engine/base/prng.h"
#include "kernels/common/score_math.h"

namespace kvtwin::kernels {

void score_streaming(Positions positions, uint32_t sink, ScoreView out) {
  for (uint32_t h = 0; h < out.heads; ++h) {
    for (uint32_t i = 0; i < out.rows; ++i) {
      const uint32_t position = positions.at(h, i);
      out.row(h)[i] = position < sink ? kMustStay : static_cast<float>(position);
    }
  }
}

void score_random(uint64_t seed, uint32_t layer, uint32_t head_first, Positions positions, ScoreView out) {
  for (uint32_t h = 0; h < out.heads; ++h) {
    for (uint32_t i = 0; i < out.rows; ++i) {
      const uint64_t bits = draw({seed, layer, uint64_t{head_first} + h, positions.at(h, i)});
      out.row(h)[i] = static_cast<float>(bits >> 40) * 0x1p-24f;
    }
  }
}

}  // namespace kvtwin::kernels
