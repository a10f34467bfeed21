// RetrievedCache: selection of the pages that a decode reads, and their recall
// (docs/design/methods/freekv.md#step, #timelines).

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/common/forced_outcome.h"
#include "engine/cpu/retrieval/retrieved_cache.h"
#include "engine/methods/outcome_rules.h"
#include "kernels/select/page_score.h"
#include "kernels/select/select.h"

namespace kvtwin::cpu {

// The best of the full pages outside sinks and window, for the queries q [group][head_dim].
HeadChoice RetrievedCache::choose(uint32_t layer, const ResidentRequest& request, uint32_t head,
                                  uint32_t pages, const float* q) const {
  const std::vector<HeadResidentPages>& heads = request.layers[layer].heads;
  const auto vectors = [&](uint32_t page) {
    return summaries_.vectors(offloaded_ ? request.host_copies[page] : request.pages[page].page, layer, head);
  };
  PageCandidates from{first_candidate(), end_candidates(pages), {}, vectors};
  if (!heads.empty()) from.stays = heads[head].extra;
  return choose_pages(spec_, llm_, shape_.selectable, from, q);
}

void RetrievedCache::attend_chosen(uint32_t layer, const Row& row, const float* q, float* out) {
  if (options_.kind == RetrievalKind::kRecallsTokens) return read_tokens(layer, row, q, out);
  recalls_[layer].heads += llm_.kv_heads;
  recalls_[layer].chosen += llm_.kv_heads * shape_.selectable;
  if (options_.kind == RetrievalKind::kPagesOnGpu) return read_on_gpu(layer, row, q, out);
  if (options_.kind == RetrievalKind::kRecallsValues) return rebuild_and_read(layer, row, q, out);
  recall_and_read(layer, row, q, out);
}

// Quest: every page is at its original place.
void RetrievedCache::read_on_gpu(uint32_t layer, const Row& row, const float* q, float* out) {
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    const float* const own = q + uint64_t{h} * group() * llm_.head_dim;
    const HeadChoice choice = choose(layer, *row.request, h, pages_of(row.kv_entry + 1), own);
    read_head(layer, row, h, choice.chosen, false, q, out);
  }
}

// FreeKV; ArkVale is the case in which every head is corrected.
void RetrievedCache::recall_and_read(uint32_t layer, const Row& row, const float* q, float* out) {
  ResidentLayer& own = row.request->layers[layer];
  streams_.wait(row.id, layer);
  if (own.heads.empty()) outgrow(layer, row.request);
  const uint32_t pages = pages_of(row.kv_entry + 1);
  // In the first step that selects there is no earlier selection to use.
  const bool trusts = spec_.speculation && own.chosen;
  const std::vector<uint8_t> before = heads_before(layer, row, trusts, q);
  const bool any = std::find(before.begin(), before.end(), 1) != before.end();
  std::vector<HeadChoice> choices(llm_.kv_heads);
  const auto choose_all = [&] {
    for (uint32_t h = 0; h < llm_.kv_heads; ++h)
      choices[h] = choose(layer, *row.request, h, pages, q + uint64_t{h} * group() * llm_.head_dim);
  };
  if (any) choose_all();
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    if (before[h] != 0) recall(layer, row, h, &choices[h], true);
  }
  streams_.wait(row.id, layer);
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    std::vector<uint32_t> held = own.heads[h].held;
    std::sort(held.begin(), held.end());
    read_head(layer, row, h, held, trusts && before[h] != 0, q, out);
  }
  own.chosen = true;
  if (!spec_.speculation) return;
  if (!any) choose_all();
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    if (before[h] == 0) recall(layer, row, h, &choices[h], false);
  }
}

// Heads whose queries are less similar than tau to those of the current selection. NaN counts as dissimilar.
std::vector<uint8_t> RetrievedCache::turned_heads(const ResidentLayer& layer, const float* q) const {
  const double tau = static_cast<double>(spec_.tau_q32) / static_cast<double>(kOneQ32);
  std::vector<uint8_t> out(llm_.kv_heads);
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    const uint64_t first = uint64_t{h} * group() * llm_.head_dim;
    const float cosine =
        kernels::group_cosine_ref(q + first, layer.q_before.data() + first, group(), llm_.head_dim);
    out[h] = static_cast<double>(cosine) >= tau || tau <= -1 ? 0 : 1;
  }
  return out;
}

// Heads whose missing pages are recalled before attention: there is no earlier selection, the query turned,
// or it is forced.
std::vector<uint8_t> RetrievedCache::heads_before(uint32_t layer, const Row& row, bool trusts,
                                                  const float* q) {
  std::vector<uint8_t> out(llm_.kv_heads, uint8_t{1});
  if (trusts) out = turned_heads(row.request->layers[layer], q);
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    const kernels::HeadRecall* const forced_outcome = notify(layer, row, h);
    if (forced_outcome != nullptr) out[h] = forced_outcome->before;
    recalls_[layer].corrected += forced_outcome != nullptr ? forced_outcome->turned : trusts ? out[h] : 0;
  }
  return out;
}

