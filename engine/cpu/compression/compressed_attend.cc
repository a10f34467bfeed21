// CompressedCache: attention of one layer whose heads hold different KV entries.

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/cpu/compression/compressed_cache.h"
#include "engine/cpu/packed/packed_rows.h"
#include "kernels/cache_ops/rope_append.h"

namespace kvtwin::cpu {

void CompressedCache::hidden(uint32_t, const float* x) { hidden_ = x; }

// Rounds to bf16, like a GPU's projections, so that stored values do not depend on the division into chunks.
// Returns the copy of the values.
const float* CompressedCache::rounded(float* k, const float* v) {
  const size_t numbers = size_t{rows_} * llm_.kv_heads * llm_.head_dim;
  round_to_bf16(k, {k, numbers});
  values_.resize(numbers);
  round_to_bf16(v, values_);
  return values_.data();
}

// The slot of the entry's row `row`, before any of its KV entries are dropped.
Place CompressedCache::place_of(const Work& work, uint32_t head, uint32_t row) const {
  const uint32_t group = shape_.groups.group_of(head);
  if (work.rows.staged || shape_.is_ring(group)) return store_->staged(head, work.rows.row + row);
  const RequestTable& kv_entries = work.request->kv_entries;
  return kv_entries.place(group, kv_entries.kv_entries(head) - work.rows.tokens + row);
}

void CompressedCache::rotate(float* q, float* k) const {
  const kernels::RopeTable rope{rope_.inverse, rope_.scale};
  for (const Work& work : work_) {
    for (uint32_t i = 0; i < work.rows.tokens; ++i) {
      const uint64_t row = work.rows.row + i;
      const uint32_t phase = work.rows.phase + i;
      kernels::rope_ref(rope, phase, llm_.query_heads, llm_.head_dim,
                        q + row * llm_.query_heads * llm_.head_dim);
      kernels::rope_ref(rope, phase, llm_.kv_heads, llm_.head_dim, k + row * llm_.kv_heads * llm_.head_dim);
    }
  }
}

void CompressedCache::attend(uint32_t layer, float* q, float* k, const float* v, float* out) {
  rotate(q, k);
  write_rows(layer, k, store_->packed() ? rounded(k, v) : v);
  hold_in_rings(layer, false);
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) read_rows(layer, h, q, out);
  hold_in_rings(layer, true);
  for (const Work& work : work_) {
    const float* const rows = q + uint64_t{work.rows.row} * llm_.query_heads * llm_.head_dim;
    scorer_->observe(layer, work.rows, rows, work.request->kv_entries, &work.request->captured);
    if (work.rows.staged) compress_staged(work, layer);
  }
}

void CompressedCache::write_rows(uint32_t layer, const float* k, const float* v) {
  std::vector<Place> places(scorer_->needs_hidden() ? size_t{rows_} * llm_.kv_heads : 0);
  for (const Work& work : work_) {
    for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
      const uint32_t head = layer * llm_.kv_heads + h;
      for (uint32_t i = 0; i < work.rows.tokens; ++i) {
        const uint64_t at = uint64_t{work.rows.row + i} * llm_.kv_heads + h;
        const Place place = place_of(work, head, i);
        const float *const key = k + at * llm_.head_dim, *const value = v + at * llm_.head_dim;
        store_->write(head, place, key, value);
        if (work.own_exact) store_->write(head, store_->staged(head, work.rows.row + i), key, value);
        if (!places.empty()) places[at] = place;
      }
    }
  }
  if (scorer_->needs_hidden()) scorer_->update_state(layer, hidden_, rows_, places);
}

