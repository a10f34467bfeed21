#include "engine/kv/managers/chunk_checkpoints.h"

#include <algorithm>

#include "engine/base/check.h"
#include "engine/methods/registry.h"

namespace kvtwin {
namespace {

std::unique_ptr<PrefixCheckpointCache> make_cache(const CoreConfig& c, const Retention& retention,
                                                  const PageTiers* tiers) {
  if (!c.prefix_cache) return nullptr;
  const uint32_t on_host = c.offload_pages_target > 0 ? c.pages_host : 0;
  return std::make_unique<PrefixCheckpointCache>(
      retention.chunk_tokens() / c.unit_tokens, PrefixCheckpointCache::Limits{c.pages_gpu, on_host},
      retention.shape(), make_prefix_eviction(c, retention.chunk_tokens()), tiers);
}

}  // namespace

ChunkCheckpoints::ChunkCheckpoints(KvContext* context, const PageTiers* tiers)
    : context_(*context),
      retention_(context->retention),
      cache_(make_cache(context->config, context->retention, tiers)) {}

void ChunkCheckpoints::open(const RequestReady& event, State* state) const {
  state->id = event.request;
  state->session = event.session;
  state->chunks.open(context_, event, cache_ ? retention_.chunk_tokens() : context_.config.page_tokens);
  state->last = {};
  state->reuse_barred = state->load_barred = false;
}

Match ChunkCheckpoints::acquire(const RequestProgress& progress, State* state) {
  CachedPrefix& chunks = state->chunks;
  chunks.insert_barred = state->reuse_barred;
  if (chunks.places_public == 0 || state->reuse_barred) return {};
  const uint32_t most = std::min((progress.known() - 1) / retention_.chunk_tokens(), chunks.places_public);
  return state->load_barred ? cache_->acquire_on_gpu(chunks.name_space, chunks.identity, most)
                            : cache_->acquire(chunks.name_space, chunks.identity, most);
}

uint32_t ChunkCheckpoints::stand_behind(const Pin& pin, State* state, GroupTables* tables) {
  state->chunks.pin = pin;
  const uint32_t cached = pin.pages * retention_.chunk_tokens();
  if (cached > 0) state->last = cache_->stand_behind(state->chunks.pin, cached, tables);
  return cached;
}

void ChunkCheckpoints::reuse(const State& state, GroupTables* tables) const {
  if (state.chunks.pin.pages > 0) cache_->reuse(state.chunks.pin, tables);
}

void ChunkCheckpoints::release(State* state, bool used) {
  if (!cache_) return;
  if (used) cache_->index().mark(state->chunks.pin, state->session);
  cache_->release(state->chunks.pin, used);
  state->chunks.pin = {};
}

bool ChunkCheckpoints::bar_reuse(State* state) const {
  if (state->chunks.places_public == 0 || state->reuse_barred) return false;
  state->reuse_barred = true;
  return true;
}

// --- making prefix checkpoints

std::optional<PrefixCheckpointId> ChunkCheckpoints::plan(uint32_t tokens, bool counted, State* state,
                                                         GroupTables* tables) {
  if (!cache_ || state->chunks.insert_barred || tokens % retention_.chunk_tokens() != 0) return std::nullopt;
  const uint32_t chunk = tokens / retention_.chunk_tokens();
  if (chunk > state->chunks.places_public) return std::nullopt;
  KVT_CHECK(state->chunks.pin.pages + 1 == chunk);
  PrefixCheckpointId id{};
  if (!cache_->take_number(&id)) {
    state->chunks.insert_barred = true;
    return std::nullopt;
  }
  if (counted && !insert(id, tokens, state, tables)) return std::nullopt;
  return id;
}

void ChunkCheckpoints::take(PrefixCheckpointId id, uint32_t tokens, State* state, GroupTables* tables) {
  insert(id, tokens, state, tables);
}

// If another request inserted the same tokens, or there is nothing to share, the request keeps its own pages.
bool ChunkCheckpoints::insert(PrefixCheckpointId id, uint32_t tokens, State* state, GroupTables* tables) {
  CachedPrefix& chunks = state->chunks;
  if (!cache_->insert(chunks.name_space, chunks.identity, id, tokens, retention_.carried(tokens), tables,
                      &chunks.pin)) {
    cache_->roll_back(id);
    chunks.insert_barred = true;
    return false;
  }
  state->last = id;
  uint64_t counts = 0;
  for (uint32_t g = 0; g < tables->groups(); ++g) {
    counts = chained(counts, tables->kv_entries(g, tokens), tables->shared(g));
  }
  context_.digest.add(DecisionDigest::kPrefixCheckpoint, tokens, raw(state->id), raw(id), counts);
  return true;
}

// Pages of the prefix checkpoint at `tokens` tokens that other requests copy.
uint64_t ChunkCheckpoints::tail_pages(uint32_t tokens) const {
  uint64_t pages = 0;
  const uint32_t page = context_.config.page_tokens;
  // The window that may still move, from any slot of a page on.
  if (!retention_.known())
    return uint64_t{retention_.tables()} * div_ceil(retention_.window() + page - 1, page);
  for (uint32_t g = 0; g < retention_.tables(); ++g) {
    const uint32_t entries = retention_.entries_after(g, tokens);
    pages += div_ceil(entries, page) -
             PrefixCheckpointCache::settled_pages(entries, retention_.carried(tokens), page);
  }
  return pages;
}

uint64_t ChunkCheckpoints::tails_ahead(const State& state, uint32_t tokens) const {
  if (!cache_) return 0;
  const uint32_t chunks = std::min(state.chunks.places_public, tokens / retention_.chunk_tokens());
  uint64_t pages = 0;
  for (uint32_t chunk = state.chunks.pin.pages + 1; chunk <= chunks; ++chunk) {
    pages += tail_pages(chunk * retention_.chunk_tokens());
  }
  return pages;
}

uint32_t ChunkCheckpoints::tokens_cached(const RequestReady& request) const {
  const std::optional<uint64_t> name_space = context_.name_space(request.session);
  if (!name_space.has_value()) return 0;
  const uint32_t chunk = retention_.chunk_tokens();
  return cache_->find(*name_space, request.identity, request.prompt_tokens / chunk) * chunk;
}

void ChunkCheckpoints::check_invariants() const {
  if (cache_) cache_->check_invariants();
}

}  // namespace kvtwin
