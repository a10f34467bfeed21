// From a prompt whose pages are all on the gpu to an arena that holds some of them.

#include <algorithm>
#include <numeric>

#include "engine/base/check.h"
#include "engine/cpu/retrieved_cache.h"

namespace kvtwin::cpu {

// The policy gives back what does not fit in the same order: the last pages first (core_arena.cc).
void RetrievedCache::enter_arena(ArenaCall* call, uint32_t tokens) {
  call->in_arena = true;
  const uint32_t pages = pages_of(tokens);
  KVT_CHECK(call->pages.size() == pages && call->homes.size() == pages);
  if (pages > shape_.slots) {
    // Slots of the ring that are overwritten hold pages that left the window: see slot_of().
    for (uint32_t page = std::max(pages - shape_.window, shape_.slots); page < pages; ++page) {
      kv_.copy(PageId{call->pages[page].page}, PageId{call->pages[shape_.slot_of(page)].page});
    }
    for (uint32_t layer = spec_.layers_dense; layer < llm_.layers; ++layer) fill_slots(layer, call, pages);
  }
  call->pages.resize(gpu_pages_held(spec_, memory_.page_tokens, pages));
}

// What the last query of the prompt would read. All pages are on the gpu, so nothing is recalled; their
// copies on the host are the same bits, wherever slots already hold something else.
void RetrievedCache::fill_slots(uint32_t layer, ArenaCall* call, uint32_t pages) {
  const kernels::KvPages to = kv_.layer(layer);
  ArenaLayer& own = call->layers[layer];
  outgrow(layer, call);
  std::vector<float> staging(uint64_t{2} * memory_.page_tokens * llm_.head_dim);
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    HeadArena& head = own.heads[h];
    const uint64_t first_query = uint64_t{h} * group() * llm_.head_dim;
    head.held = choose(layer, *call, h, pages, own.q_before.data() + first_query).chosen;
    KVT_CHECK(head.held.size() == head.slots.size());
    for (size_t i = 0; i < head.held.size(); ++i) {
      kernels::recall_head_ref(home(layer, *call, head.held[i]), h, staging.data());
      kernels::scatter_head_ref(staging.data(), h, call->pages[head.slots[i]].page, to);
    }
  }
}

// All pages lie in slots of their own number; from here on each KV head has its own.
void RetrievedCache::outgrow(uint32_t layer, ArenaCall* call) {
  ArenaLayer& own = call->layers[layer];
  KVT_CHECK(own.heads.empty());
  own.heads.resize(llm_.kv_heads);
  for (HeadArena& head : own.heads) {
    head.slots.resize(shape_.selectable + shape_.extra);
    std::iota(head.slots.begin(), head.slots.end(), shape_.sinks);
    head.held = head.slots;
  }
}

}  // namespace kvtwin::cpu