// Distributes the forced recalls of the step, for methods whose heads recall pages independently.
void RetrievedCache::deal_recalls() {
  dealt_.clear();
  const bool pages = options_.kind == RetrievalKind::kRecallsPages;
  if (given_ == nullptr || given_->recalls.size() != llm_.layers || !pages) return;
  std::vector<ForcedRow> rows;
  for (Row& row : rows_) {
    if (!row.chooses) continue;
    row.choice = static_cast<uint32_t>(rows.size());
    const uint32_t candidates = end_candidates(pages_of(row.kv_entry + 1)) - first_candidate();
    rows.push_back({spec_.speculation && row.request->layers.back().chosen,
                    missing_pages_max(shape_.selectable, candidates)});
  }
  dealt_.resize(llm_.layers);
  for (uint32_t layer = spec_.layers_dense; layer < llm_.layers; ++layer) {
    dealt_[layer].resize(rows.size() * llm_.kv_heads);
    deal_recall(given_->recalls[layer], rows, llm_.kv_heads, spec_.speculation, dealt_[layer]);
  }
}

const kernels::HeadRecall* RetrievedCache::notify(uint32_t layer, const Row& row, uint32_t head) const {
  return dealt_.empty() ? nullptr : &dealt_[layer][row.choice * llm_.kv_heads + head];
}

// Issues the recall of the head's missing pages and adds it to the step's outcome.
void RetrievedCache::recall(uint32_t layer, const Row& row, uint32_t head, HeadChoice* choice, bool before) {
  HeadResidentPages& slots = row.request->layers[layer].heads[head];
  if (const kernels::HeadRecall* const forced_outcome = notify(layer, row, head)) {
    kernels::force_missing_ref(choice->scores, first_candidate(), slots.held, forced_outcome->missing);
    choice->chosen = kernels::select_rows(choice->scores, {}, shape_.selectable);
    for (uint32_t& page : choice->chosen) page += first_candidate();
  }
  const std::vector<kernels::SlotChange> changes =
      kernels::replace_slots_ref(choice->chosen, choice->scores, first_candidate(), slots.held);
  const auto pages = static_cast<uint32_t>(changes.size());
  (before ? recalls_[layer].blocking : recalls_[layer].background) += pages;
  if (options_.witness != nullptr) options_.witness->recalls(head_at(row, layer, head), before, pages);
  if (row.request->preempted && !before) return;
  RecallTask task{row.id, layer, head, {}};
  for (const kernels::SlotChange& change : changes) {
    task.moves.push_back(
        {row.request->host_copies[change.page], row.request->pages[slots.slots[change.slot]].page});
  }
  streams_.ask(std::move(task));
}

// Reads sinks, selected pages, extra pages and the window, in order of position.
void RetrievedCache::read_head(uint32_t layer, const Row& row, uint32_t head,
                               std::span<const uint32_t> chosen, bool corrected, const float* q, float* out) {
  const ResidentRequest& request = *row.request;
  const HeadResidentPages none;
  const HeadResidentPages& slots = offloaded_ ? request.layers[layer].heads[head] : none;
  std::vector<std::pair<uint32_t, uint32_t>> pages;  // page, and its index among the request's GPU pages
  for (uint32_t page = 0; page < shape_.sinks; ++page) pages.emplace_back(page, page);
  for (size_t i = 0; i < slots.held.size(); ++i) {
    if (std::binary_search(chosen.begin(), chosen.end(), slots.held[i]))
      pages.emplace_back(slots.held[i], slots.slots[i]);
  }
  for (size_t i = 0; !offloaded_ && i < chosen.size(); ++i) pages.emplace_back(chosen[i], chosen[i]);
  for (size_t i = 0; i < slots.extra.size(); ++i) pages.emplace_back(slots.extra[i], slots.extra_slots[i]);
  std::sort(pages.begin(), pages.end());
  KVT_CHECK(pages.size() == shape_.sinks + chosen.size() + slots.extra.size());
  const uint32_t end = row.kv_entry + 1;
  for (uint32_t page = pages_of(end) - shape_.window; page < pages_of(end); ++page)
    pages.emplace_back(page, offloaded_ ? shape_.slot_of(page) : page);
  Reading reading;
  for (const auto& [page, place] : pages) append_page(request, page, place, end, &reading);
  read(layer, row, head, reading, corrected, q, out);
}

// Appends the KV entries of a page that are before position `end`.
void RetrievedCache::append_page(const ResidentRequest& request, uint32_t page, uint32_t place, uint32_t end,
                                 Reading* to) const {
  const uint32_t first = page * memory_.page_tokens;
  const uint32_t count = std::min(memory_.page_tokens, end - first);
  to->runs.push_back({request.pages.at(place).page, 0, count});
  for (uint32_t i = 0; i < count; ++i) to->positions.push_back(first + i);
}

void RetrievedCache::read(uint32_t layer, const Row& row, uint32_t head, const Reading& reading,
                          bool corrected, const float* q, float* out) {
  RetrievalWitness* const witness = options_.witness;
  const RetrievalWitness::Read notice{head_at(row, layer, head), reading.runs, reading.positions, corrected};
  if (witness != nullptr) witness->attends(notice);
  streams_.pass_time();
  const float scale = 1.0f / std::sqrt(static_cast<float>(llm_.head_dim));
  const kernels::AttentionRow reads{reading.runs, static_cast<uint32_t>(reading.positions.size())};
  kernels::attention_ref(kv_.layer(layer), {head, 1}, llm_.query_heads, scale, q, {&reads, 1}, out, nullptr);
  if (witness != nullptr) witness->attended(notice, out + uint64_t{head} * group() * llm_.head_dim);
}

}  // namespace kvtwin::cpu
