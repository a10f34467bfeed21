// The data that a compression ranks, head by head: filled by scorers, read by selection.

#ifndef KVTWIN_ENGINE_COMMON_RANKING_H_
#define KVTWIN_ENGINE_COMMON_RANKING_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/common/request_table.h"
#include "kernels/select/select.h"

namespace kvtwin::cpu {

// The readable KV entries of one head at positions [begin, end) of a Compression.
struct RankedHead {
  uint32_t head = 0;                // layer * kv_heads + head
  uint32_t first = 0;               // KV entries of the head before them, which are not ranked
  std::vector<uint32_t> positions;  // logical, ascending
  std::vector<uint32_t> phases;     // positions that keys are rotated by
  std::vector<Place> places;        // in pages, or staged
  kernels::RowSet forced;           // indices that are retained whatever their score
  std::vector<float> scores;

  uint32_t rows() const { return static_cast<uint32_t>(positions.size()); }
  uint32_t candidates() const { return rows() - static_cast<uint32_t>(forced.size()); }
};

// The rows of one entry in the current step.
struct StepRows {
  RequestId request{};
  uint32_t row = 0;      // its first row in the step
  uint32_t tokens = 0;   // number of rows
  uint32_t context = 0;  // position of the first row
  uint32_t phase = 0;    // position that the first row is rotated by
  bool prompt = false;   // prompt tokens; false: a decode
  bool samples = false;
  bool staged = false;  // its rows are in no page until they are ranked
  TokenRange query{};   // PlanEntry::query
};

// Queries of one layer, in order of position: [rows][query_heads][head_dim], rotated.
struct Queries {
  std::vector<float> rows;
  std::vector<uint32_t> positions;
  std::vector<uint32_t> phases;

  void clear() { rows.clear(), positions.clear(), phases.clear(); }
};

// Probe tokens of one layer, which leave no KV entries: queries [rows][query_heads][head_dim] and keys
// [rows][kv_heads][head_dim], rotated.
struct Probes {
  std::vector<float> queries, keys;
  uint32_t rows = 0;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_RANKING_H_
