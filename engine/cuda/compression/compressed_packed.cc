// Packed KV entries: the entries that a step packs, and those that it unpacks into the dequantized pages of a
// layer, which all rows but fused decodes read (packed_heads.h). As in cpu::CompressedCache, rows of a prompt
// read one another exactly and their past as stored; a decoded row is packed before it is read.

#include <algorithm>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/compression/compressed_cache.h"
#include "engine/cuda/device/cuda_check.h"
#include "engine/methods/traits.h"

namespace kvtwin::cuda {

// Index of a row's own KV entry among those that a Read lists.
uint32_t CompressedCache::cell_of(const Work& work, const Read& read, uint32_t row) const {
  if (!read.listed && read.slot != UINT32_MAX) return read.slot;
  if (!read.listed || read.sinks == UINT32_MAX) return read.before + row;
  const uint32_t position = work.rows.context + row;
  return position < read.sinks ? position : read.sinks + position - read.from;
}

// Number of KV entries that the rows read or write.
uint32_t CompressedCache::kv_entries_of(const Work& work, const Read& read) const {
  if (read.sinks == UINT32_MAX) return read.before + work.rows.tokens;
  const uint32_t end = work.rows.context + work.rows.tokens;
  return std::min(read.sinks, end) + (end > read.from ? end - read.from : 0);
}

bool CompressedCache::is_fused(const Work& work, const Read& read) const {
  return kv_entries_.packed_heads().fused() && !work.rows.prompt && work.rows.tokens == 1 &&
         !work.rows.staged && !read.listed;
}

// Adds KV entries [from, to) of a Read, whose KV entry 0 is dequantized KV entry `base`.
void CompressedCache::add_spans(const Read& read, uint32_t column, uint32_t from, uint32_t to, uint32_t base,
                                bool packs, std::vector<KvEntrySpan>* spans) const {
  const uint32_t page = memory_.page_tokens;
  const auto stored = [&](uint32_t kv_entry) {
    const uint32_t id = read.listed ? tables_[read.table + kv_entry]
                                    : tables_[read.table + kv_entry / page] * page + kv_entry % page;
    return (id / page * kv_entries_.columns() + column) * page + id % page;
  };
  for (uint32_t at = from; at < to;) {
    const uint32_t first = stored(at);
    uint32_t count = 1;
    while (at + count < to && (first + count) % page != 0 && stored(at + count) == first + count) ++count;
    if (packs) {
      spans->push_back({base + at, first, count, kBothSides});
    } else {
      spans->push_back({first, base + at, count, kBothSides});
    }
    at += count;
  }
}

void CompressedCache::add_dequantized(uint32_t layer, uint32_t kv_head, Work* work, const Read& read) {
  PackedHeads& heads = kv_entries_.packed_heads();
  const uint32_t head = layer * llm_.kv_heads + kv_head, column = shape_.groups.column_of(head);
  const uint32_t all = kv_entries_of(*work, read), tokens = work->rows.tokens, context = work->rows.context;
  const bool fused = is_fused(*work, read);
  // A fused decode unpacks only its own row. `base` may then be below 0; it wraps around.
  const uint32_t base = fused ? heads.open(1) - cell_of(*work, read, 0) : heads.open(all);
  work->dequantized[head] = base;
  for (uint32_t i = 0; i < tokens; ++i) {
    const uint32_t kv_entry = cell_of(*work, read, i);
    dequantized_slots_[(size_t{layer} * padded_ + work->rows.row + i) * llm_.kv_heads + kv_head] =
        PackedHeads::slot(base + kv_entry);
  }
  KVT_CHECK(pages_ == nullptr || (work->rows.prompt ? work->rows.staged : fused));
  if (pages_ != nullptr && !work->rows.prompt) {
    pages_->add_decode(head_pages(*work, head), read.before, &work->request->tail);
  }
  for (uint32_t i = 0; !probing_.has_value() && i < tokens;) {  // rows of rings may not be consecutive
    const uint32_t first = cell_of(*work, read, i);
    uint32_t count = 1;
    while (i + count < tokens && cell_of(*work, read, i + count) == first + count) ++count;
    add_spans(read, column, first, first + count, base, true, &packs_);
    i += count;
  }
  if (fused) return;
  if (!work->rows.prompt) return add_spans(read, column, 0, all, base, false, &unpacks_);
  if (read.sinks == UINT32_MAX) return add_spans(read, column, 0, read.before, base, false, &unpacks_);
  add_spans(read, column, 0, std::min(read.sinks, context), base, false, &unpacks_);
  if (context > read.from)
    add_spans(read, column, read.sinks, read.sinks + context - read.from, base, false, &unpacks_);
}

void CompressedCache::add_dequantized_rows(uint32_t head, uint32_t column, Work* work, const Read& read) {
  const cpu::StepRows& rows = work->rows;
  const uint32_t group = llm_.query_heads / llm_.kv_heads, kv_head = head % llm_.kv_heads;
  const uint32_t base = work->dequantized.at(head), q_row = rows.row * llm_.query_heads + kv_head * group;
  if (is_fused(*work, read)) {
    PackedSequence sequence;
    const PackedPart part = kv_entries_.packed_heads().part();
    if (pages_ != nullptr && pages_->chooses(head / llm_.kv_heads, read.before + 1))
      return pages_->add_choice(head_pages(*work, head), rows.row, read.before + 1, part, &tables_.numbers());
    sequence.q_row = q_row, sequence.column = column;
    sequence.table[part] = read.table, sequence.tokens[part] = read.before + 1;
    fused_.push_back(sequence);
    return;
  }
  if (rows.tokens == 1) {
    decodes_.push_back({q_row, PackedHeads::table(base), kv_entries_of(*work, read), 0});
    return;
  }
  if (read.sinks == UINT32_MAX) {
    chunks_.push_back({rows.row, rows.tokens, kv_head, read.before, PackedHeads::table(base), 0});
    return;
  }
  add_run(rows, read, base, kv_head, 0);
}

Result<void> CompressedCache::make_pages() {
  const PolicySet& set = options_.config.core.policies;
  if (retrieval_traits(set.retrieval).reads_everything()) return {};
  RetainedPages::Shape shape{memory_.pages_gpu, memory_.pages_host, kv_entries_.columns(),
                             llm_.layers * llm_.kv_heads};
  shape.tail_entries = set.budget_spec.sinks + set.budget_spec.window;
  Result<std::unique_ptr<RetainedPages>> made = RetainedPages::make(&llm_, set.retrieval_spec, shape);
  if (!made) return tl::unexpected<Error>(made.error());
  pages_ = std::move(*made);
  return {};
}

RetainedPages::Head CompressedCache::head_pages(const Work& work, uint32_t head) const {
  return {head, work.request->kv_entries.pages(shape_.groups.group_of(head)), shape_.groups.column_of(head),
          work.dequantized.at(head)};
}

// The next compression ranks this window again, or everything if nothing was ranked (Retention::carried).
void CompressedCache::add_cut(const RankBatch& batch, uint32_t index) {
  const RankBatch::Head& head = batch.heads[index];
  Work& work = work_[head.work];
  const BudgetSpec& spec = options_.config.core.policies.budget_spec;
  CompactHead move = batch.compacts[index];
  move.source = batch.kv_entries[index], move.target_table = move.source.table;
  const uint32_t kv_entries = head.first + move.count;
  const bool ranked = work.compression->end > spec.sinks + spec.window;
  pages_->add_cut(head_pages(work, head.head), move, past(work, head.head), kv_entries,
                  ranked ? kv_entries - std::min(kv_entries, spec.window) : 0, &work.request->tail);
}

void CompressedCache::convert_rows(uint32_t layer, const StepStream& on) {
  const LayerLists& lists = layers_[layer];
  const PackedHeads& heads = kv_entries_.packed_heads();
  // Packing comes first, so that requests that reuse entries filled in this step can unpack them.
  heads.pack(lists_.at(at_.packs) + lists.packs.first, lists.packs.count, on.stream);
  heads.unpack(lists_.at(at_.unpacks) + lists.unpacks.first, lists.unpacks.count, on.stream);
}

// Opens the heads of a compression that runs after the step, layer by layer.
void CompressedCache::open_ranked(Work* work) {
  rank_unpacks_.clear(), rank_parts_.assign(llm_.layers, {});
  PackedHeads& heads = kv_entries_.packed_heads();
  for (uint32_t layer = 0; layer < llm_.layers; ++layer) {
    heads.begin_layer();
    rank_parts_[layer].first = static_cast<uint32_t>(rank_unpacks_.size());
    for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
      const uint32_t head = layer * llm_.kv_heads + h,
                     kv_entries = work->request->kv_entries.kv_entries(head);
      const uint32_t base = heads.open(kv_entries);
      work->dequantized[head] = base;
      Read read = read_of(work, head);
      add_spans(read, shape_.groups.column_of(head), 0, kv_entries, base, false, &rank_unpacks_);
    }
    rank_parts_[layer].count = static_cast<uint32_t>(rank_unpacks_.size()) - rank_parts_[layer].first;
  }
  grow_dequantized();
}

void CompressedCache::unpack_ranked(uint32_t layer, const StepStream& on) const {
  if (!kv_entries_.packed()) return;
  const Part& part = rank_parts_[layer];
  kv_entries_.packed_heads().unpack(rank_lists_.at(rank_unpacks_at_) + part.first, part.count, on.stream);
}

// Attention's plans depend on the number of pages.
void CompressedCache::grow_dequantized() {
  if (!kv_entries_.packed_heads().grow_dequantized()) return;
  if (Result<void> ok = make_attention(); !ok) fail(ok.error().text());
}

Result<void> CompressedCache::make_attention() {
  RowAttentionShape shape{
      memory_.page_tokens, kv_entries_.columns(), kv_entries_.pages(), memory_.rows_max, true, llm_.layers};
  if (kv_entries_.packed())
    shape = {kDequantizedPage, 1, kv_entries_.packed_heads().dequantized_pages(), memory_.rows_max, true};
  Result<RowAttention> attention = RowAttention::make(&llm_, shape);
  if (!attention) return tl::unexpected<Error>(attention.error());
  attention_ = std::move(*attention);
  return {};
}

}  // namespace kvtwin::cuda
