// Which pages a decode reads, and how they come to be where it reads them (METHODS 6.3, 6.5).

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/cpu/retrieved_cache.h"
#include "kernels/page_score.h"
#include "kernels/select.h"

namespace kvtwin::cpu {
namespace {

kernels::PagePooling pooling_of(GroupPooling pooling) {
  switch (pooling) {
    case GroupPooling::kMeanS:
      return kernels::PagePooling::kMeanS;
    case GroupPooling::kMaxS:
      return kernels::PagePooling::kMaxS;
    case GroupPooling::kMeanQk:
      return kernels::PagePooling::kMeanQk;
    case GroupPooling::kMaxQk:
      return kernels::PagePooling::kMaxQk;
    case GroupPooling::kMeanQ:
      return kernels::PagePooling::kMeanQ;
    case GroupPooling::kMaxQ:
      return kernels::PagePooling::kMaxQ;
  }
  KVT_CHECK(!"a pooling that no kernel knows");
  return {};
}

}  // namespace

// The best of the pages that are full and outside of sinks and window, for the queries q [group][head_dim].
RetrievedCache::Choice RetrievedCache::choose(uint32_t layer, const ArenaCall& call, uint32_t head,
                                              uint32_t pages, const float* q) const {
  std::vector<kernels::PageVectors> vectors;
  for (uint32_t page = first_candidate(); page < end_candidates(pages); ++page) {
    vectors.push_back(summaries_.vectors(arena_ ? call.homes[page] : call.pages[page].page, layer, head));
  }
  const float scale =
      spec_.scale == ScoreScale::kOne ? 1.0f : 1.0f / std::sqrt(static_cast<float>(llm_.head_dim));
  Choice out;
  out.scores.resize(vectors.size());
  kernels::score_pages_ref(pooling_of(spec_.pooling), scale, q, group(), llm_.head_dim, vectors,
                           out.scores.data());
  out.chosen = kernels::select_rows(out.scores, {}, shape_.selectable);
  for (uint32_t& page : out.chosen) page += first_candidate();
  return out;
}

void RetrievedCache::attend_chosen(uint32_t layer, const Row& row, const float* q, float* out) {
  recalls_[layer].heads += llm_.kv_heads;
  recalls_[layer].chosen += llm_.kv_heads * shape_.selectable;
  if (arena_) {
    recall_and_read(layer, row, q, out);
  } else {
    read_everything_on_gpu(layer, row, q, out);
  }
}

// Quest: every page is where it always was.
void RetrievedCache::read_everything_on_gpu(uint32_t layer, const Row& row, const float* q, float* out) {
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    const float* const own = q + uint64_t{h} * group() * llm_.head_dim;
    const Choice choice = choose(layer, *row.call, h, pages_of(row.position + 1), own);
    read_head(layer, row, h, choice.chosen, false, q, out);
  }
}

// FreeKV; and ArkVale, which is FreeKV when every head is corrected.
void RetrievedCache::recall_and_read(uint32_t layer, const Row& row, const float* q, float* out) {
  ArenaLayer& own = row.call->layers[layer];
  streams_.wait(row.id, layer);
  if (own.heads.empty()) outgrow(layer, row.call);
  const uint32_t pages = pages_of(row.position + 1);
  // The first step that chooses trusts nothing that was chosen before.
  const bool trusts = spec_.speculation && own.chosen;
  const std::vector<uint8_t> turned =
      trusts ? turned_heads(own, q) : std::vector<uint8_t>(llm_.kv_heads, uint8_t{1});
  const bool any = std::find(turned.begin(), turned.end(), 1) != turned.end();
  std::vector<Choice> choices(llm_.kv_heads);
  const auto choose_all = [&] {
    for (uint32_t h = 0; h < llm_.kv_heads; ++h)
      choices[h] = choose(layer, *row.call, h, pages, q + uint64_t{h} * group() * llm_.head_dim);
  };
  if (any) choose_all();
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    if (turned[h] != 0) recall(layer, row, h, choices[h], true);
    recalls_[layer].corrected += trusts ? turned[h] : 0;
  }
  streams_.wait(row.id, layer);
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    std::vector<uint32_t> held = own.heads[h].held;
    std::sort(held.begin(), held.end());
    read_head(layer, row, h, held, trusts && turned[h] != 0, q, out);
  }
  own.chosen = true;
  if (!spec_.speculation) return;
  if (!any) choose_all();
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    if (turned[h] == 0) recall(layer, row, h, choices[h], false);
  }
}

