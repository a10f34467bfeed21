// PyramidKV: how many KV entries each layer keeps, fewer with depth
// (docs/design/methods/uniform.md#pyramidkv). Integers.
//
// The line: base = B - w; from max = 2 base - min in the first layer to min = base / beta in the last; where
// max would exceed the N - w KV entries there are, max = N - w and min = 2 base - max. The window w is kept
// on top.

#ifndef KVTWIN_ENGINE_METHODS_PYRAMID_H_
#define KVTWIN_ENGINE_METHODS_PYRAMID_H_

#include <cstdint>
#include <vector>

namespace kvtwin {

struct PyramidSpec {
  uint32_t layers = 1;
  uint32_t budget = 0;  // B, of one head, window included
  uint32_t window = 0;  // w
  uint32_t beta = 20;   // > 0
};

// The exact form: the real-valued line with its error carried on, so that the layers sum to layers * base.
// `tokens`: N. With N <= B everything before the window is kept: N - w in each layer.
std::vector<uint32_t> pyramid_exact(const PyramidSpec& spec, uint32_t tokens);

// As KVCache-Factory has it: integer division throughout. N < layer's capacity: all; N < 2 base: base in
// every layer. Because the step is rounded down, layer l keeps up to l too many.
std::vector<uint32_t> pyramid_released(const PyramidSpec& spec, uint32_t tokens);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_PYRAMID_H_
