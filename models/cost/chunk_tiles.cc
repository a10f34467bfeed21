#include "models/cost/chunk_tiles.h"

#include <algorithm>
#include <functional>

#include "engine/base/check.h"

namespace kvtwin {
namespace {

constexpr uint32_t kTileRows = 128, kTileKeys = 128;
// The fixed time of a tile (loading queries, writing outputs), in tiles of keys. Its error is part of the
// measured time of a unit (measured_cost.h).
constexpr uint32_t kTileFixedTenths = 15;

}  // namespace

ChunkTiles::ChunkTiles(uint32_t kv_heads, uint32_t group, uint32_t sms)
    : kv_heads_(kv_heads), tile_tokens_(std::max(1u, kTileRows / group)), sms_(sms), busy_(sms) {
  KVT_CHECK(kv_heads > 0 && group > 0 && sms > 0);
}

double ChunkTiles::makespan(std::span<const ChunkShape> chunks) {
  lengths_.clear();
  for (const ChunkShape& chunk : chunks) {
    for (uint32_t first = 0; first < chunk.tokens; first += tile_tokens_) {
      const uint32_t seen = chunk.context + std::min(chunk.tokens, first + tile_tokens_);
      lengths_.push_back((seen + kTileKeys - 1) / kTileKeys);
    }
  }
  std::sort(lengths_.begin(), lengths_.end(), std::greater<>());
  std::fill(busy_.begin(), busy_.end(), 0);
  uint64_t last = 0;
  for (const uint32_t length : lengths_) {
    for (uint32_t head = 0; head < kv_heads_; ++head) {
      std::pop_heap(busy_.begin(), busy_.end(), std::greater<>());
      busy_.back() += uint64_t{length} * 10 + kTileFixedTenths;
      last = std::max(last, busy_.back());
      std::push_heap(busy_.begin(), busy_.end(), std::greater<>());
    }
  }
  return static_cast<double>(last) / 10;
}

}  // namespace kvtwin
