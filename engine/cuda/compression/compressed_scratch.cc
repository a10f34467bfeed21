// What a CompressedCache takes before the first step: memory taken within a step costs it up to 25 ms, and
// graphs of a list's old place are of no use in its new one. What a step needs beyond it is taken then.

#include <algorithm>
#include <map>
#include <utility>

#include "engine/cuda/compression/compressed_cache.h"
#include "engine/cuda/device/cuda_check.h"
#include "engine/methods/outcome_rules.h"

namespace kvtwin::cuda {
namespace {

// Of each request and head in lists: its decode or chunk, its cells, what is scored, selected and moved.
constexpr uint64_t kHeadBytes = 256;
constexpr uint64_t kTableMin = 8;  // numbers of a table of DeviceTables

}  // namespace

// Heads of a layer that share a column have scratch pages of their own, and so tables of their own.
Result<void> CompressedCache::make_tables() {
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> known;  // by group and lane
  for (uint32_t head = 0; head < llm_.layers * llm_.kv_heads; ++head) {
    const auto [of, fresh] = known.try_emplace({shape_.groups.group_of(head), kv_entries_.lane_of(head)},
                                               static_cast<uint32_t>(table_heads_.size()));
    if (fresh) table_heads_.push_back(head);
    head_cells_.push_back({of->second, shape_.groups.column_of(head)});
  }
  const uint64_t slots = uint64_t{memory_.rows_max} * head_cells_.size() * sizeof(AppendSlot);
  grow(&slots_, Buffer::Kind::kDevice, slots, "slots of a step's rows");
  const uint64_t bytes = head_cells_.size() * sizeof(HeadCells);
  grow(&head_cells_on_, Buffer::Kind::kDevice, bytes, "tables of heads");
  const CoreConfig& core = options_.config.core;
  uint64_t numbers = memory_.pages_gpu;
  if (shape_.slot_retention == SlotRetention::kInPlace) numbers += numbers * memory_.page_tokens;
  // Blocks are up to twice as long as their tables. A step copies tables of staged rows, with scratch pages.
  const uint64_t least = uint64_t{core.requests_max} * shape_.groups.groups() * kTableMin;
  tables_ = DeviceTables(2 * numbers + least, numbers + least);
  return check(cudaMemcpy(head_cells_on_.as<void>(), head_cells_.data(), bytes, cudaMemcpyHostToDevice),
               "copy of heads' tables", "", bytes);
}

// The most KV entries of a head that a compression ranks, while heads have equally many.
uint32_t CompressedCache::ranked_max() const {
  const uint64_t pages = memory_.pages_gpu / shape_.groups.groups();
  uint64_t out = pages * memory_.page_tokens + memory_.rows_max;
  for (const uint32_t limit : {options_.config.core.context_tokens_max, llm_.context_window})
    if (limit > 0) out = std::min<uint64_t>(out, limit);
  return static_cast<uint32_t>(out);
}

// Room for one layer of the longest request.
void CompressedCache::reserve_dequantized() {
  PackedHeads& heads = kv_entries_.packed_heads();
  heads.begin_layer();
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) heads.open(ranked_max());
  heads.grow_dequantized();
}

void CompressedCache::reserve() {
  const uint32_t heads = llm_.layers * llm_.kv_heads, kv_entries = ranked_max();
  const uint32_t requests = std::min(options_.config.core.requests_max, memory_.rows_max);
  reserve_lists(requests, kv_entries);
  scores_->reserve_scores(heads, kv_entries);
  scores_->reserve_queries();
  AttentionScoreArgs attention_scores = attention_score_args(nullptr);
  attention_scores.count = llm_.kv_heads, attention_scores.rows_max = kv_entries,
  attention_scores.stride = kv_entries;
  attention_scores.queries_max =
      captured_queries(options_.config.core.policies.scorer, options_.config.core.policies.scorer_spec);
  if (scores_->score_heads()) scores_->reserve_attention_scores(attention_scores);
  if (intents_ != nullptr && intents_->on_device()) intents_->reserve(kv_entries);
  // Counts that depend on scores are the host's.
  const CountRule rule(options_.config.core.policies, memory_.page_tokens);
  if (rule.counted_by() != CountedBy::kNothing)
    grow(&counted_host_, Buffer::Kind::kPinned, uint64_t{heads} * kv_entries * sizeof(float), "scores");
  const uint64_t rows =
      std::min<uint64_t>(uint64_t{heads} * kv_entries,
                         uint64_t{memory_.pages_gpu} * memory_.page_tokens * kv_entries_.columns());
  grow(&retained_, Buffer::Kind::kDevice, rows * sizeof(uint32_t), "retained rows");
  grow(&retained_host_, Buffer::Kind::kPinned, rows * sizeof(uint32_t), "retained rows");
}

void CompressedCache::reserve_lists(uint32_t requests, uint32_t kv_entries) {
  const uint64_t heads = uint64_t{llm_.layers} * llm_.kv_heads, rows = memory_.rows_max;
  const uint64_t tables = tables_.numbers().capacity() * sizeof(uint32_t);
  const uint64_t ranked =
      heads * (kHeadBytes + (scores_->asks_positions() ? kv_entries : 0) * sizeof(uint32_t));
  uint64_t each = sizeof(RowOf) + sizeof(uint32_t);
  const bool observes = scores_->observes({.tokens = 1, .prompt = true, .samples = true});
  if (observes) each += heads * sizeof(uint32_t);  // how much each row sees
  if (kv_entries_.packed()) each += heads * (sizeof(AppendSlot) + sizeof(KvEntrySpan));
  const bool dropped_slots = shape_.slot_retention == SlotRetention::kInPlace && memory_.page_tokens > 1;
  // Rows whose KV entries no table of pages names read them one by one.
  if (shape_.tables.rings > 0 || dropped_slots)
    grow(&run_rows_on_, Buffer::Kind::kDevice, rows * heads * sizeof(QueryRow), "rows of chunks");
  lists_.reserve(rows * each + requests * heads * kHeadBytes + tables / 2 + ranked);
  rank_lists_.reserve(tables / 2 + ranked);
  choice_lists_.reserve(heads * kHeadBytes);
}

}  // namespace kvtwin::cuda
