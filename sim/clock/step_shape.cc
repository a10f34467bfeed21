#include "sim/clock/step_shape.h"

#include <algorithm>

namespace kvtwin::sim {

CompressionShape shape_of(const Compression& compression, std::span<const PlanEntry> entries) {
  const PlanEntry& entry = entries[compression.entry];
  CompressionShape shape;
  const uint32_t computed = compression.before ? 0 : entry.stored();
  shape.tokens = entry.context + computed;
  shape.held = entry.live() + computed;
  shape.turn = entry.key.index + 1;
  // After an earlier compression (begin > 0) only the tokens since then are ranked; none of them has been
  // dropped.
  shape.ranked = compression.begin > 0 ? compression.end - compression.begin : shape.held;
  if (compression.keep.empty()) return shape;
  uint64_t retained = 0;
  for (const uint32_t of_group : compression.keep) retained += of_group;
  retained /= compression.keep.size();
  for (const Compression::Forced& forced : compression.forced) retained += forced.end - forced.begin;
  shape.retained = static_cast<uint32_t>(std::min<uint64_t>(retained, shape.ranked));
  return shape;
}

StepShape shape_of(const LaunchStep& command, bool lists_entries, std::vector<ChunkShape>* chunks,
                   std::vector<PassShape>* passes) {
  StepShape shape;
  uint32_t pass_tokens = 0;
  chunks->clear();
  passes->clear();
  for (const PlanEntry& entry : command.entries) {
    shape.logits_rows += entry.samples ? 1 : 0;
    switch (entry.kind) {
      case EntryKind::kDecode:
        ++shape.decodes;
        shape.decode_context_sum += entry.live();
        shape.decode_context_max = std::max(shape.decode_context_max, entry.live());
        shape.decode_low_bit_sum += entry.low_bit;
        if (lists_entries && entry.dropped > 0) ++shape.listed_decodes;
        // No kernel reads pages in place of which a request reads a part only.
        if (entry.pages_reused_in_part == 0) break;
        ++shape.decodes_unpacked;
        shape.unpacked_context_sum += entry.live();
        break;
      case EntryKind::kChunk:
        chunks->push_back({entry.tokens, entry.live(), entry.low_bit, lists_entries && entry.dropped > 0});
        break;
      case EntryKind::kProbe:
        passes->push_back({entry.tokens, entry.live()});
        pass_tokens += entry.tokens;
        break;
    }
  }
  for (const Requantisation& ageing : command.requantisations) shape.requantised += ageing.count;
  for (const PrefixHit& prefix_hit : command.prefix_hits) {
    if (prefix_hit.kv_entries.empty()) continue;
    shape.copied_pages += prefix_hit.pages.size();
    for (const uint32_t shared : prefix_hit.shared) shape.copied_pages -= shared;
  }
  shape.tokens = command.tokens - pass_tokens;
  shape.tokens_padded = command.tokens_padded;
  shape.chunks = *chunks;
  shape.passes = *passes;
  return shape;
}

}  // namespace kvtwin::sim
