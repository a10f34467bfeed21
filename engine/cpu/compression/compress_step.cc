// CompressedCache: from a Compression to its outcome: rank, count, select, move, report.

#include <algorithm>
#include <cmath>

#include "engine/base/check.h"
#include "engine/common/forced_outcome.h"
#include "engine/cpu/compression/compressed_cache.h"
#include "engine/methods/outcome_rules.h"
#include "kernels/common/score_math.h"

namespace kvtwin::cpu {

RankedHead CompressedCache::ranked(const Work& work, uint32_t head) const {
  const Compression& c = *work.compression;
  const RequestTable& kv_entries = work.request->kv_entries;
  const uint32_t group = shape_.groups.group_of(head);
  const std::span<const uint32_t> positions = kv_entries.positions(head);
  RankedHead out;
  out.head = head;
  out.first = static_cast<uint32_t>(std::lower_bound(positions.begin(), positions.end(), c.begin) -
                                    positions.begin());
  out.positions.assign(positions.begin() + out.first, positions.end());
  kv_entries.phases(head, out.first, &out.phases);
  for (uint32_t kv_entry = out.first; kv_entry < positions.size(); ++kv_entry)
    out.places.push_back(kv_entries.place(group, kv_entry));
  for (uint32_t i = 0; work.rows.staged && i < work.rows.tokens; ++i) {
    out.positions.push_back(work.rows.context + i);
    out.phases.push_back(work.rows.phase + i);
    out.places.push_back(store_->staged(head, work.rows.row + i));
  }
  KVT_CHECK(out.positions.empty() || out.positions.back() < c.end);
  for (const Compression::Forced& forced : c.forced) {
    for (uint32_t row = 0; row < out.rows(); ++row) {
      if (out.positions[row] >= forced.begin && out.positions[row] < forced.end) out.forced.push_back(row);
    }
  }
  return out;
}

uint32_t CompressedCache::expected_of(const Work& work, const RankedHead& head) const {
  const Compression& c = *work.compression;
  if (!c.keep.empty()) return c.keep[shape_.groups.group_of(head.head)];
  return budget_->expected(head.candidates(), c.end);
}

std::vector<RankedHead> CompressedCache::rank_layer(const Work& work, uint32_t layer) {
  std::vector<RankedHead> heads;
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) heads.push_back(ranked(work, layer * llm_.kv_heads + h));
  scorer_->score(layer, heads, work.compression->end, work.rows, expected_of(work, heads[0]),
                 work.request->captured);
  return heads;
}

// Selects the forced rows and the `count` best others.
kernels::RowSet CompressedCache::choose(const Work& work, const RankedHead& head,
                                        std::span<const float> scores, uint32_t count) {
  if (!config_.force_outcomes) return kernels::select_rows(scores, head.forced, count, &nan_scores_);
  const std::span<const uint32_t> left = config_.force_outcomes(work.rows.request, head.head);
  kernels::RowSet out;
  for (uint32_t row = 0; row < head.rows(); ++row) {
    if (std::binary_search(left.begin(), left.end(), head.positions[row])) out.push_back(row);
  }
  // The counts may be forced as well.
  KVT_CHECK(work.compression->keep.empty() ||
            out.size() == std::min<size_t>(head.rows(), head.forced.size() + count));
  return out;
}

// Compacts the forced rows and the `count` best others after the KV entries that were not ranked.
void CompressedCache::keep(const Work& work, RankedHead* head, uint32_t count) {
  const kernels::RowSet rows = choose(work, *head, head->scores, count);
  const uint32_t group = shape_.groups.group_of(head->head);
  std::vector<uint32_t> positions;
  for (uint32_t i = 0; i < rows.size(); ++i) {
    const uint32_t kv_entry = head->first + i;
    const Place to = work.request->kv_entries.place(group, kv_entry);
    store_->move(head->head, head->places[rows[i]], to);
    if (shape_.rerotate && head->phases[rows[i]] != kv_entry) {
      const kernels::RopePlanes planes{rope_.inverse, 1.0f};  // the key already contains the scale
      const int64_t by = int64_t{kv_entry} - int64_t{head->phases[rows[i]]};
      float* const key = store_->key(head->head, to);
      kernels::apply_planes(kernels::rotation_at(planes, by), key, key);
    }
    positions.push_back(head->positions[rows[i]]);
  }
  work.request->kv_entries.replace(head->head, head->first, positions);
  std::vector<float>& summaries = work.request->summaries[head->head];
  const size_t still = size_t{head->first / memory_.page_tokens} * 2 * llm_.head_dim;
  summaries.resize(std::min(summaries.size(), still));
  work.request->captured.keep(head->head, head->first, rows);
}

