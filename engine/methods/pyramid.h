// PyramidKV: the number of KV entries that each layer retains, decreasing with depth
// (docs/design/methods/uniform.md#pyramidkv). Integers only.
//
// The counts lie on a line. With base = B - w, it runs from max = 2 base - min in the first layer to
// min = base / beta in the last. If max would exceed the N - w available KV entries, max = N - w and
// min = 2 base - max. The window w is retained in addition.

#ifndef KVTWIN_ENGINE_METHODS_PYRAMID_H_
#define KVTWIN_ENGINE_METHODS_PYRAMID_H_

#include <cstdint>
#include <vector>

namespace kvtwin {

struct PyramidSpec {
  uint32_t layers = 1;
  uint32_t budget = 0;  // B, KV entries of one head, window included
  uint32_t window = 0;  // w
  uint32_t beta = 20;   // > 0
};

// The real-valued line with its rounding error carried on, so that the layers sum to layers * base. (The
// authors' code rounds the step down, so its layers retain more.) `tokens` is N. If N <= B, every layer
// retains all N - w KV entries before the window.
std::vector<uint32_t> pyramid_exact(const PyramidSpec& spec, uint32_t tokens);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_PYRAMID_H_
