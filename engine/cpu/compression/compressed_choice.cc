// CompressedCache: Quest among retained pages (docs/design/methods/freekv.md#page-scores,
// docs/design/methods/composition.md#pairs). A decode whose head has more retained pages than the budget
// reads the first ones, the last ones and the best of the others, by summaries of their keys.
//
// Pages are those of the head's group, in order; every head summarises and scores its own column of them. A
// page is summarised when it is full and its KV entries no longer move, from its keys before packing. KV
// entries that are dropped later do not change the summary, which remains a bound.

#include "engine/common/retrieval/head_choice.h"
#include "engine/common/retrieval/page_pooling.h"
#include "engine/cpu/compression/compressed_cache.h"
#include "kernels/select/page_summary.h"

namespace kvtwin::cpu {

// The pages in which a head has retained KV entries.
std::vector<CompressedCache::PageEntries> CompressedCache::pages_left(const RequestTable& kv_entries,
                                                                      uint32_t head) const {
  const uint32_t page_tokens = memory_.page_tokens, all = kv_entries.kv_entries(head);
  const std::span<const uint32_t> positions = kv_entries.positions(head);
  std::vector<PageEntries> out;
  for (uint32_t kv_entry = 0; kv_entry < all; ++kv_entry) {
    const uint32_t index =
        (shape_.slot_retention == SlotRetention::kInPlace ? positions[kv_entry] : kv_entry) / page_tokens;
    if (out.empty() || out.back().index != index) out.push_back({index, kv_entry, 0});
    ++out.back().count;
  }
  return out;
}

bool CompressedCache::may_choose(const Work& work, uint32_t head) const {
  return chooses_ && !work.rows.prompt && head / llm_.kv_heads >= retrieval_.layers_dense;
}

const float* CompressedCache::summary_of(const Work& work, uint32_t head, uint32_t index) {
  const uint32_t dim = llm_.head_dim;
  std::vector<float>& of_head = work.request->summaries[head];
  const uint32_t group = shape_.groups.group_of(head);
  for (auto next = static_cast<uint32_t>(of_head.size() / (2 * dim)); next <= index; ++next) {
    of_head.resize(of_head.size() + size_t{2} * dim);
    const PageId page = work.request->kv_entries.pages(group)[next];
    if (page == kNoPage) continue;  // all of its KV entries were dropped
    float* const high = of_head.data() + size_t{next} * 2 * dim;
    kernels::summarise_page_ref(kind_of(retrieval_.summary), store_->exact_keys(head, raw(page)),
                                memory_.page_tokens, dim, high, high + dim);
  }
  return of_head.data() + size_t{index} * 2 * dim;
}

// Sets the reads of the decoded row in one head, for the queries q [group][head_dim]. False: it reads all.
bool CompressedCache::chosen_reads(const Work& work, uint32_t head, const float* q) {
  const std::vector<PageEntries> pages = pages_left(work.request->kv_entries, head);
  const ResidentShape budget(retrieval_, memory_.page_tokens);
  if (pages.size() <= budget.slots) return false;
  const auto end = static_cast<uint32_t>(pages.size()) - budget.window;
  for (uint32_t i = budget.sinks; i < end; ++i) summary_of(work, head, pages[i].index);
  const PageCandidates candidates{budget.sinks, end, {}, [&](uint32_t i) {
                                    // Summarised above, so the vector of summaries does not move.
                                    const float* const high = summary_of(work, head, pages[i].index);
                                    return kernels::PageVectors{high, high + llm_.head_dim};
                                  }};
  std::vector<PageEntries> read(pages.begin(), pages.begin() + budget.sinks);
  const HeadChoice choice = choose_pages(retrieval_, llm_, budget.selectable, candidates, q, &nan_scores_);
  for (const uint32_t i : choice.chosen) read.push_back(pages[i]);
  read.insert(read.end(), pages.begin() + static_cast<ptrdiff_t>(end), pages.end());
  LayerRecall& recall = recalls_[head / llm_.kv_heads];
  ++recall.heads;
  recall.chosen += budget.selectable;
  read_pages(work, head, read);
  return true;
}

void CompressedCache::read_pages(const Work& work, uint32_t head, std::span<const PageEntries> pages) {
  const RequestTable& kv_entries = work.request->kv_entries;
  const uint32_t kv_heads = llm_.kv_heads, group = shape_.groups.group_of(head);
  std::vector<kernels::ReadRun>& runs = runs_.emplace_back();
  std::vector<uint32_t> positions;
  for (const PageEntries& page : pages) {
    for (uint32_t kv_entry = page.first; kv_entry < page.first + page.count; ++kv_entry) {
      append_place(kv_entries.place(group, kv_entry), &runs);
      positions.push_back(kv_entries.positions(head)[kv_entry]);
    }
  }
  reads_.push_back({runs, static_cast<uint32_t>(positions.size())});
  if (config_.witness == nullptr) return;
  config_.witness->attends(
      {{work.rows.request, head / kv_heads, head % kv_heads, work.rows.context}, runs, positions, false});
}

}  // namespace kvtwin::cpu
