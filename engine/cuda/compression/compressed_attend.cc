// What one layer of a step starts: entries of the step's list of operations, and which lists each takes.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/cuda/compression/compressed_cache.h"
#include "engine/cuda/cuda_forward.h"
#include "engine/cuda/device/cuda_check.h"
#include "kernels/attention/attention_rows.h"

namespace kvtwin::cuda {

// Decodes of all layers at once, where these have equally many and nothing else.
void CompressedCache::plan(const DeviceRows& rows, const StepStream& on) {
  const size_t each = layers_[0].decodes.count;
  planned_ = partition_ == nullptr && !kv_entries_.packed() && each > 0 && chunks_.empty() &&
             decodes_.size() == each * llm_.layers;
  for (uint32_t l = 0; l < llm_.layers; ++l) planned_ = planned_ && layers_[l].decodes.first == l * each;
  if (planned_) attention_.plan_layers(rows_of(0, rows), kv_entries_.pool(), on.stream);
}

DeviceRows CompressedCache::rows_of(uint32_t layer, const DeviceRows& rows) const {
  const LayerLists& lists = layers_[layer];
  DeviceRows mine = rows;
  mine.pages = tables_.on_device();
  mine.slots = slots_of(layer);
  mine.decodes = lists_.at(at_.decodes) + lists.decodes.first, mine.decodes_count = lists.decodes.count;
  mine.listed = listed_;
  mine.chunks = lists_.at(at_.chunks) + lists.chunks.first, mine.chunks_count = lists.chunks.count;
  mine.others = lists_.at(at_.others) + lists.others.first, mine.other_rows = lists.others.count;
  return mine;
}

// Of packed KV entries rows write and read the dequantized ones of a layer, which have tables of their own.
DeviceRows CompressedCache::read_rows(uint32_t layer, const DeviceRows& rows) const {
  DeviceRows mine = rows_of(layer, rows);
  if (!kv_entries_.packed()) return mine;
  mine.pages = kv_entries_.packed_heads().iota();
  mine.slots = lists_.at(at_.dequantized_slots) + size_t{layer} * slot_rows_.size() * llm_.kv_heads;
  return mine;
}

StepListSpec CompressedCache::listed(uint32_t layer) const {
  const LayerLists& lists = layers_[layer];
  const bool rows = lists.others.count > 0 || lists.runs.count > 0;
  const bool packed = lists.fused.count > 0 || (pages_ != nullptr && pages_->heads_that_chose(layer) > 0);
  return {llm_.layers,
          false,
          {.rows = {lists.decodes.count > 0, lists.chunks.count > 0, rows},
           .uploads = 2,  // the step's rows, and what is read of them
           .packed_decodes = packed},
          listed_compression(layer)};
}

ListedCompression CompressedCache::listed_compression(uint32_t layer) const {
  const LayerLists& lists = layers_[layer];
  ListedCompression out;
  out.plans_layers = !planned_, out.copies = lists.copies.count > 0;
  out.chooses = pages_ != nullptr, out.state = scores_->has_scorer_state();
  out.probes = probing_.has_value();
  out.captures = !out.probes && std::any_of(work_.begin(), work_.end(),
                                            [&](const Work& work) { return !reads_alone(work.rows); });
  out.in_layers = lists.staged.count() > 0, out.wraps = lists.holds.count > 0;
  return out;
}

void CompressedCache::attend(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
                             const StepStream& on) {
  const StepList list = list_attention(listed(layer), layer);
  for (const ListedOperation& one : list.operations()) {
    on.timer->begin(one);
    start(one, tensors, rows, on);
  }
}

void CompressedCache::start(const ListedOperation& one, const LayerRows& tensors, const DeviceRows& rows,
                            const StepStream& on) {
  const uint32_t layer = one.layer;
  const LayerLists& lists = layers_[layer];
  switch (one.kind) {
    case Operation::kPlan:
      return attention_.plan(
          read_rows(layer, rows), kv_entries_.pool(), on.stream,
          partition_ == nullptr ? DecodePartition::Splits() : partition_->of_layer(layer, lists_));
    case Operation::kAppend:
      return append(layer, tensors, rows, on);
    case Operation::kPageScore:
      pages_->keep_rows(layer, lists_, kv_entries_.packed_heads(), on.stream);
      return pages_->choose(layer, lists_, tables_.on_device(), tensors.q, on.stream);
    case Operation::kCapture:
      if (one.part == ListPart::kQueries) return observe(layer, tensors, on);
      return scores_->update_state(layer, tensors, rows_of(layer, rows), access_.forward->matmul(),
                                   on.stream);
    case Operation::kPackedAttention:
      return attend_packed(layer, tensors, on);
    case Operation::kScore:
      return probing_.has_value() ? score_probes(layer, tensors, on) : score_staged(layer, tensors, on);
    case Operation::kSelect:
      return select(lists.staged, lists_, scores_->scores(), on);
    case Operation::kMove:
      if (one.part == ListPart::kShared) return move(at_.copies, lists.copies, on);
      if (one.part == ListPart::kRing) return move(at_.holds, lists.holds, on);
      return move_staged(layer, on);
    default:
      if (one.kind != Operation::kRowAttention || lists.others.count > 0)
        attention_.start(one, tensors, read_rows(layer, rows), kv_entries_.pool(), on.stream);
      if (one.kind == Operation::kRowAttention && lists.runs.count > 0) attend_runs(layer, tensors, on);
  }
}

void CompressedCache::append(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
                             const StepStream& on) {
  if (kv_entries_.packed() && memory_.poison) kv_entries_.packed_heads().poison_dequantized(on.stream);
  attention_.append(tensors, read_rows(layer, rows), kv_entries_.pool(), on.stream);
  if (kv_entries_.packed()) convert_rows(layer, on);
}

// KV entries that move as they are: rows of a list that counts up.
void CompressedCache::move(const ListAt<CompactHead>& list, const Part& part, const StepStream& on) {
  const CompactHead* const heads = lists_.at(list) + part.first;
  if (kv_entries_.packed()) {
    return kv_entries_.packed_heads().move(tables_.on_device(), kv_entries_.scorer_state(), heads,
                                           lists_.at(at_.iota), part.count, on.stream);
  }
  CompactArgs args{kv_entries_.kv_entries(tables_.on_device(), false), kv_entries_.pool(),
                   kv_entries_.scorer_state(), heads, lists_.at(at_.iota)};
  args.count = part.count;
  must(compact_entries(args, on.stream), "compact_entries", 0,
       [&] { return fmt::format("{} heads", part.count); });
}

void CompressedCache::attend_packed(uint32_t layer, const LayerRows& tensors, const StepStream& on) {
  const Part& fused = layers_[layer].fused;
  if (fused.count > 0) {
    kv_entries_.packed_heads().attend(tables_.on_device(), lists_.at(at_.fused) + fused.first, fused.count,
                                      kv_entries_.columns(), tensors, on.stream);
  }
  if (pages_ != nullptr)
    pages_->attend(layer, lists_, tables_.on_device(), kv_entries_.packed_heads(), tensors, on.stream);
}

// Chunks whose KV entries no table of pages names: dropped slots, and rings that have wrapped.
void CompressedCache::attend_runs(uint32_t layer, const LayerRows& tensors, const StepStream& on) {
  const Part& runs = layers_[layer].runs;
  AttentionRowsArgs args;
  const KvEntryPool kv_entries = kv_entries_.kv_entries(tables_.on_device(), true);
  args.pool = kv_entries.pool, args.pages = kv_entries.pages,
  args.list = run_rows_on_.as<QueryRow>() + runs.first;
  args.q = tensors.q, args.out = tensors.out;
  args.scale = 1 / std::sqrt(static_cast<float>(llm_.head_dim));
  args.rows = runs.count, args.query_heads = llm_.query_heads, args.kv_heads = llm_.kv_heads;
  args.head_dim = llm_.head_dim, args.page_tokens = kv_entries.page_tokens;
  args.heads_per_page = kv_entries.heads_per_page;
  args.by_head = args.listed = args.runs = true;
  must(attention_rows(args, on.stream), "attention_rows", 0,
       [&] { return fmt::format("{} rows and heads of chunks, layer {}", runs.count, layer); });
}

// Scorer state that grows with attention scores, and query rows that are needed later.
void CompressedCache::observe(uint32_t layer, const LayerRows& tensors, const StepStream& on) {
  const LayerLists& lists = layers_[layer];
  AttentionScoreArgs attention_scores = attention_score_args(tensors.q);
  const bool stamps =
      scores_->spec().scorer->source == kernels::ScoreSource::kStamps;  // each at its own request's time
  uint32_t first = lists.score_heads.first;
  for (size_t i = 0; i < work_.size();) {
    Work& work = work_[i++];
    const cpu::StepRows& rows = work.rows;
    if (!scores_->observes(rows)) continue;
    attention_scores.kv_entries.listed = read_of(&work, layer * llm_.kv_heads).listed;
    // Decodes of all requests are scored together. A chunk is scored alone: its kernels distribute its query
    // rows out to the SMs by how many there are, and how many KV entries (attention_score_grid.h).
    attention_scores.queries_max = stamps ? 1 : rows.tokens, attention_scores.count = llm_.kv_heads;
    for (; !stamps && rows.tokens == 1 && i < work_.size() && work_[i].rows.tokens == 1 &&
           scores_->observes(work_[i].rows);
         ++i)
      attention_scores.count += llm_.kv_heads;
    attention_scores.rows_max = 0;
    for (uint32_t head = first; head < first + attention_scores.count; ++head)
      attention_scores.rows_max = std::max(attention_scores.rows_max, score_heads_[head].kv_entries.rows);
    attention_scores.heads = lists_.at(at_.score_heads) + first;
    scores_->observe_state(attention_scores, rows.context + rows.tokens, on.stream);
    first += attention_scores.count;
  }
  for (Work& work : work_) scores_->capture(layer, work.rows, tensors.q, &work.request->captured, on.stream);
}

AttentionScoreArgs CompressedCache::attention_score_args(const __nv_bfloat16* q) const {
  AttentionScoreArgs attention_scores;
  attention_scores.kv_entries = kv_entries_.kv_entries(tables_.on_device(), false);
  attention_scores.heads = lists_.at(at_.score_heads), attention_scores.visible = lists_.at(at_.visible);
  attention_scores.q = q, attention_scores.q_stride = llm_.query_heads * llm_.head_dim;
  attention_scores.scale = 1 / std::sqrt(static_cast<float>(llm_.head_dim));
  attention_scores.group = llm_.query_heads / llm_.kv_heads;
  attention_scores.rows_max = score_rows_max_, attention_scores.queries_max = score_queries_max_,
  attention_scores.stride = score_rows_max_;
  return attention_scores;
}

}  // namespace kvtwin::cuda
