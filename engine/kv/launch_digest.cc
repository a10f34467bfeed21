#include "engine/kv/launch_digest.h"

namespace kvtwin {
namespace {

// Follows an entry with the fingerprint of a batch. It is the same in every step of a coalesced run:
// positions count from `step`, and of context and dropped KV entries, it has the one that does not advance
// with them.
uint64_t with_entry(uint64_t batch, const PlanEntry& entry, uint64_t step) {
  const uint64_t flags = (entry.first ? 1u : 0u) | (entry.samples ? 2u : 0u) | (entry.grows ? 4u : 0u);
  const uint64_t fixed = entry.grows ? entry.dropped : entry.live();
  return chained(
      batch, raw(entry.request) | uint64_t{entry.tokens} << 32, entry.context - step,
      flags | static_cast<uint64_t>(entry.kind) << 8 | uint64_t{entry.passes_left} << 16 | fixed << 32,
      entry.low_bit | uint64_t{entry.pages_reused_in_part} << 32);
}

uint64_t request_of(const Launch& launch, uint32_t entry) { return raw(launch.members[entry].request); }

uint64_t page_of(const Launch& launch, const PageAllocation& allocation) {
  return request_of(launch, allocation.entry) << 32 | raw(allocation.page);
}

}  // namespace

void LaunchDigest::add(const Launch& launch, uint32_t tokens, uint32_t tokens_padded) {
  uint64_t batch = launch.entries.size();
  for (const PlanEntry& entry : launch.entries) batch = with_entry(batch, entry, launch.first);
  if (batch != batch_last_) digest_.add(DecisionDigest::kStep, launch.first, batch, tokens, tokens_padded);
  batch_last_ = batch;
  for (const PageAllocation& a : launch.allocations)
    digest_.add(DecisionDigest::kAllocation, launch.first + a.offset, page_of(launch, a), a.group);
  for (const Compression& c : launch.compressions) add_compression(launch, c);
  for (const FormatRun& run : launch.formats) {
    digest_.add(DecisionDigest::kFormats, launch.first, request_of(launch, run.entry), run.count, run.four);
  }
  for (const Requantisation& ageing : launch.requantisations) {
    digest_.add(DecisionDigest::kAged, launch.first, raw(ageing.source), raw(ageing.target), ageing.position,
                ageing.count);
  }
  for (const PrefixHit& hit : launch.prefix_hits) {
    const uint64_t counts = chained(chained_all(hit.kv_entries), chained_all(hit.shared));
    digest_.add(DecisionDigest::kReused, launch.first, raw(hit.request), chained_all(hit.pages),
                hit.prefix_checkpoint, counts);
  }
  for (const PrefixCheckpoint& checkpoint : launch.prefix_checkpoints) {
    digest_.add(DecisionDigest::kCheckpointPlanned, launch.first, request_of(launch, checkpoint.entry),
                checkpoint.prefix_checkpoint);
  }
  for (const ProbePass& pass : launch.passes) {
    digest_.add(DecisionDigest::kPass, launch.first, request_of(launch, pass.entry), pass.begin, pass.end,
                pass.repeated, pass.first);
  }
}

void LaunchDigest::subtract_from(const Launch& launch, uint64_t offset) {
  for (size_t i = launch.allocations.size(); i > 0 && launch.allocations[i - 1].offset >= offset; --i) {
    const PageAllocation& a = launch.allocations[i - 1];
    digest_.subtract(DecisionDigest::kAllocation, launch.first + a.offset, page_of(launch, a), a.group);
  }
}

void LaunchDigest::add_compression(const Launch& launch, const Compression& c) {
  uint64_t forced = c.forced.size();
  for (const Compression::Forced& range : c.forced) forced = chained(forced, range.begin, range.end);
  const uint64_t flags = (c.staged ? 1u : 0u) | (c.before ? 2u : 0u);
  digest_.add(DecisionDigest::kCompressed, launch.first, request_of(launch, c.entry), c.begin, c.end, flags,
              forced, chained_all(c.keep));
}

}  // namespace kvtwin
