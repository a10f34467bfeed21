// The shape of a compression's price, derived from a launch.

#include "sim/clock/step_shape.h"

#include <doctest/doctest.h>

#include <vector>

#include "models/cost/graph_shapes.h"

using namespace kvtwin;

namespace {

// 100 new tokens after 1,000, of which a head has dropped 200.
constexpr PlanEntry kChunk{.kind = EntryKind::kChunk, .tokens = 100, .context = 1000, .dropped = 200};

}  // namespace

TEST_CASE("step shape: a compression after its tokens ranks them, one before them does not") {
  const PlanEntry entries[] = {PlanEntry{.tokens = 7, .context = 7}, kChunk};
  const Compression::Forced forced[] = {{0, 4}, {1090, 1100}};
  const uint32_t keep[] = {50, 70};
  Compression compression{.entry = 1, .begin = 0, .end = 1100, .forced = forced, .keep = keep};
  const CompressionShape behind = sim::shape_of(compression, entries);
  CHECK(behind.tokens == 1100);
  CHECK(behind.held == 900);
  CHECK(behind.ranked == 900);
  CHECK(behind.retained == 60 + 4 + 10);

  const Compression::Forced before_forced[] = {{0, 4}, {990, 1000}};
  compression.before = true, compression.end = 1000, compression.forced = before_forced;
  const CompressionShape before = sim::shape_of(compression, entries);
  CHECK(before.tokens == 1000);
  CHECK(before.held == 800);
  CHECK(before.ranked == 800);
  CHECK(before.retained == 60 + 4 + 10);
}

TEST_CASE(
    "step shape: after earlier compressions only the rest is ranked; counts from the backend are unknown") {
  const PlanEntry entries[] = {kChunk};
  Compression compression{.entry = 0, .begin = 960, .end = 1100, .forced = {}, .keep = {}};
  const CompressionShape unknown = sim::shape_of(compression, entries);
  CHECK(unknown.held == 900);
  CHECK(unknown.ranked == 140);
  CHECK(unknown.retained == CompressionShape::kUnknown);
  const uint32_t keep[] = {4000};  // more than there are
  compression.keep = keep;
  CHECK(sim::shape_of(compression, entries).retained == 140);
}

TEST_CASE("step shape: decodes whose KV entries share pages with others unpack all that they read") {
  const PlanEntry entries[] = {
      {.kind = EntryKind::kDecode, .tokens = 1, .context = 700, .low_bit = 64},
      {.kind = EntryKind::kDecode, .tokens = 1, .context = 500, .low_bit = 32, .pages_reused_in_part = 2}};
  std::vector<ChunkShape> chunks;
  std::vector<PassShape> passes;
  const StepShape shape =
      sim::shape_of(LaunchStep{.tokens = 2, .entries = entries, .allocations = {}, .prefix_hits = {}}, false,
                    &chunks, &passes);
  CHECK(shape.decode_context_sum == 1200);
  CHECK(shape.decode_low_bit_sum == 96);
  CHECK(shape.decodes_unpacked == 1);
  CHECK(shape.unpacked_context_sum == 500);
}

TEST_CASE(
    "step shape: decodes of requests with dropped slots read lists of entries, where layouts drop in place") {
  const PlanEntry entries[] = {{.kind = EntryKind::kDecode, .tokens = 1, .context = 700, .dropped = 1},
                               {.kind = EntryKind::kDecode, .tokens = 1, .context = 500},
                               kChunk,
                               {.kind = EntryKind::kChunk, .tokens = 8, .context = 500}};
  const LaunchStep launch{.tokens = 110, .entries = entries, .allocations = {}, .prefix_hits = {}};
  std::vector<ChunkShape> chunks;
  std::vector<PassShape> passes;
  StepShape shape = sim::shape_of(launch, true, &chunks, &passes);
  CHECK(shape.decodes == 2);
  CHECK(shape.listed_decodes == 1);
  CHECK(chunks[0].listed);
  CHECK_FALSE(chunks[1].listed);
  CHECK(shape.decode_context_sum == 1199);
  shape.chunks = {};
  const GraphShapes::Key dropped_slots = GraphShapes::key(shape);
  shape = sim::shape_of(launch, false, &chunks, &passes);
  CHECK(shape.listed_decodes == 0);
  CHECK_FALSE(chunks[0].listed);
  shape.chunks = {};
  CHECK(GraphShapes::key(shape) != dropped_slots);
  // The number of requests with dropped slots is not part of a graph key: all decodes read lists.
  shape.listed_decodes = 2;
  CHECK(GraphShapes::key(shape) == dropped_slots);
}

TEST_CASE(
    "step shape: a pass of probe tokens is no chunk, and its compression ranks what the request holds") {
  const PlanEntry entries[] = {kChunk,
                               {.kind = EntryKind::kProbe, .tokens = 32, .context = 500, .dropped = 20},
                               {.kind = EntryKind::kProbe, .tokens = 40, .context = 900, .passes_left = 2}};
  const LaunchStep launch{
      .tokens = 172, .tokens_padded = 104, .entries = entries, .allocations = {}, .prefix_hits = {}};
  std::vector<ChunkShape> chunks;
  std::vector<PassShape> passes;
  const StepShape shape = sim::shape_of(launch, false, &chunks, &passes);
  CHECK(shape.tokens == 100);
  CHECK(shape.tokens_padded == 104);
  CHECK(shape.chunks.size() == 1);
  REQUIRE(shape.passes.size() == 2);
  CHECK(passes[0].tokens == 32);
  CHECK(passes[0].context == 480);
  CHECK(passes[1].context == 900);
  CHECK(GraphShapes::key(shape) == GraphShapes::Key{});
  const Compression compression{.entry = 1, .begin = 0, .end = 500, .forced = {}, .keep = {}};
  CHECK(sim::shape_of(compression, entries).tokens == 500);
  CHECK(sim::shape_of(compression, entries).ranked == 480);
}
