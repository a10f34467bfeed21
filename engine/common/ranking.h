// What a compression ranks, head by head; what scorers fill in and selection reads.

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
  uint32_t first = 0;               // KV entries of the head before them: they stay as they are
  std::vector<uint32_t> positions;  // logical, ascending
  std::vector<uint32_t> phases;     // positions that keys are rotated by
  std::vector<Place> places;        // in pages, or staged
  kernels::RowSet forced;           // rows that stay whatever their score
  std::vector<float> scores;

  uint32_t rows() const { return static_cast<uint32_t>(positions.size()); }
  uint32_t candidates() const { return rows() - static_cast<uint32_t>(forced.size()); }
};

// One entry of the step at hand.
struct StepRows {
  RequestId request{};
  uint32_t row = 0;      // its first row in the step
  uint32_t tokens = 0;   // rows
  uint32_t context = 0;  // position of the first
  uint32_t phase = 0;    // what it is rotated by
  bool prompt = false;   // tokens of a prompt; else a decode
  bool samples = false;
  bool staged = false;  // its rows are not in pages before they are ranked
};

// Query rows of one layer, in order: [rows][query_heads][head_dim], rotated.
struct Queries {
  std::vector<float> rows;
  std::vector<uint32_t> positions;
  std::vector<uint32_t> phases;

  void clear() { rows.clear(), positions.clear(), phases.clear(); }
};

// Rows of one layer that are not among a request's KV entries: [rows][query_heads][head_dim] and their own
// keys, [rows][kv_heads][head_dim], rotated.
struct Probes {
  std::vector<float> queries, keys;
  uint32_t rows = 0;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_RANKING_H_
