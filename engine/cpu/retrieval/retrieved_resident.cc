// RetrievedCache: from a prompt whose pages are all on the GPU to resident pages that hold some of them.

#include <algorithm>
#include <numeric>

#include "engine/base/check.h"
#include "engine/cpu/retrieval/retrieved_cache.h"

namespace kvtwin::cpu {

// The policy frees the pages that do not fit in the same order, last pages first (ResidentKvManager).
void RetrievedCache::enter_resident(ResidentRequest* request, uint32_t tokens) {
  request->in_resident = true;
  for (ResidentLayer& layer : request->layers) {
    if (layer.partial != nullptr) layer.partial->choose_columns();
  }
  const uint32_t pages = pages_of(tokens);
  KVT_CHECK(request->pages.size() == pages && request->host_copies.size() == pages);
  if (pages > shape_.slots) {
    // The overwritten slots of the ring hold pages that left the window: see slot_of().
    for (uint32_t page = std::max(pages - shape_.window, shape_.slots); page < pages; ++page) {
      kv_.copy(PageId{request->pages[page].page}, PageId{request->pages[shape_.slot_of(page)].page});
    }
    for (uint32_t layer = spec_.layers_dense; layer < llm_.layers; ++layer) fill_slots(layer, request, pages);
  }
  request->pages.resize(gpu_pages_held(spec_, memory_.page_tokens, pages));
}

// Fills the slots with the selection of the prompt's last query. All pages are on the GPU, so nothing is
// recalled; where a slot was already overwritten, the bit-identical host copy is used.
void RetrievedCache::fill_slots(uint32_t layer, ResidentRequest* request, uint32_t pages) {
  ResidentLayer& own = request->layers[layer];
  own.heads.resize(llm_.kv_heads);
  if (own.partial != nullptr) return;  // InfiniGen retains no selection between steps
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    HeadResidentPages& head = own.heads[h];
    head.slots.resize(shape_.selectable);
    std::iota(head.slots.begin(), head.slots.end(), shape_.sinks);
    head.extra_slots.resize(shape_.extra);
    std::iota(head.extra_slots.begin(), head.extra_slots.end(), shape_.sinks + shape_.selectable);
    head.extra = outliers(layer, *request, h, end_candidates(pages));
    const uint64_t first_query = uint64_t{h} * group() * llm_.head_dim;
    head.held = choose(layer, *request, h, pages, own.q_before.data() + first_query).chosen;
    KVT_CHECK(head.held.size() == head.slots.size() && head.extra.size() == head.extra_slots.size());
    for (size_t i = 0; i < head.held.size(); ++i) place_page(layer, *request, h, head.held[i], head.slots[i]);
    for (size_t i = 0; i < head.extra.size(); ++i)
      place_page(layer, *request, h, head.extra[i], head.extra_slots[i]);
  }
}

void RetrievedCache::place_page(uint32_t layer, const ResidentRequest& request, uint32_t head, uint32_t page,
                                uint32_t slot) {
  std::vector<float> staging(uint64_t{2} * memory_.page_tokens * llm_.head_dim);
  kernels::recall_head_ref(host_copy(layer, request, page), head, staging.data());
  kernels::scatter_head_ref(staging.data(), head, request.pages[slot].page, kv_.layer(layer));
}

// A request that decodes beyond its resident pages. Page p is in slot p, except the page that leaves the
// window now; from here on each KV head has its own slots.
void RetrievedCache::outgrow(uint32_t layer, ResidentRequest* request) {
  ResidentLayer& own = request->layers[layer];
  KVT_CHECK(own.heads.empty());
  own.heads.resize(llm_.kv_heads);
  const uint32_t end = shape_.sinks + shape_.selectable + shape_.extra;
  for (uint32_t h = 0; h < llm_.kv_heads; ++h)
    own.heads[h] = outgrown_head(shape_, outliers(layer, *request, h, end));
}

}  // namespace kvtwin::cpu
