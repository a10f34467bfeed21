// The check that a waiting request runs in every step, for the pages that it needs after a compressed
// prefix; and its admission, which runs once.

#include <benchmark/benchmark.h>

#include <vector>

#include "engine/kv/store/prefix_checkpoint_cache.h"
#include "engine/methods/registry.h"

namespace kvtwin {
namespace {

constexpr uint32_t kChunk = 512, kRetained = 150, kWindow = 32;

// A prefix of `chunks` chunks, of 32 layers with 8 KV heads, each a group of its own.
class Prefix {
 public:
  explicit Prefix(uint32_t chunks)
      : cache(1, {chunks, 0}, shape, make_prefix_eviction(CoreConfig{}, kChunk), nullptr),
        tokens(chunks * kChunk) {
    const std::vector<UnitRun> identity = {{1, 0, chunks}};
    GroupTables tables;
    tables.open(&shape);
    uint32_t page_next = 0;
    for (uint32_t chunk = 1; chunk <= chunks; ++chunk) {
      const std::vector<uint32_t> kv_entries(shape.groups, chunk * kRetained);
      std::vector<uint32_t> wanted;
      tables.wanted(kv_entries, &wanted);
      if (tables.borrows()) tables.drop_borrowed();
      for (const uint32_t group : wanted) tables.give(group, PageId{page_next++});
      tables.keep(chunk * kChunk, kv_entries);
      PrefixCheckpointId id{};
      const bool taken =
          cache.take_number(&id) && cache.insert(0, identity, id, chunk * kChunk, kWindow, &tables, &pin);
      if (!taken) return;
    }
    ready = true;
  }
  const GroupShape shape{.groups = 256, .page_tokens = 16, .ring_pages = 0, .ring = {}};
  PrefixCheckpointCache cache;
  Pin pin;
  uint32_t tokens = 0;
  bool ready = false;
};

void waits_behind_prefix_checkpoint(benchmark::State& state, bool let_in) {
  const Prefix prefix(static_cast<uint32_t>(state.range(0)));
  if (!prefix.ready) return state.SkipWithError("the prefix could not be made");
  GroupTables tables;
  std::vector<PageId> spare;
  uint64_t pages = 0;
  for (auto _ : state) {
    tables.open(&prefix.shape);
    prefix.cache.stand_behind(prefix.pin, prefix.tokens, &tables);
    pages += tables.pages_until(prefix.tokens + kChunk);
    if (let_in) prefix.cache.reuse(prefix.pin, &tables);
    tables.clear(&spare);
  }
  state.counters["out"] = static_cast<double>(pages % 65'536);
}
BENCHMARK_CAPTURE(waits_behind_prefix_checkpoint, asks, false)->Arg(4)->Arg(64);
BENCHMARK_CAPTURE(waits_behind_prefix_checkpoint, is_let_in, true)->Arg(4)->Arg(64);

}  // namespace
}  // namespace kvtwin
