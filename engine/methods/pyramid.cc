#include "engine/methods/pyramid.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin {
namespace {

uint32_t less(uint32_t a, uint32_t b) { return a > b ? a - b : 0; }

}  // namespace

std::vector<uint32_t> pyramid_exact(const PyramidSpec& spec, uint32_t tokens) {
  KVT_CHECK(spec.beta > 0);
  const int64_t base = less(spec.budget, spec.window), room = less(tokens, spec.window);
  std::vector<uint32_t> out(spec.layers, static_cast<uint32_t>(std::min(base, room)));
  if (room <= base || spec.layers < 2) return out;
  // All terms are multiplied by beta, so that base / beta is an integer.
  const int64_t beta = spec.beta;
  int64_t most = 2 * base * beta - base;
  if (most > room * beta) most = room * beta;
  const int64_t least = 2 * base * beta - most;
  // Layers [0, l) get l * most - (most - least) * l (l - 1) / (2 (layers - 1)), rounded to nearest.
  const int64_t steps = 2 * (int64_t{spec.layers} - 1), whole = beta * steps;
  const auto sum_before = [&](int64_t l) {
    return (2 * (l * most * steps - (most - least) * l * (l - 1)) + whole) / (2 * whole);
  };
  for (uint32_t l = 0; l < spec.layers; ++l) {
    out[l] = static_cast<uint32_t>(sum_before(int64_t{l} + 1) - sum_before(l));
  }
  return out;
}

}  // namespace kvtwin