// Heads whose queries are less alike than tau to those that chose what they hold. Not a number is unlike.
std::vector<uint8_t> RetrievedCache::turned_heads(const ArenaLayer& layer, const float* q) const {
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

// Asks for what the head lacks, and says so in the step's outcome.
void RetrievedCache::recall(uint32_t layer, const Row& row, uint32_t head, const Choice& choice,
                            bool before) {
  HeadArena& slots = row.call->layers[layer].heads[head];
  const std::vector<kernels::SlotChange> changes =
      kernels::replace_slots_ref(choice.chosen, choice.scores, first_candidate(), slots.held);
  const auto pages = static_cast<uint32_t>(changes.size());
  (before ? recalls_[layer].blocking : recalls_[layer].background) += pages;
  if (options_.witness != nullptr) options_.witness->recalls(head_at(row, layer, head), before, pages);
  if (row.call->preempted && !before) return;
  RecallTask task{row.id, layer, head, {}};
  for (const kernels::SlotChange& change : changes) {
    task.moves.push_back({row.call->homes[change.page], row.call->pages[slots.slots[change.slot]].page});
  }
  streams_.ask(std::move(task));
}

// Sinks, what is chosen, what is kept whatever the query, and the window, in order of position.
void RetrievedCache::read_head(uint32_t layer, const Row& row, uint32_t head,
                               std::span<const uint32_t> chosen, bool corrected, const float* q, float* out) {
  const ArenaCall& call = *row.call;
  const uint32_t pages = pages_of(row.position + 1);
  std::vector<uint32_t> numbers;
  for (uint32_t page = 0; page < shape_.sinks; ++page) numbers.push_back(page);
  numbers.insert(numbers.end(), chosen.begin(), chosen.end());
  const HeadArena none;
  const HeadArena& slots = arena_ ? call.layers[layer].heads[head] : none;
  numbers.insert(numbers.end(), slots.extra.begin(), slots.extra.end());
  std::sort(numbers.begin(), numbers.end());
  for (uint32_t page = pages - shape_.window; page < pages; ++page) numbers.push_back(page);
  const auto place = [&](uint32_t page) {
    if (!arena_) return page;
    for (size_t i = 0; i < slots.held.size(); ++i) {
      if (slots.held[i] == page) return slots.slots[i];
    }
    for (size_t i = 0; i < slots.extra.size(); ++i) {
      if (slots.extra[i] == page) return slots.extra_slots[i];
    }
    return shape_.slot_of(page);
  };
  std::vector<kernels::ReadRun> runs;
  for (const uint32_t page : numbers) runs.push_back(call.pages.at(place(page)));
  const uint32_t unfilled = pages * memory_.page_tokens - (row.position + 1);
  const auto cells = static_cast<uint32_t>(numbers.size()) * memory_.page_tokens - unfilled;
  const RetrievalWitness::Read read{head_at(row, layer, head), runs, numbers, cells, corrected};
  if (options_.witness != nullptr) options_.witness->attends(read);
  streams_.pass_time();
  attend_runs(layer, row, head, runs, cells, q, out);
  if (options_.witness != nullptr)
    options_.witness->attended(read, out + uint64_t{head} * group() * llm_.head_dim);
}

}  // namespace kvtwin::cpu
