// What a call that waits for room asks in every step: what it would need behind a compressed prefix. And what
// it does once, when it is let in.

#include <benchmark/benchmark.h>

#include <vector>

#include "engine/policy/registry.h"
#include "engine/policy/snapshot_cache.h"

namespace kvtwin {
namespace {

constexpr uint32_t kChunk = 512, kKept = 150, kWindow = 32;

// A prefix of so many chunks, of 32 layers with 8 KV heads, each a group of its own.
class Prefix {
 public:
  explicit Prefix(uint32_t chunks)
      : cache(1, chunks, shape, make_prefix_eviction(CoreConfig{}, kChunk)), tokens(chunks * kChunk) {
    const std::vector<UnitRun> identity = {{1, 0, chunks}};
    GroupTables tables;
    tables.open(&shape);
    uint32_t page_next = 0;
    for (uint32_t chunk = 1; chunk <= chunks; ++chunk) {
      const std::vector<uint32_t> cells(shape.groups, chunk * kKept);
      std::vector<uint32_t> wanted;
      tables.wanted(cells, &wanted);
      if (tables.borrows()) tables.drop_borrowed();
      for (const uint32_t group : wanted) tables.give(group, PageId{page_next++});
      tables.keep(chunk * kChunk, cells);
      SnapshotId id{};
      const bool taken =
          cache.take_number(&id) && cache.insert(0, identity, id, chunk * kChunk, kWindow, &tables, &lease);
      if (!taken) return;
    }
    ready = true;
  }
  const GroupShape shape{.groups = 256, .page_tokens = 16, .ring_pages = 0, .ring = {}};
  SnapshotCache cache;
  Lease lease;
  uint32_t tokens = 0;
  bool ready = false;
};

void waits_behind_snapshot(benchmark::State& state, bool let_in) {
  const Prefix prefix(static_cast<uint32_t>(state.range(0)));
  if (!prefix.ready) return state.SkipWithError("the prefix could not be made");
  GroupTables tables;
  std::vector<PageId> spare;
  uint64_t pages = 0;
  for (auto _ : state) {
    tables.open(&prefix.shape);
    prefix.cache.stand_behind(prefix.lease, prefix.tokens, &tables);
    pages += tables.pages_until(prefix.tokens + kChunk);
    if (let_in) prefix.cache.adopt(prefix.lease, &tables);
    tables.clear(&spare);
  }
  state.counters["out"] = static_cast<double>(pages % 65'536);
}
BENCHMARK_CAPTURE(waits_behind_snapshot, asks, false)->Arg(4)->Arg(64);
BENCHMARK_CAPTURE(waits_behind_snapshot, is_let_in, true)->Arg(4)->Arg(64);

}  // namespace
}  // namespace kvtwin
