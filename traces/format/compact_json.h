// Parses JSON of foreign traces without building a tree of their long lists of numbers.
//
// A WEKA file is mostly block ids: 16 bytes each as nodes of a tree, next to nothing as runs. Arrays under
// the named keys are collected separately, block ids as runs of consecutive numbers. In the tree such an
// array is replaced by its index in `runs` or `numbers`.
//
// Limits, so that hostile input ends in an Error: nesting of 64, and kJsonValuesMax values in the tree, runs
// and numbers together.

#ifndef KVTWIN_TRACES_FORMAT_COMPACT_JSON_H_
#define KVTWIN_TRACES_FORMAT_COMPACT_JSON_H_

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "engine/base/result.h"
#include "traces/format/block_key.h"

namespace kvtwin {

constexpr uint64_t kJsonValuesMax = 4u << 20;

struct CompactJson {
  nlohmann::json tree;
  std::vector<IdRuns> runs;                    // scope is SCOPE_NONE; the importer sets it
  std::vector<std::vector<uint32_t>> numbers;  // token ids
};

// Arrays of ids under `run_key` go to `runs`, arrays under keys that end in `number_suffix` to `numbers`.
// Under `sum_key`, a list of lists of numbers becomes the list of their sums. Empty: none.
struct CompactKeys {
  std::string_view run_key;
  std::string_view number_suffix;
  std::string_view sum_key = {};
};

// Error.where is "byte N" of `text`.
Result<CompactJson> parse_compact_json(std::string_view text, const CompactKeys& keys);

}  // namespace kvtwin

#endif  // KVTWIN_TRACES_FORMAT_COMPACT_JSON_H_