void CompressedCache::read_rows(uint32_t layer, uint32_t kv_head, const float* q, float* out) {
  const uint32_t group = llm_.query_heads / llm_.kv_heads, head = layer * llm_.kv_heads + kv_head;
  const size_t width = size_t{group} * llm_.head_dim, all = size_t{llm_.query_heads} * llm_.head_dim;
  runs_.clear();
  reads_.clear();
  head_q_.resize(rows_ * width);
  head_out_.resize(rows_ * width);
  for (uint32_t r = 0; r < rows_; ++r) {
    std::copy_n(q + r * all + kv_head * width, width, head_q_.data() + r * width);
  }
  for (const Work& work : work_) reads_of(work, head, head_q_.data() + work.rows.row * width);
  const float scale = 1.0f / std::sqrt(static_cast<float>(llm_.head_dim));
  kernels::attention_ref(store_->pages(head), {0, 1}, group, scale, head_q_.data(), reads_, head_out_.data(),
                         nullptr);
  for (uint32_t r = 0; r < rows_; ++r) {
    std::copy_n(head_out_.data() + r * width, width, out + r * all + kv_head * width);
  }
}

// Sets the reads of each row of the entry, in order of position, so that results depend neither on staging
// nor on the division of a prompt into chunks. q [tokens][group][head_dim].
void CompressedCache::reads_of(const Work& work, uint32_t head, const float* q) {
  const uint32_t group = shape_.groups.group_of(head), tokens = work.rows.tokens;
  const RequestTable& kv_entries = work.request->kv_entries;
  if (shape_.is_ring(group)) {
    for (uint32_t i = 0; i < tokens; ++i) {
      std::vector<kernels::ReadRun>& runs = runs_.emplace_back();
      ring_reads(work, head, i, &runs);
      uint32_t count = 0;
      for (const kernels::ReadRun& run : runs) count += run.count;
      reads_.push_back({runs, count});
    }
    return;
  }
  if (may_choose(work, head) && chosen_reads(work, head, q)) return;
  const uint32_t before = kv_entries.kv_entries(head) - (work.rows.staged ? 0 : tokens);
  std::span<const kernels::ReadRun> shared = work.reads;
  if (shape_.slot_retention != SlotRetention::kInPlace || work.own_exact) {
    std::vector<kernels::ReadRun>& runs = runs_.emplace_back(work.reads);
    if (shape_.slot_retention != SlotRetention::kInPlace)
      kv_entries.reads(group, work.own_exact ? before : before + tokens, &runs);
    for (uint32_t i = 0; work.own_exact && i < tokens; ++i)
      append_place(store_->staged(head, work.rows.row + i), &runs);
    shared = runs;
  }
  for (uint32_t i = 0; i < tokens; ++i) reads_.push_back({shared, before + i + 1});
}

// Reads the sinks and the newest KV entries up to the row itself, from the ring or from this step's rows. A
// decoded row is already in the ring.
void CompressedCache::ring_reads(const Work& work, uint32_t head, uint32_t row,
                                 std::vector<kernels::ReadRun>* runs) const {
  const uint32_t position = work.rows.context + row, group = shape_.groups.group_of(head);
  const uint32_t held = work.rows.context + (work.rows.prompt ? 0 : work.rows.tokens);
  const auto read = [&](uint32_t p) {
    append_place(p < held ? work.request->kv_entries.ring_place(group, p)
                          : store_->staged(head, work.rows.row + p - work.rows.context),
                 runs);
  };
  for (uint32_t p = 0; p < std::min(shape_.ring_sinks(), position + 1); ++p) read(p);
  for (uint32_t p = shape_.first_in_ring(position); p <= position; ++p) read(p);
}

// Writes this step's rows to the rings, over KV entries that no later row reads; `prompts`: rows of prompts,
// or of decodes.
void CompressedCache::hold_in_rings(uint32_t layer, bool prompts) {
  if (shape_.tables.rings == 0) return;
  for (const Work& work : work_) {
    if (work.rows.prompt != prompts) continue;
    const uint32_t end = work.rows.context + work.rows.tokens;
    for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
      const uint32_t head = layer * llm_.kv_heads + h, group = shape_.groups.group_of(head);
      if (!shape_.is_ring(group)) continue;
      for (uint32_t p = work.rows.context; p < end; ++p) {
        if (p >= shape_.ring_sinks() && p < shape_.first_in_ring(end - 1)) continue;
        store_->move(head, store_->staged(head, work.rows.row + p - work.rows.context),
                     work.request->kv_entries.ring_place(group, p));
      }
    }
  }
}

}  // namespace kvtwin::cpu
