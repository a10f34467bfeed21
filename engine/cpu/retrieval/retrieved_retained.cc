// RetrievedCache: from the retained KV entries of a prompt to resident pages (recalled_entries.h).

#include <algorithm>

#include "engine/base/check.h"
#include "engine/cpu/retrieval/retrieved_cache.h"

namespace kvtwin::cpu {

void RetrievedCache::take_over(const RetainedPrompt& prompt) {
  KVT_CHECK(offloaded_ && prompt.kv_entries > 0 && prompt.kv_entries <= prompt.tokens);
  const uint32_t page_tokens = memory_.page_tokens, pages = pages_of(prompt.kv_entries);
  streams_.discard(prompt.request);
  ResidentRequest& request = requests_[prompt.request] = new_request();
  request.dropped = prompt.tokens - prompt.kv_entries;
  for (uint32_t i = 0; i < pages; ++i) {
    const uint32_t host_copy = raw(prompt.host_copies[i]);
    request.pages.push_back({raw(prompt.gpu[i]), 0, page_tokens});
    request.host_copies.push_back(host_copy);
    if (memory_.poison) kv_.poison(prompt.gpu[i]);
    if (memory_.poison) kv_.poison(prompt.host_copies[i]);
    if (resident_.pages() == 0) continue;
    const PageId dense{host_copy - memory_.pages_gpu};
    if (memory_.poison) resident_.poison(dense);
    request.resident.push_back({raw(dense), 0, page_tokens});
  }
  for (uint32_t layer = 0; layer < llm_.layers; ++layer) {
    const bool dense = layer < spec_.layers_dense;
    const kernels::KvPages to = dense ? resident_.layer(layer) : kv_.layer(layer);
    const std::vector<kernels::ReadRun>& table = dense ? request.resident : request.pages;
    for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
      for (uint32_t kv_entry = 0; kv_entry < prompt.kv_entries; ++kv_entry) {
        const uint64_t at = to.at(table[kv_entry / page_tokens].page, h, kv_entry % page_tokens);
        prompt.copy(layer, h, kv_entry, to.keys + at, to.values + at);
      }
    }
    request.layers[layer].q_before = prompt.queries[layer];
    for (uint32_t page = 0; !dense && page < prompt.kv_entries / page_tokens; ++page)
      seal_page(layer, request, page, request.pages[page].page);
  }
  enter_resident(&request, prompt.kv_entries);
}

}  // namespace kvtwin::cpu
