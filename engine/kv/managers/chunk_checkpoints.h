// ChunkCheckpoints are the prefix checkpoints of the requests of an engine whose layout moves KV entries
// (prefix_checkpoint_cache.h, docs/design/methods/composition.md#causality, #pairs "TANGRAM x prefix cache").
//
// At the end of every whole chunk a request's pages become a prefix checkpoint's, and the request continues
// with copies of those that it will write to. A copy belongs to the step that needs it: until then the
// request borrows the pages.
//
// A reservation for a prompt includes these copies, because the request's own pin protects every prefix
// checkpoint that it made: a promised page is never missing. A request that alone does not fit together
// with its prefix checkpoints is computed without any.
//
// With a host tier they are copied there before their pages are needed (transfer_manager.h), and are loaded
// when a request hits them.
//
// Without a prefix cache there are none, and all functions do nothing.

#ifndef KVTWIN_ENGINE_KV_MANAGERS_CHUNK_CHECKPOINTS_H_
#define KVTWIN_ENGINE_KV_MANAGERS_CHUNK_CHECKPOINTS_H_

#include <memory>
#include <vector>

#include "engine/kv/group_tables.h"
#include "engine/kv/managers/cached_prefix.h"
#include "engine/kv/store/prefix_checkpoint_cache.h"

namespace kvtwin {

class ChunkCheckpoints {
 public:
  // Of one request.
  struct State {
    RequestId id{};
    SessionId session{};
    CachedPrefix chunks;        // its places are chunks, its pin covers the checkpoints reused and added
    PrefixCheckpointId last{};  // the last of them
    bool reuse_barred = false;  // alone, it did not fit together with its prefix checkpoints
    bool load_barred = false;   // a load of some failed, or did not fit
  };

  // Both must outlive it.
  ChunkCheckpoints(KvContext* context, const PageTiers* tiers);

  void open(const RequestReady& event, State* state) const;
  // Pins the longest cached prefix, which may be on the host in part. The pin is the caller's.
  Match acquire(const RequestProgress& progress, State* state);
  // Prepares the empty tables to begin with it. Returns its tokens. REQUIRES: all is on the GPU.
  uint32_t stand_behind(const Pin& pin, State* state, GroupTables* tables);
  // Gives the pages to the tables. REQUIRES: stand_behind().
  void reuse(const State& state, GroupTables* tables) const;
  void release(State* state, bool used);
  // The request did not fit, although no other runs: it may try without its prefix.
  bool bar_reuse(State* state) const;

  // The request was just compressed at the end of a whole chunk, at `tokens` tokens: a prefix checkpoint of
  // it is taken now if `counted`, or by take() once the backend has reported the retained counts. Returns its
  // number; nullopt: there is none. If the request goes without further ones, *barred is set.
  std::optional<PrefixCheckpointId> plan(uint32_t tokens, bool counted, State* state, GroupTables* tables);
  void take(PrefixCheckpointId id, uint32_t tokens, State* state, GroupTables* tables);
  // A planned one is not taken.
  void roll_back(PrefixCheckpointId id) { cache_->roll_back(id); }
  // Pages of the prefix checkpoints that the request would make within its first `tokens` tokens, as far as
  // requests that continue from them copy them; at most, if the data decides the counts.
  uint64_t tails_ahead(const State& state, uint32_t tokens) const;

  uint64_t pages_evicted() const { return cache_ ? cache_->pages_evicted() : 0; }
  uint32_t pages() const { return cache_ ? cache_->pages() : 0; }
  uint32_t pages_host() const { return cache_ ? cache_->pages_host() : 0; }
  bool offloads() const { return cache_ && cache_->offloads(); }

  PrefixCheckpointCache* cache() const { return cache_.get(); }
  PrefixIndex* index() const { return cache_ ? &cache_->index() : nullptr; }
  uint32_t tokens_cached(const RequestReady& request) const;
  void check_invariants() const;

 private:
  bool insert(PrefixCheckpointId id, uint32_t tokens, State* state, GroupTables* tables);
  uint64_t tail_pages(uint32_t tokens) const;

  KvContext& context_;
  const Retention& retention_;
  std::unique_ptr<PrefixCheckpointCache> cache_;  // null: nothing is shared
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_MANAGERS_CHUNK_CHECKPOINTS_H_