void CompressedCache::compress_staged(const Work& work, uint32_t layer) {
  KVT_CHECK(work.compression->keep.size() == shape_.groups.groups());
  for (RankedHead& head : rank_layer(work, layer)) {
    keep(work, &head, work.compression->keep[shape_.groups.group_of(head.head)]);
  }
}

std::vector<RankedHead> CompressedCache::rank_all(const Work& work) {
  std::vector<RankedHead> heads;
  if (intents_ != nullptr) {
    for (uint32_t head = 0; head < llm_.layers * llm_.kv_heads; ++head) heads.push_back(ranked(work, head));
    intents_->score(access_.session(work.rows.request), work.compression->query, heads, *store_);
  }
  for (uint32_t layer = 0; layer < llm_.layers && intents_ == nullptr; ++layer) {
    for (RankedHead& head : rank_layer(work, layer)) heads.push_back(std::move(head));
  }
  return heads;
}

// By head group: the number of candidates that each member retains.
std::vector<uint32_t> CompressedCache::counts(const Work& work, std::span<const RankedHead> heads) const {
  const std::span<const uint32_t> known = work.compression->keep;
  if (!known.empty()) return {known.begin(), known.end()};
  std::vector<uint32_t> out = budget_->counts(heads, work.compression->end);
  const CompressionOutcome* const forced_outcome = forced_retained(given_, work.rows.request);
  if (forced_outcome == nullptr || forced_outcome->counts.size() != out.size()) return out;
  const std::vector<GroupEntries> groups = budget_->entries(heads, work.compression->end);
  for (uint32_t g = 0; g < out.size(); ++g) out[g] = forced_keep_count(forced_outcome->counts[g], groups[g]);
  return out;
}

void CompressedCache::compress(const Work& work, DataOutcomes* values) {
  std::vector<RankedHead> heads = rank_all(work);
  if (shape_.slot_retention == SlotRetention::kInPlace)
    return compress_in_place(work, &heads, &values->retained_live);
  const std::vector<uint32_t> retained = counts(work, heads);
  for (RankedHead& head : heads) keep(work, &head, retained[shape_.groups.group_of(head.head)]);
  if (!work.compression->keep.empty()) return;  // the policy knows the counts
  for (uint32_t g = 0; g < shape_.groups.groups(); ++g) {
    values->retained_counts.push_back(work.request->kv_entries.kv_entries(shape_.groups.members(g)[0]));
  }
}

// One score per token, for layouts that drop a token in all heads at once: the mean, as in IntentKV's rule.
std::vector<float> CompressedCache::token_scores(std::span<const RankedHead> heads) const {
  std::vector<float> out(heads[0].rows());
  for (uint32_t row = 0; row < out.size(); ++row) {
    double sum = 0;
    for (const RankedHead& head : heads) sum += head.scores[row];
    out[row] = static_cast<float>(sum / static_cast<double>(heads.size()));
  }
  return out;
}

// Appends one bit for each position that was ranked or held before: whether it is retained.
void CompressedCache::compress_in_place(const Work& work, std::vector<RankedHead>* heads,
                                        std::vector<uint64_t>* live_out) {
  const Compression& c = *work.compression;
  KVT_CHECK(c.begin == 0 && c.keep.size() == 1);
  const RankedHead& any = heads->front();
  const std::vector<float> scores = token_scores(*heads);
  kernels::RowSet rows = choose(work, any, scores, c.keep[0]);
  if (const CompressionOutcome* const forced_outcome = forced_retained(given_, work.rows.request)) {
    kernels::RowSet forced_list =
        forced_outcome_rows(forced_outcome->live, any.positions, any.forced, rows.size());
    if (!forced_list.empty()) rows.swap(forced_list);
  }
  std::vector<uint32_t> left = retain_tokens(any.positions, rows, c.end, live_out,
                                             [&](uint32_t row) { shared_.drop(any.places[row]); });
  for (const RankedHead& head : *heads) work.request->captured.keep(head.head, 0, rows);
  work.request->kv_entries.drop_all_but(std::move(left));
}

}  // namespace kvtwin::cpu
