// Methods whose compressed prefixes can be shared: prefix-closed at chunk ends, with known and reported
// counts, for all layouts that move KV entries.

#ifndef KVTWIN_TESTS_UNIT_CPU_COMPRESSION_SHARING_METHODS_H_
#define KVTWIN_TESTS_UNIT_CPU_COMPRESSION_SHARING_METHODS_H_

#include <vector>

#include "tests/unit/cpu_compression/compress_run.h"

namespace kvtwin::testing {

struct SharingMethod {
  Method method;
  bool window_closed = false;
  uint32_t chunk = 16;  // tokens
};

inline const std::vector<SharingMethod>& sharing_methods() {
  static const std::vector<SharingMethod> all = {
      {{"streaming_llm", "ratio", "compact"}},
      {{"knorm", "ratio", "compact"}},
      {{"keydiff", "uniform", "ragged", 1}, false, 12},
      {{"random", "reserved", "ragged", 2}},
      {{"fastkvzip", "reserved", "ragged", 1, Clustering::kAcrossLayers}},
      {{"trimkv", "pyramid", "ragged", 2}, false, 20},
      {{"duo_attention", "head_masks", "ragged", 1}},
      {{"expected_attention", "ratio", "ragged", 1, Clustering::kAdjacent, CompressionTrigger::kChunkEnd}},
      {{"snapkv", "reserved", "ragged", 1, Clustering::kPerLayer, CompressionTrigger::kChunkEnd}, true},
      {{"knorm", "top_per_layer", "ragged", 1}},
      {{"fastkvzip", "released", "ragged", 2}, false, 24},
      {{"keydiff", "ada", "ragged", 1}},
      {{"kvzip", "top_across_layers", "ragged", 1, Clustering::kAcrossLayers, CompressionTrigger::kChunkEnd}},
      {{"kvzip", "top_per_layer", "ragged", 2, Clustering::kAdjacent, CompressionTrigger::kChunkEnd},
       false,
       24},
  };
  return all;
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_CPU_COMPRESSION_SHARING_METHODS_H_
