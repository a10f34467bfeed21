// RetrievedCache: ShadowKV. Keys of selected pages are reconstructed from low-rank coordinates; values are
// recalled from the host (docs/design/methods/freekv.md#timelines).

#include <algorithm>

#include "engine/base/check.h"
#include "engine/cpu/retrieval/retrieved_cache.h"
#include "kernels/dense/low_rank.h"
#include "kernels/select/select.h"

namespace kvtwin::cpu {

void RetrievedCache::rebuild_and_read(uint32_t layer, const Row& row, const float* q, float* out) {
  ResidentRequest* const request = row.request;
  ResidentLayer& own = request->layers[layer];
  if (own.heads.empty()) outgrow(layer, request);
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    HeadResidentPages& head = own.heads[h];
    const HeadChoice choice =
        choose(layer, *request, h, pages_of(row.kv_entry + 1), q + uint64_t{h} * group() * llm_.head_dim);
    const auto changes =
        kernels::replace_slots_ref(choice.chosen, choice.scores, first_candidate(), head.held);
    const auto pages = static_cast<uint32_t>(changes.size());
    recalls_[layer].blocking += pages;
    if (options_.witness != nullptr) options_.witness->recalls(head_at(row, layer, h), true, pages);
    for (const kernels::SlotChange& change : changes)
      place_values(layer, *request, h, change.page, head.slots[change.slot]);
    rebuild_keys(layer, *request, h);
    read_head(layer, row, h, choice.chosen, false, q, out);
  }
}

void RetrievedCache::place_values(uint32_t layer, const ResidentRequest& request, uint32_t head,
                                  uint32_t page, uint32_t slot) {
  const kernels::KvPages pages = kv_.layer(layer);
  const kernels::HostPage from = host_copy(layer, request, page);
  const uint32_t to = request.pages[slot].page;
  for (uint32_t t = 0; t < memory_.page_tokens; ++t)
    std::copy_n(from.at(head, 1, t), llm_.head_dim, pages.values + pages.at(to, head, t));
  if (options_.witness != nullptr) options_.witness->wrote(to, layer, head);
}

// Reconstructs keys of every selected page in a slot, because directions may be newer than its recall.
void RetrievedCache::rebuild_keys(uint32_t layer, const ResidentRequest& request, uint32_t head) {
  const kernels::KvPages pages = kv_.layer(layer);
  const HeadResidentPages& slots = request.layers[layer].heads[head];
  for (size_t i = 0; i < slots.held.size(); ++i) {
    const uint32_t page = request.pages[slots.slots[i]].page;
    for (uint32_t t = 0; t < memory_.page_tokens; ++t) {
      request.layers[layer].shadow->rebuild(rope_, slots.held[i] * memory_.page_tokens + t, head,
                                            pages.keys + pages.at(page, head, t));
    }
  }
}

// The pages before `end` that their landmarks represent worst; they stay on the GPU. Ascending.
std::vector<uint32_t> RetrievedCache::outliers(uint32_t layer, const ResidentRequest& request, uint32_t head,
                                               uint32_t end) const {
  if (shape_.extra == 0) return {};
  std::vector<float> staging(uint64_t{2} * memory_.page_tokens * llm_.head_dim), scores;
  for (uint32_t page = first_candidate(); page < end; ++page) {
    kernels::recall_head_ref(host_copy(layer, request, page), head, staging.data());
    const float* const landmark = summaries_.vectors(request.host_copies[page], layer, head).high;
    scores.push_back(
        kernels::outlier_score_ref(staging.data(), landmark, memory_.page_tokens, llm_.head_dim));
  }
  std::vector<uint32_t> pages = kernels::select_rows(scores, {}, shape_.extra);
  for (uint32_t& page : pages) page += first_candidate();
  return pages;
}

}  // namespace kvtwin::cpu
