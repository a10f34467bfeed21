// Methods whose requests are swapped out to the host after KV entries were dropped, packed or chosen among:
// one for each kind of state that must return with a request.

#ifndef KVTWIN_TESTS_UNIT_CPU_COMPRESSION_SWAPPED_METHODS_H_
#define KVTWIN_TESTS_UNIT_CPU_COMPRESSION_SWAPPED_METHODS_H_

#include <string>
#include <vector>

#include "tests/unit/cpu_compression/compress_run.h"

namespace kvtwin::testing {

inline const std::vector<Method>& swapped_methods() {
  static const std::vector<Method> all = {
      {"snapkv", "uniform", "compact"},
      {"snapkv", "uniform", "compact_rerotate"},
      {"expected_attention", "ratio", "compact"},
      {"judge_q", "uniform", "compact"},
      {"pyramidkv", "pyramid", "ragged", 1},
      // Chunk by chunk: staged rows, values that lie with their entries.
      {"fastkvzip", "reserved", "ragged", 1, Clustering::kPerLayer},
      {"random", "reserved", "ragged", 2, Clustering::kAcrossLayers},
      {"fastkvzip", "released", "ragged", 2},
      {"trimkv", "uniform", "compact"},
      // The data decides the counts.
      {"snapkv", "ada", "ragged", 1},
      {"kvzip", "top_across_layers", "ragged", 1},
      // At decode steps: sums, stamps and queries of a request that must survive.
      {"h2o", "uniform", "compact"},
      {"h2o", "uniform", "compact_rerotate"},
      {"tova", "uniform", "compact"},
      {"raas", "uniform", "ragged", 1},
      // Rings.
      {"streaming_llm", "uniform", "ring"},
      {"duo_attention", "head_masks", "ring", 1},
      // Slots dropped in place.
      {"h2o", "uniform", "page_mask"},
      {"snapkv", "uniform", "page_mask"},
      {"knorm", "ratio", "slot_mask", 0, Clustering::kAdjacent, CompressionTrigger::kPromptEnd},
      {"intent_rule", "uniform", "page_mask"},
      // Packed pages, and pages that decodes choose among.
      {"snapkv", "uniform", "compact", 0, Clustering::kAdjacent, {}, "fp8"},
      {"snapkv", "uniform", "compact", 0, Clustering::kAdjacent, {}, "bf16", "quest"},
      {"fastkvzip", "reserved", "ragged", 2, Clustering::kAcrossLayers, {}, "int4", "quest"},
      {"snapkv", "uniform", "page_mask", 0, Clustering::kAdjacent, {}, "bf16", "quest"},
      {"none", "all", "paged", 0, Clustering::kAdjacent, {}, "int4", "quest"},
  };
  return all;
}

inline std::string swapped_name(const Method& method) {
  return std::string(method.scorer) + " " + method.budget + " " + method.layout + " " + method.precision +
         " " + method.retrieval;
}

}  // namespace kvtwin::testing

#endif  // KVTWIN_TESTS_UNIT_CPU_COMPRESSION_SWAPPED_METHODS_H_
