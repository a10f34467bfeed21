// From what a budget has left of a prompt to an arena (recalled_cells.h).

#include <algorithm>

#include "engine/base/check.h"
#include "engine/cpu/retrieved_cache.h"

namespace kvtwin::cpu {

void RetrievedCache::take_over(const KeptPrompt& prompt) {
  KVT_CHECK(arena_ && prompt.cells > 0 && prompt.cells <= prompt.tokens);
  const uint32_t page_tokens = memory_.page_tokens, pages = pages_of(prompt.cells);
  streams_.discard(prompt.call);
  ArenaCall& call = calls_[prompt.call] = new_call();
  call.gone = prompt.tokens - prompt.cells;
  for (uint32_t i = 0; i < pages; ++i) {
    const uint32_t home = raw(prompt.homes[i]);
    call.pages.push_back({raw(prompt.gpu[i]), 0, page_tokens});
    call.homes.push_back(home);
    if (memory_.poison) kv_.poison(prompt.gpu[i]);
    if (memory_.poison) kv_.poison(prompt.homes[i]);
    if (resident_.pages() == 0) continue;
    const PageId dense{home - memory_.pages_gpu};
    if (memory_.poison) resident_.poison(dense);
    call.resident.push_back({raw(dense), 0, page_tokens});
  }
  for (uint32_t layer = 0; layer < llm_.layers; ++layer) {
    const bool dense = layer < spec_.layers_dense;
    const kernels::KvPages to = dense ? resident_.layer(layer) : kv_.layer(layer);
    const std::vector<kernels::ReadRun>& table = dense ? call.resident : call.pages;
    for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
      for (uint32_t cell = 0; cell < prompt.cells; ++cell) {
        const uint64_t at = to.at(table[cell / page_tokens].page, h, cell % page_tokens);
        prompt.copy(layer, h, cell, to.keys + at, to.values + at);
      }
    }
    call.layers[layer].q_before = prompt.queries[layer];
    for (uint32_t page = 0; !dense && page < prompt.cells / page_tokens; ++page)
      seal_page(layer, call, page, call.pages[page].page);
  }
  enter_arena(&call, prompt.cells);
}

}  // namespace kvtwin::cpu
