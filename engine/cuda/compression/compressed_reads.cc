// Which KV entries a step's rows write and read, head by head, as lists for the device.

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "engine/base/check.h"
#include "engine/cuda/compression/compressed_cache.h"
#include "engine/cuda/device/cuda_check.h"

namespace kvtwin::cuda {

// Tables begin anew, and with them all that names a place in one.
void CompressedCache::clear_tables() {
  tables_.clear_step();
  for (Work& work : work_)
    work.reads.assign(table_heads_.size(), {}), work.pages.assign(shape_.groups.groups(), {}),
        work.held.clear(), work.dequantized.clear();
}

void CompressedCache::clear_lists() {
  clear_tables();
  for (LayerLists& lists : layers_) lists = {};
  visible_.clear(), iota_.clear(), slot_rows_.clear(), slot_cells_.clear();
  decodes_.clear(), chunks_.clear(), others_.clear(), runs_.clear(), copies_.clear(), holds_.clear(),
      score_heads_.clear();
  dequantized_slots_.clear(), packs_.clear(), unpacks_.clear(), fused_.clear();
  if (pages_ != nullptr) pages_->clear();
  if (partition_ != nullptr) partition_->clear();
  retained_total_ = score_rows_max_ = score_queries_max_ = run_rows_ = 0;
  listed_ = false;
}

// `listed`: decodes read KV entries though no request has dropped slots.
void CompressedCache::write_lists(const StepStream& on, bool listed) {
  clear_lists();
  listed_ = listed;
  // Copies of the KV entries of one page, or of all rows of the step.
  iota_.resize(std::max(memory_.page_tokens, padded_));
  std::iota(iota_.begin(), iota_.end(), 0);
  for (const Work& work : work_) listed_ = listed_ || (work.rows.tokens == 1 && has_dropped_slots(work));
  for (uint32_t l = 0; l < llm_.layers; ++l) {
    LayerLists& lists = layers_[l];
    const auto size = [](const auto& list) { return static_cast<uint32_t>(list.size()); };
    if (kv_entries_.packed()) {
      dequantized_slots_.resize(dequantized_slots_.size() + size_t{padded_} * llm_.kv_heads);
      kv_entries_.packed_heads().begin_layer();
    }
    if (pages_ != nullptr) pages_->begin_layer();
    lists.decodes.first = size(decodes_), lists.chunks.first = size(chunks_);
    lists.others.first = size(others_), lists.runs.first = run_rows_, lists.copies.first = size(copies_);
    lists.holds.first = size(holds_), lists.score_heads.first = size(score_heads_);
    lists.packs.first = size(packs_), lists.unpacks.first = size(unpacks_);
    lists.fused.first = size(fused_);
    for (Work& work : work_) {
      for (uint32_t h = 0; h < llm_.kv_heads && work.rows.tokens > 0; ++h) add_head(l, h, &work);
    }
    for (uint32_t row = rows_; row < padded_; ++row) {
      for (uint32_t h = 0; h < llm_.kv_heads; ++h)
        decodes_.push_back({row * llm_.query_heads + h * (llm_.query_heads / llm_.kv_heads), 0, 0, 0});
    }
    lists.decodes.count = size(decodes_) - lists.decodes.first;
    lists.chunks.count = size(chunks_) - lists.chunks.first;
    lists.others.count = size(others_) - lists.others.first;
    lists.runs.count = run_rows_ - lists.runs.first;
    lists.copies.count = size(copies_) - lists.copies.first;
    lists.holds.count = size(holds_) - lists.holds.first;
    lists.score_heads.count = size(score_heads_) - lists.score_heads.first;
    lists.packs.count = size(packs_) - lists.packs.first;
    lists.unpacks.count = size(unpacks_) - lists.unpacks.first;
    lists.fused.count = size(fused_) - lists.fused.first;
    if (partition_ != nullptr) partition_->end_layer();
  }
  if (kv_entries_.packed()) grow_dequantized();
  if (partition_ != nullptr) attention_.reserve_splits(rows_ * llm_.kv_heads, partition_->splits_max());
  plan_staged();
  add_cells();
  send_lists(on);
}

// Where the step's rows go: a few numbers for each request and table, from which the device finds the slot of
// each row and head.
void CompressedCache::add_cells() {
  slot_rows_.assign(padded_, {});
  for (Work& work : work_) {
    if (work.rows.tokens == 0) continue;
    const auto first = static_cast<uint32_t>(slot_cells_.size());
    for (const uint32_t head : table_heads_) slot_cells_.push_back(cells_of(work, read_of(&work, head)));
    for (uint32_t i = 0; i < work.rows.tokens; ++i) slot_rows_[work.rows.row + i] = {first, i};
  }
}

RowCells CompressedCache::cells_of(const Work& work, const Read& read) const {
  RowCells out;
  out.table = read.table, out.listed = read.listed ? 1 : 0;
  out.first = out.second = cell_of(work, read, 0);
  out.split = work.rows.tokens;
  if (!read.listed || read.sinks == UINT32_MAX || work.rows.context >= read.sinks) return out;
  out.split = std::min(work.rows.tokens, read.sinks - work.rows.context);
  out.second = read.sinks + work.rows.context - read.from;
  return out;
}

AppendSlot* CompressedCache::slots_of(uint32_t layer) const {
  return slots_.as<AppendSlot>() + size_t{layer} * slot_rows_.size() * llm_.kv_heads;
}

void CompressedCache::send_lists(const StepStream& on) {
  lists_.clear();
  // Decodes first: where they lie is the same in all steps that repeat.
  at_.decodes = lists_.add(decodes_);
  at_.slot_rows = lists_.add(slot_rows_), at_.slot_cells = lists_.add(slot_cells_);
  at_.iota = lists_.add(iota_);
  at_.visible = lists_.add(visible_), at_.chunks = lists_.add(chunks_), at_.others = lists_.add(others_);
  at_.runs = lists_.add(runs_), at_.copies = lists_.add(copies_), at_.holds = lists_.add(holds_);
  at_.score_heads = lists_.add(score_heads_);
  tables_.add_to(&lists_);
  at_.dequantized_slots = lists_.add(dequantized_slots_), at_.packs = lists_.add(packs_);
  at_.unpacks = lists_.add(unpacks_), at_.fused = lists_.add(fused_);
  for (LayerLists& lists : layers_) lists.staged.add_to(&lists_);
  if (pages_ != nullptr) pages_->add_to(&lists_);
  if (partition_ != nullptr) partition_->add_to(&lists_);
  on.timer->begin(Operation::kUpload);
  lists_.send(on.stream);
  tables_.put(lists_, on.stream);
  RowSlotArgs slots{tables_.on_device(), lists_.at(at_.slot_rows), lists_.at(at_.slot_cells),
                    head_cells_on_.as<HeadCells>(), slots_.as<AppendSlot>()};
  slots.row_count = static_cast<uint32_t>(slot_rows_.size());
  slots.layers = llm_.layers, slots.kv_heads = llm_.kv_heads;
  slots.page_tokens = memory_.page_tokens, slots.columns = kv_entries_.columns();
  must(write_row_slots(slots, on.stream), "write_row_slots", 0,
       [&] { return fmt::format("{} rows", slots.row_count); });
  grow(&run_rows_on_, Buffer::Kind::kDevice, run_rows_ * sizeof(QueryRow), "rows of chunks");
  must(write_query_rows(lists_.at(at_.runs), at_.runs.count, run_rows_on_.as<QueryRow>(), on.stream),
       "write_query_rows", 0, [&] { return fmt::format("{} rows of heads", run_rows_); });
  if (score_heads_.empty()) return;
  AttentionScoreArgs attention_scores = attention_score_args(nullptr);
  for (const LayerLists& lists : layers_)
    attention_scores.count = std::max(attention_scores.count, lists.score_heads.count);
  scores_->reserve_attention_scores(attention_scores);
}

// Whether rows take part in attention alone: nothing of them is captured or gathered.
bool CompressedCache::reads_alone(const cpu::StepRows& rows) const {
  return !scores_->observes(rows) && scores_->capture_range(rows).count == 0;
}

// Whether the step has decodes alone, of which nothing is captured, gathered or compressed. Packed KV entries
// have more lists.
bool CompressedCache::has_decodes_alone() const {
  return !probing_.has_value() && padded_forms() > 0 &&
         std::all_of(work_.begin(), work_.end(), [&](const Work& work) {
           return work.compression == nullptr && work.rows.tokens == 1 && reads_alone(work.rows);
         });
}

uint32_t CompressedCache::padded_forms() const {
  if (kv_entries_.packed() || partition_ != nullptr || !attention_.decode_takes()) return 0;
  if (!reads_alone({.tokens = 1, .samples = true})) return 0;
  return shape_.slot_retention == SlotRetention::kInPlace && memory_.page_tokens > 1 ? 2 : 1;
}

void CompressedCache::fill_up(uint32_t form, uint32_t size, const StepStream& on, StepRows* rows) {
  work_.clear();
  rows_ = padded_ = 0;
  pad(size, rows);
  write_lists(on, form == 1);
}

// Rows of no request, which read and write nothing, up to `size` rows.
void CompressedCache::pad(uint32_t size, StepRows* rows) {
  for (; padded_ < size; ++padded_, ++rows->padding) rows->positions.push_back(0);
  KVT_CHECK(padded_ <= memory_.rows_max);
}

// Then every layer has a decode for each row and KV head, and nothing else.
bool CompressedCache::repeats(StepGraphKey* graph_key) const {
  if (padded_ == 0 || !has_decodes_alone()) return false;
  if (decodes_.size() != size_t{padded_} * llm_.kv_heads * llm_.layers) return false;
  if (!chunks_.empty() || !others_.empty() || !runs_.empty() || !copies_.empty() || !holds_.empty())
    return false;
  lists_.add_to(graph_key, at_.decodes);
  graph_key->add(uint64_t{listed_});
  graph_key->add(tables_.on_device());
  return true;
}

void CompressedCache::add_head(uint32_t layer, uint32_t kv_head, Work* work) {
  const uint32_t head = layer * llm_.kv_heads + kv_head;
  const uint32_t group = shape_.groups.group_of(head), column = shape_.groups.column_of(head);
  const Read& read = read_of(work, head);
  if (work->rows.staged && !read.listed) add_copy(group, column, work, read);
  if (read.from != 0 || read.sinks != UINT32_MAX) add_holds(head, work);
  if (kv_entries_.packed()) add_dequantized(layer, kv_head, work, read);
  if (probing_.has_value()) {
    add_probe_scores(head, *work, read);
  } else if (scores_->observes(work->rows)) {
    add_attention_scores(head, *work, read);
  }
  if (kv_entries_.packed()) return add_dequantized_rows(head, column, work, read);
  add_rows(head, column, work, read);
}

const CompressedCache::Read& CompressedCache::read_of(Work* work, uint32_t head) {
  std::optional<Read>& known = work->reads[head_cells_[head].cells];
  if (known.has_value()) return *known;
  const bool ring = shape_.is_ring(shape_.groups.group_of(head));
  known = ring                                               ? ring_read(work, head)
          : shape_.slot_retention == SlotRetention::kInPlace ? in_place_read(work)
                                                             : move_read(work, head);
  return *known;
}

// All pages of a group, where tables stand.
uint32_t CompressedCache::pages_of(Work* work, uint32_t group) {
  std::optional<uint32_t>& known = work->pages[group];
  if (known.has_value()) return *known;
  const std::span<const PageId> pages = work->request->kv_entries.pages(group);
  const auto count = static_cast<uint32_t>(pages.size());
  known = tables_.keep(&work->request->tables[group], count, [&](uint32_t i) { return raw(pages[i]); });
  for (uint32_t i = 0; memory_.poison && i < count; ++i) KVT_CHECK(tables_[*known + i] == raw(pages[i]));
  return *known;
}

// Tables of the request may have other numbers than were sent, besides those that follow.
void CompressedCache::resend_tables(Request* request) {
  for (DeviceTables::Table& table : request->tables) table.sent = 0;
  request->kv_entry_table.sent = 0;
}

uint32_t CompressedCache::past(const Work& work, uint32_t head) const {
  const uint32_t kv_entries = work.request->kv_entries.kv_entries(head);
  if (shape_.is_ring(shape_.groups.group_of(head))) return std::min(work.rows.context, shape_.ring_slots());
  return work.rows.staged ? kv_entries : kv_entries - work.rows.tokens;
}

// Tokens of the request that have been ranked. Rings rank by position, as tokens come.
uint32_t CompressedCache::ranked_tokens(const Work& work) const {
  return shape_.tables.rings > 0 ? work.rows.context : work.request->ranked;
}

// Rows that have no pages stand in scratch pages, behind a copy of the KV entries that are on the same page.
CompressedCache::Read CompressedCache::move_read(Work* work, uint32_t head) {
  Read out;
  const uint32_t group = shape_.groups.group_of(head), page = memory_.page_tokens;
  out.before = past(*work, head);
  if (!work->rows.staged) {
    out.table = pages_of(work, group);
    KVT_CHECK(uint64_t{out.before} + work->rows.tokens <=
              work->request->kv_entries.pages(group).size() * uint64_t{page});
    return out;
  }
  out.table = tables_.size();
  for (uint32_t i = 0; i < out.before / page; ++i)
    tables_.add(raw(work->request->kv_entries.pages(group)[i]));
  const uint32_t scratch = div_ceil(out.before % page + work->rows.tokens, page);
  for (uint32_t i = 0; i < scratch; ++i) tables_.add(kv_entries_.scratch(head, work->scratch + i));
  return out;
}

// While nothing was overwritten, and while a single row overwrites what it does not see, a ring is a table.
// Else rows stand in scratch pages, and read what is left of the ring, KV entry by KV entry, in order of
// position.
CompressedCache::Read CompressedCache::ring_read(Work* work, uint32_t head) {
  Read out;
  const uint32_t group = shape_.groups.group_of(head), context = work->rows.context;
  const uint32_t end = context + work->rows.tokens, page = memory_.page_tokens;
  out.table = pages_of(work, group);
  if (end <= shape_.ring_slots()) {
    out.before = context;
    return out;
  }
  if (work->rows.tokens == 1) {
    out.before = shape_.ring_slots() - 1;
    out.slot = shape_.ring_slot(context);
    return out;
  }
  const auto scratch = tables_.size();
  for (uint32_t i = 0; i < div_ceil(work->rows.tokens, page); ++i)
    tables_.add(kv_entries_.scratch(head, work->scratch + i));
  work->held[{group, kv_entries_.lane_of(head)}] = scratch;
  out.listed = true;
  out.sinks = shape_.ring_sinks();
  out.from = std::max(shape_.first_in_ring(context), out.sinks);
  out.table = tables_.size();
  const auto add = [&](uint32_t position) {
    const uint32_t row = position - context;
    if (position < context) {
      const cpu::Place place = work->request->kv_entries.ring_place(group, position);
      tables_.add(place.page * page + place.slot);
    } else {
      tables_.add(tables_[scratch + row / page] * page + row % page);
    }
  };
  for (uint32_t p = 0; p < std::min(out.sinks, end); ++p) add(p);
  for (uint32_t p = out.from; p < end; ++p) add(p);
  return out;
}

// Whether no table of pages names what its rows read. (Pages of one token are KV entries; packed KV entries
// are unpacked, behind one another.)
bool CompressedCache::has_dropped_slots(const Work& work) const {
  const cpu::RequestTable& kv_entries = work.request->kv_entries;
  return shape_.slot_retention == SlotRetention::kInPlace && memory_.page_tokens > 1 &&
         !kv_entries_.packed() && (work.rows.staged || kv_entries.kv_entries(0) != kv_entries.tokens());
}

// Rows that have no pages (probes) follow in the slots that are left, one KV entry a slot.
CompressedCache::Read CompressedCache::in_place_read(Work* work) {
  const cpu::RequestTable& kv_entries = work->request->kv_entries;
  const uint32_t page = memory_.page_tokens;
  const bool staged = work->rows.staged;
  Read out;
  out.before = past(*work, 0);
  out.listed = page > 1 && (staged || kv_entries.kv_entries(0) != kv_entries.tokens() ||
                            (listed_ && work->rows.tokens == 1));
  if (!out.listed && page > 1) {
    out.table = pages_of(work, 0);
    return out;
  }
  const auto id = [&](uint32_t kv_entry) {
    const cpu::Place place = kv_entries.place(0, kv_entry);
    return place.page * page + place.slot;
  };
  const uint32_t count = kv_entries.kv_entries(0);
  if (!staged) {
    out.table = tables_.keep(&work->request->kv_entry_table, count, id);
    for (uint32_t i = 0; memory_.poison && i < count; ++i) KVT_CHECK(tables_[out.table + i] == id(i));
    return out;
  }
  out.table = tables_.size();
  for (uint32_t kv_entry = 0; kv_entry < count; ++kv_entry) tables_.add(id(kv_entry));
  for (uint32_t row = 0; row < work->rows.tokens; ++row)
    tables_.add(kv_entries_.scratch(0, work->scratch + row / page) * page + row % page);
  return out;
}

// A table of KV entries in place of one of pages.
uint32_t CompressedCache::listed(Work* work, const Read& read, uint32_t kv_entries) {
  const uint32_t page = memory_.page_tokens;
  if (read.listed || page == 1) return read.table;
  const auto at = tables_.size();
  for (uint32_t kv_entry = 0; kv_entry < kv_entries; ++kv_entry)
    tables_.add(tables_[read.table + kv_entry / page] * page + kv_entry % page);
  static_cast<void>(work);
  return at;
}

void CompressedCache::add_rows(uint32_t head, uint32_t column, Work* work, const Read& read) {
  const cpu::StepRows& rows = work->rows;
  const uint32_t group = llm_.query_heads / llm_.kv_heads, kv_head = head % llm_.kv_heads;
  if (rows.tokens == 1 && read.listed == listed_) {
    decodes_.push_back({rows.row * llm_.query_heads + kv_head * group, read.table, read.before + 1, column});
    if (partition_ != nullptr) partition_->add(head, read.before + 1, ranked_tokens(*work), rows.context + 1);
    return;
  }
  if (!read.listed && attention_.chunk_takes()) {
    chunks_.push_back({rows.row, rows.tokens, kv_head, read.before, read.table, column});
    return;
  }
  const uint32_t table = listed(work, read, read.before + rows.tokens);
  if (rows.tokens > 1 && read.listed) return add_run(rows, read, table, kv_head, column);
  // Pages of one token are tables that the dense engine reads with this kernel: equal bits (G-2).
  for (uint32_t i = 0; i < rows.tokens; ++i)
    others_.push_back({rows.row + i, table, read.before + i + 1, kv_head, column});
}

// What rows of a chunk read KV entry by KV entry, of a ring that has wrapped or of anything else.
void CompressedCache::add_run(const cpu::StepRows& rows, const Read& read, uint32_t table, uint32_t kv_head,
                              uint32_t column) {
  QueryRun run{rows.row, rows.tokens, run_rows_, table, read.before, kv_head, column, read.sinks};
  run.from = read.from, run.context = rows.context;
  if (read.sinks != UINT32_MAX) run.recent = shape_.ring_slots() - shape_.ring_sinks();
  runs_.push_back(run);
  run_rows_ += rows.tokens;
}

void CompressedCache::add_copy(uint32_t group, uint32_t column, Work* work, const Read& read) {
  const uint32_t over = read.before % memory_.page_tokens, full = read.before - over;
  if (over == 0) return;
  copies_.push_back({{pages_of(work, group), column, full, over}, read.table, full, 0, over});
}

// This step's rows take the places of what no later row reads: runs of slots.
void CompressedCache::add_holds(uint32_t head, Work* work) {
  const uint32_t group = shape_.groups.group_of(head), column = shape_.groups.column_of(head);
  const auto scratch = work->held.find({group, kv_entries_.lane_of(head)});
  if (scratch == work->held.end()) return;
  const uint32_t context = work->rows.context, end = context + work->rows.tokens;
  const uint32_t ring = pages_of(work, group);
  for (uint32_t p = context; p < end;) {
    if (p >= shape_.ring_sinks() && p < shape_.first_in_ring(end - 1)) {
      ++p;
      continue;
    }
    const uint32_t slot = shape_.ring_slot(p);
    uint32_t count = 1;
    while (p + count < end && shape_.ring_slot(p + count) == slot + count &&
           (p + count < shape_.ring_sinks() || p + count >= shape_.first_in_ring(end - 1)))
      ++count;
    holds_.push_back({{scratch->second, column, p - context, count}, ring, slot, 0, count});
    p += count;
  }
}

// What the rows of an entry see of a head, for accumulators and stamps.
void CompressedCache::add_attention_scores(uint32_t head, const Work& work, const Read& read) {
  KVT_CHECK(!work.rows.staged && !kv_entries_.packed());
  const bool newest = scores_->spec().scorer->source == kernels::ScoreSource::kStamps;
  const uint32_t queries = newest ? 1 : work.rows.tokens, first = work.rows.tokens - queries;
  AttentionScoreHead attention_scores;
  attention_scores.kv_entries = {read.table, shape_.groups.column_of(head), 0,
                                 read.before + work.rows.tokens};
  attention_scores.q_row = work.rows.row + first, attention_scores.queries = queries;
  attention_scores.q_head = head % llm_.kv_heads * (llm_.query_heads / llm_.kv_heads);
  // Heads that hold equally many KV entries share what their rows see.
  const bool shared = !score_heads_.empty() && visible_before_ == read.before &&
                      score_heads_.back().q_row == attention_scores.q_row;
  attention_scores.visible = shared ? score_heads_.back().visible : static_cast<uint32_t>(visible_.size());
  for (uint32_t i = first; !shared && i < work.rows.tokens; ++i) visible_.push_back(read.before + i + 1);
  visible_before_ = read.before;
  score_rows_max_ = std::max(score_rows_max_, attention_scores.kv_entries.rows);
  score_queries_max_ = std::max(score_queries_max_, queries);
  score_heads_.push_back(attention_scores);
}

}  // namespace kvtwin::cuda
