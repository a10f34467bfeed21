// ChunkTiles says how long attention over prompt chunks keeps a GPU busy, in units of one tile of keys: tiles
// of 128 rows are taken from a list, the longest first, by whichever SM is free
// (kernels/attention/attention_prefill.h).
//
// That makes a step of several chunks comparable with the single chunks that were measured: neither the sum
// of their times (they share the SMs) nor the longest (there may be many).

#ifndef KVTWIN_MODELS_COST_CHUNK_TILES_H_
#define KVTWIN_MODELS_COST_CHUNK_TILES_H_

#include <cstdint>
#include <span>
#include <vector>

#include "models/cost/cost_model.h"

namespace kvtwin {

class ChunkTiles {
 public:
  // `group`: query heads per KV head, at least 1. `sms` at least 1.
  ChunkTiles(uint32_t kv_heads, uint32_t group, uint32_t sms);

  // Until the last SM is done. Allocates nothing once it has seen as many tiles. 0 without chunks.
  double makespan(std::span<const ChunkShape> chunks);

 private:
  const uint32_t kv_heads_, tile_tokens_, sms_;
  std::vector<uint32_t> lengths_;  // of tiles of one head, in tiles of keys
  std::vector<uint64_t> busy_;     // until when, by SM: a heap, the soonest first
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_CHUNK_TILES_H_
