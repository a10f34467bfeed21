// ChunkTiles computes how long attention over prompt chunks keeps a GPU busy, in units of one tile of keys:
// free SMs take tiles of 128 query tokens from a list, the longest first
// (kernels/attention/attention_prefill.h).
//
// This makes a step of several chunks comparable with the single chunks that were measured. Its time is
// neither the sum of theirs (they share the SMs) nor the longest (there may be many).

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

  // When the last SM is done; 0 without chunks. Allocates nothing once it has seen as many tiles.
  double makespan(std::span<const ChunkShape> chunks);

 private:
  const uint32_t kv_heads_, tile_tokens_, sms_;
  std::vector<uint32_t> lengths_;  // of the tiles of one head, in tiles of keys
  std::vector<uint64_t> busy_;     // end of work by SM: a heap, the earliest first
};

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_COST_CHUNK_TILES_H_
