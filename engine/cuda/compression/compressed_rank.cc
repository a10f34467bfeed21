// From a Compression to what is kept: score, count, select, move, answer.

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "engine/base/check.h"
#include "engine/common/forced_outcome.h"
#include "engine/common/side_by_side.h"
#include "engine/cuda/compression/compressed_cache.h"
#include "engine/cuda/device/cuda_check.h"
#include "engine/methods/outcome_rules.h"

namespace kvtwin::cuda {
namespace {

// KV entries of all heads. With fewer, waking threads costs more than it saves.
constexpr uint64_t kFewKvEntries = 1 << 16;

// How many of `positions` lie before `position`. They ascend; where nothing was dropped between them, the
// first one tells.
uint32_t before(std::span<const uint32_t> positions, uint32_t position) {
  const auto count = static_cast<uint32_t>(positions.size());
  if (count > 0 && positions.back() - positions.front() + 1 == count)
    return position <= positions.front() ? 0 : std::min(position - positions.front(), count);
  return static_cast<uint32_t>(std::lower_bound(positions.begin(), positions.end(), position) -
                               positions.begin());
}

}  // namespace

// KV entries from `first` on, and rows that are staged.
uint32_t CompressedCache::rows_ranked(const Work& work, uint32_t head, uint32_t first) const {
  return work.request->kv_entries.kv_entries(head) - first + (work.rows.staged ? work.rows.tokens : 0);
}

void CompressedCache::add_ranked(size_t index, uint32_t head, RankBatch* batch) {
  Work& work = work_[index];
  const Compression& c = *work.compression;
  const uint32_t group = shape_.groups.group_of(head);
  const std::span<const uint32_t> positions = work.request->kv_entries.positions(head);
  const uint32_t first = before(positions, c.begin), rows = rows_ranked(work, head, first);
  // Rows before a position; staged ones follow on the KV entries.
  const auto row_of = [&](uint32_t position) {
    const uint32_t among_entries = before(positions.subspan(first), position);
    const uint32_t staged = position > work.rows.context ? position - work.rows.context : 0;
    return among_entries + (work.rows.staged ? std::min(staged, work.rows.tokens) : 0);
  };
  const auto forced_first = static_cast<uint32_t>(batch->forced.size());
  uint32_t forced = 0;
  for (const Compression::Forced& range : c.forced) {
    const RowRange of_rows{row_of(range.begin), row_of(range.end)};
    if (of_rows.begin == of_rows.end) continue;
    batch->forced.push_back(of_rows);
    forced += of_rows.end - of_rows.begin;
  }
  const Read& read = read_of(&work, head);
  const uint32_t table = work.rows.staged || shape_.slot_retention == SlotRetention::kInPlace
                             ? read.table
                             : pages_of(&work, group);
  batch->heads.push_back(
      {index, head, first, rows, forced, {forced_first, static_cast<uint32_t>(batch->forced.size())}});
  const KvEntryHead stored{table, shape_.groups.column_of(head), first, rows};
  batch->kv_entries.push_back(stored);
  if (kv_entries_.packed()) {
    batch->stored.push_back(stored);
    batch->kv_entries.back().table = PackedHeads::table(work.dequantized.at(head)),
    batch->kv_entries.back().column = 0;
  }
  batch->rows_max = std::max(batch->rows_max, rows);
  add_query_tokens(work, head, first, rows, batch);
  if (!scores_->has_scorer_state()) return;
  const kernels::ScoreSpec& spec = scores_->spec();
  uint32_t stays = 0;
  if (spec.scorer->source == kernels::ScoreSource::kPromptSums) stays = spec.window.window;
  if (spec.scorer->weights == kernels::TrainedWeights::kDecayGates) stays = spec.trim.window;
  batch->scorer_state.push_back(
      {stored, static_cast<uint32_t>(batch->positions.size()), std::min(stays, rows)});
  if (!scores_->asks_positions()) return;
  batch->positions.insert(batch->positions.end(), positions.begin() + first, positions.end());
  for (uint32_t i = 0; work.rows.staged && i < work.rows.tokens; ++i)
    batch->positions.push_back(work.rows.context + i);
}

// The rows that ask, and what each sees of the ranked KV entries.
void CompressedCache::add_query_tokens(const Work& work, uint32_t head, uint32_t first, uint32_t rows,
                                       RankBatch* batch) {
  const kernels::ScoreSpec& spec = scores_->spec();
  const bool pointed = spec.scorer->source == kernels::ScoreSource::kStamps && work.rows.prompt;
  if (!scores_->score_heads() && !pointed) return;
  std::vector<uint32_t> phases = work.request->captured.phases;
  AttentionScoreHead attention_scores;
  attention_scores.kv_entries = batch->kv_entries.back();
  attention_scores.q_head = head % llm_.kv_heads * (llm_.query_heads / llm_.kv_heads);
  if (work.rows.staged) {  // they are still where the products left them
    const cpu::CaptureRange asked = scores_->capture_range(work.rows);
    phases.clear();
    for (uint32_t i = asked.first; i < asked.first + asked.count; ++i) phases.push_back(work.rows.phase + i);
    attention_scores.q_row = work.rows.row + asked.first;
  }
  attention_scores.queries = static_cast<uint32_t>(phases.size());
  attention_scores.visible = static_cast<uint32_t>(batch->visible.size());
  const std::span<const uint32_t> positions = work.request->kv_entries.positions(head).subspan(first);
  const auto seen = [&](uint32_t phase) {  // rows whose phase is below
    if (shape_.rerotate) return std::min(rows, phase > first ? phase - first : 0);
    const uint32_t staged = phase > work.rows.context ? phase - work.rows.context : 0;
    return before(positions, phase) + (work.rows.staged ? std::min(staged, work.rows.tokens) : 0);
  };
  const bool last_row = spec.scorer->joins_heads;  // the last query row scores for all heads
  for (const uint32_t phase : phases)
    batch->visible.push_back(last_row || spec.window.causal ? seen(phase + 1) : rows);
  attention_scores.scored = rows;
  if (!phases.empty() && (last_row || spec.window.keep_window))
    attention_scores.scored = seen(last_row ? phases.back() : phases.front());
  batch->queries_max = std::max(batch->queries_max, attention_scores.queries);
  batch->score_heads.push_back(attention_scores);
}

void CompressedCache::choose(RankBatch* batch, uint32_t index, uint32_t keep) {
  const RankBatch::Head& head = batch->heads[index];
  Work& work = work_[head.work];
  const uint32_t retained_at = retained_total_;
  retained_total_ += head.retained(keep);
  batch->choose(index, keep, retained_at, pages_of(&work, shape_.groups.group_of(head.head)));
}

// Counts are known: everything about these compressions but the values.
void CompressedCache::plan_staged() {
  uint32_t heads = 0, rows = 0;
  AttentionScoreArgs attention_scores = attention_score_args(nullptr);
  for (uint32_t l = 0; l < llm_.layers; ++l) {
    RankBatch& batch = layers_[l].staged;
    for (size_t i = 0; i < work_.size(); ++i) {
      if (!work_[i].rows.staged || work_[i].compression == nullptr) continue;
      KVT_CHECK(work_[i].compression->keep.size() == shape_.groups.groups());
      for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
        const uint32_t head = l * llm_.kv_heads + h;
        add_ranked(i, head, &batch);
        choose(&batch, batch.count() - 1, work_[i].compression->keep[shape_.groups.group_of(head)]);
        if (pages_ != nullptr) add_cut(batch, batch.count() - 1);
      }
    }
    heads = std::max(heads, batch.count()), rows = std::max(rows, batch.rows_max);
    attention_scores.queries_max = std::max(attention_scores.queries_max, batch.queries_max);
  }
  if (heads == 0) return;
  scores_->reserve_scores(heads, rows);
  attention_scores.count = heads, attention_scores.rows_max = rows, attention_scores.stride = rows;
  if (scores_->score_heads()) scores_->reserve_attention_scores(attention_scores);
  grow(&retained_, Buffer::Kind::kDevice, uint64_t{retained_total_} * sizeof(uint32_t), "retained rows");
  grow(&retained_host_, Buffer::Kind::kPinned, uint64_t{retained_total_} * sizeof(uint32_t), "retained rows");
}

void CompressedCache::score_staged(uint32_t layer, const LayerRows& tensors, const StepStream& on) {
  const RankBatch& batch = layers_[layer].staged;
  if (scores_->by_position()) return send_position_scores(batch, on);
  // What decays does so by its own request's time.
  const uint32_t together = scores_->has_scorer_state() ? llm_.kv_heads : batch.count();
  for (uint32_t first = 0; first < batch.count(); first += together) {
    scores_->score(batch, lists_, first, together, tables_.on_device(), tensors.q, false,
                   work_[batch.heads[first].work].compression->end, batch.rows_max, on.stream);
  }
}

// `scores`: of the batch's heads, rows_max apart.
void CompressedCache::select(const RankBatch& batch, const DeviceLists& lists, const float* scores,
                             const StepStream& on) {
  SelectArgs args{scores,
                  batch.rows_max,
                  lists.at(batch.at.selects),
                  lists.at(batch.at.forced),
                  retained_.as<uint32_t>(),
                  nan_.as<uint32_t>(),
                  static_cast<uint32_t>(batch.selects.size()),
                  batch.rows_max};
  must(select_entries(args, on.stream), "select_entries", 0,
       [&] { return fmt::format("{} heads, {} rows at most", batch.selects.size(), batch.rows_max); });
}

void CompressedCache::move_retained(const RankBatch& batch, const DeviceLists& lists, const StepStream& on) {
  if (kv_entries_.packed()) {
    return kv_entries_.packed_heads().move(tables_.on_device(), kv_entries_.scorer_state(),
                                           lists.at(batch.at.compacts), retained_.as<uint32_t>(),
                                           batch.count(), on.stream);
  }
  CompactArgs args{kv_entries_.kv_entries(tables_.on_device(), false),
                   kv_entries_.pool(),
                   kv_entries_.scorer_state(),
                   lists.at(batch.at.compacts),
                   retained_.as<uint32_t>(),
                   shape_.rerotate ? inv_freq_.as<float>() : nullptr,
                   batch.count()};
  must(compact_entries(args, on.stream), "compact_entries", 0,
       [&] { return fmt::format("{} heads, {} rows at most", batch.count(), batch.rows_max); });
}

void CompressedCache::move_staged(uint32_t layer, const StepStream& on) {
  move_retained(layers_[layer].staged, lists_, on);
  if (pages_ != nullptr)
    pages_->cut(layer, lists_, kv_entries_.packed_heads(), retained_.as<uint32_t>(), on.stream);
  if (layer + 1 == llm_.layers) fetch_retained(on);
}

void CompressedCache::fetch_retained(const StepStream& on) {
  if (retained_total_ == 0) return;
  must(cudaMemcpyAsync(retained_host_.as<uint32_t>(), retained_.as<uint32_t>(),
                       retained_total_ * sizeof(uint32_t), cudaMemcpyDeviceToHost, on.stream),
       "copy of kept rows", retained_total_ * sizeof(uint32_t));
}

// The rows that were kept are what is left of their heads.
void CompressedCache::apply(const RankBatch& batch) {
  for (uint32_t i = 0; i < batch.count(); ++i) {
    const RankBatch::Head& head = batch.heads[i];
    Work& work = work_[head.work];
    const CompactHead& moved = batch.compacts[i];
    const uint32_t* const rows = retained_host_.as<uint32_t>() + moved.retained;
    const std::span<const uint32_t> had = work.request->kv_entries.positions(head.head);
    std::vector<uint32_t> positions(moved.count);
    for (uint32_t k = 0; k < moved.count; ++k) {
      const uint32_t kv_entry = head.first + rows[k];
      positions[k] = kv_entry < had.size() ? had[kv_entry]
                                           : work.rows.context + kv_entry - static_cast<uint32_t>(had.size());
    }
    work.request->kv_entries.replace(head.head, head.first, positions);
  }
}

void CompressedCache::send_ranked(RankBatch* batch, const StepStream& on) {
  if (!scores_->probes()) scores_->reserve_scores(batch->count(), batch->rows_max);  // else they stand there
  rank_lists_.clear();
  tables_.add_to(&rank_lists_);
  if (kv_entries_.packed()) rank_unpacks_at_ = rank_lists_.add(rank_unpacks_);
  batch->add_to(&rank_lists_);
  rank_lists_.send(on.stream);
  tables_.put(rank_lists_, on.stream);
}

void CompressedCache::score_all(size_t index, const RankBatch& batch, const StepStream& on) {
  Work& work = work_[index];
  const uint32_t heads = batch.count(), of_layer = llm_.kv_heads;
  const uint32_t* const at = tables_.on_device();
  if (scores_->by_position()) return send_position_scores(batch, on);
  const bool listed = read_of(&work, batch.heads[0].head).listed;
  if (host_ != nullptr) return score_on_host(work, batch, listed, on);
  if (intents_ != nullptr) return score_intents(work, batch, listed, on);
  if (batch.score_heads.empty()) {
    // Of packed keys there is one layer at a time.
    const uint32_t together = kv_entries_.packed() && !scores_->has_scorer_state() ? of_layer : heads;
    for (uint32_t first = 0; first < heads; first += together) {
      if (together < heads || llm_.layers == 1) unpack_ranked(first / of_layer, on);
      scores_->score(batch, rank_lists_, first, together, at, nullptr, listed, work.compression->end,
                     batch.rows_max, on.stream);
    }
    return;
  }
  AttentionScoreArgs attention_scores =
      scores_->attention_score_args(batch, rank_lists_, 0, of_layer, at, nullptr, listed);
  scores_->reserve_attention_scores(attention_scores);
  for (uint32_t first = 0; first < heads; first += of_layer) {
    unpack_ranked(first / of_layer, on);
    scores_->score(batch, rank_lists_, first, of_layer, at,
                   scores_->queries(work.request->captured, first / of_layer), listed, work.compression->end,
                   batch.rows_max, on.stream);
  }
}

// Scores of positions alone are computed on the host, where positions are.
void CompressedCache::send_position_scores(const RankBatch& batch, const StepStream& on) {
  const uint64_t stride = batch.rows_max;
  host_scores_.assign(batch.count() * stride, 0.0f);
  std::vector<uint32_t> positions;
  for (uint32_t i = 0; i < batch.count(); ++i) {
    const RankBatch::Head& head = batch.heads[i];
    const Work& work = work_[head.work];
    const std::span<const uint32_t> had = work.request->kv_entries.positions(head.head).subspan(head.first);
    positions.assign(had.begin(), had.end());
    for (uint32_t row = 0; positions.size() < head.rows; ++row) positions.push_back(work.rows.context + row);
    kernels::ScoreInputs in;
    in.layer = head.head / llm_.kv_heads, in.head_first = head.head % llm_.kv_heads;
    in.positions = {head.rows, positions};
    kernels::score_entries(scores_->spec(), in, {host_scores_.data() + i * stride, 1, head.rows, head.rows});
  }
  send_scores(on);
}

void CompressedCache::send_scores(const StepStream& on) {
  must(cudaMemcpyAsync(scores_->scores(), host_scores_.data(), host_scores_.size() * sizeof(float),
                       cudaMemcpyHostToDevice, on.stream),
       "copy of scores", host_scores_.size() * sizeof(float));
}

// `scores`: rows_max of each head, or null.
std::vector<cpu::RankedHead> CompressedCache::ranked_heads(const Work& work, const RankBatch& batch,
                                                           const float* scores) const {
  std::vector<cpu::RankedHead> heads(batch.count());
  const auto fill = [&](uint32_t i) {
    const RankBatch::Head& head = batch.heads[i];
    cpu::RankedHead& out = heads[i];
    out.head = head.head, out.first = head.first;
    const std::span<const uint32_t> positions =
        work.request->kv_entries.positions(head.head).subspan(head.first);
    out.positions.assign(positions.begin(), positions.end());
    work.request->kv_entries.phases(head.head, head.first, &out.phases);
    for (uint32_t range = head.forced_ranges.begin; range < head.forced_ranges.end; ++range) {
      for (uint32_t row = batch.forced[range].begin; row < batch.forced[range].end; ++row)
        out.forced.push_back(row);
    }
    if (scores == nullptr) return;
    const float* const first = scores + uint64_t{i} * batch.rows_max;
    out.scores.assign(first, first + head.rows);
  };
  if (uint64_t{batch.count()} * batch.rows_max >= kFewKvEntries) {
    cpu::side_by_side(batch.count(), fill);
  } else {
    for (uint32_t i = 0; i < batch.count(); ++i) fill(i);
  }
  return heads;
}

// By head group: how many of its candidates each member keeps.
std::vector<uint32_t> CompressedCache::counts(const Work& work, const RankBatch& batch,
                                              const StepStream& on) {
  const std::span<const uint32_t> known = work.compression->keep;
  if (!known.empty()) return {known.begin(), known.end()};
  const uint64_t bytes = uint64_t{batch.count()} * batch.rows_max * sizeof(float);
  grow(&counted_host_, Buffer::Kind::kPinned, bytes, "scores");
  must(
      cudaMemcpyAsync(counted_host_.as<float>(), scores_->scores(), bytes, cudaMemcpyDeviceToHost, on.stream),
      "copy of scores", bytes);
  must(cudaStreamSynchronize(on.stream), "scores of a compression");
  std::vector<uint32_t> out =
      budget_->counts(ranked_heads(work, batch, counted_host_.as<float>()), work.compression->end);
  force_counts(work, batch, &out);
  return out;
}

void CompressedCache::force_counts(const Work& work, const RankBatch& batch,
                                   std::vector<uint32_t>* counts) const {
  const CompressionOutcome* const forced_outcome = forced_retained(given_, work.rows.request);
  if (forced_outcome == nullptr || forced_outcome->counts.size() != counts->size()) return;
  for (uint32_t g = 0; g < counts->size(); ++g) {
    const RankBatch::Head& head = batch.heads[shape_.groups.members(g)[0]];
    const GroupEntries group{work.compression->end, head.first + head.forced_rows,
                             head.rows - head.forced_rows};
    (*counts)[g] = forced_keep_count(forced_outcome->counts[g], group);
  }
}

// Heads of a compression whose rows are not staged. The step's own tables are not needed any more, or not
// yet: those of this compression take their place.
RankBatch CompressedCache::ranked(size_t index) {
  Work& work = work_[index];
  clear_tables();
  retained_total_ = 0;
  if (kv_entries_.packed()) open_ranked(&work);
  RankBatch batch;
  for (uint32_t head = 0; head < llm_.layers * llm_.kv_heads; ++head) {
    pages_of(&work, shape_.groups.group_of(head));
    add_ranked(index, head, &batch);
  }
  return batch;
}

// How much stays is known, once scores are, where it depends on them. Slots that are dropped in place go from
// all heads at once: one list of rows for all.
RankBatch CompressedCache::chosen(size_t index, RankBatch batch, const StepStream& on) {
  Work& work = work_[index];
  if (shape_.slot_retention == SlotRetention::kInPlace) {
    const Compression& c = *work.compression;
    KVT_CHECK(c.begin == 0 && c.keep.size() == 1);
    RankBatch one;
    one.heads = {batch.heads[0]}, one.kv_entries = {batch.kv_entries[0]};
    one.forced = std::move(batch.forced), one.rows_max = batch.rows_max;
    choose(&one, 0, c.keep[0]);
    return one;
  }
  const std::vector<uint32_t> retained = counts(work, batch, on);
  for (uint32_t i = 0; i < batch.count(); ++i)
    choose(&batch, i, retained[shape_.groups.group_of(batch.heads[i].head)]);
  return batch;
}

// One compression of all layers, by its list. Returns what was selected, once it is on the host.
RankBatch CompressedCache::run_compression(size_t index, const StepStream& on) {
  const bool moves = shape_.slot_retention == SlotRetention::kMove;
  RankBatch batch = ranked(index);
  const float* scores = scores_->scores();
  bool scored = false;
  const StepList list = list_compression(moves);
  for (const ListedOperation& one : list.operations()) {
    if (one.kind == Operation::kUpload && scored) batch = chosen(index, std::move(batch), on);
    on.timer->begin(one);
    if (one.kind == Operation::kUpload) {
      scored ? send_choice(&batch, on) : send_ranked(&batch, on);
    } else if (one.kind == Operation::kScore) {
      score_all(index, batch, on);
      scores = moves ? scores_->scores() : mean_score(batch, on);
      scored = true;
    } else if (one.kind == Operation::kSelect) {
      select(batch, choice_lists_, scores, on);
    } else {
      move_retained(batch, choice_lists_, on);
    }
  }
  fetch_retained(on);
  on.timer->end();
  must(cudaStreamSynchronize(on.stream), "compression");
  return batch;
}

// Of a token, for all its heads: scores of sessions are that already.
const float* CompressedCache::mean_score(const RankBatch& batch, const StepStream& on) {
  const uint64_t stride = batch.rows_max;
  float* const mean = scores_->scores() + batch.count() * stride;  // room for one row more
  if (intents_ == nullptr || !intents_->on_device())
    must(mean_scores(scores_->scores(), stride, batch.count(), batch.rows_max, mean, on.stream),
         "mean_scores");
  return mean;
}

void CompressedCache::send_choice(RankBatch* batch, const StepStream& on) {
  grow(&retained_, Buffer::Kind::kDevice, uint64_t{retained_total_} * sizeof(uint32_t), "retained rows");
  grow(&retained_host_, Buffer::Kind::kPinned, uint64_t{retained_total_} * sizeof(uint32_t), "retained rows");
  choice_lists_.clear();
  tables_.add_to(&choice_lists_);
  batch->add_to(&choice_lists_);
  choice_lists_.send(on.stream);
  tables_.put(choice_lists_, on.stream);
}

void CompressedCache::compress(size_t index, const StepStream& on, DataOutcomes* values) {
  Work& work = work_[index];
  const RankBatch batch = run_compression(index, on);
  if (shape_.slot_retention == SlotRetention::kInPlace)
    return drop_slots(&work, batch, &values->retained_live);
  apply(batch);
  if (!work.compression->keep.empty()) return;  // the policy knows
  for (uint32_t g = 0; g < shape_.groups.groups(); ++g) {
    values->retained_counts.push_back(work.request->kv_entries.kv_entries(shape_.groups.members(g)[0]));
  }
}

// What the request begins with, before its rows: none of these is a KV entry yet.
void CompressedCache::compress_before(size_t index, const StepStream& on) {
  Work& work = work_[index];
  const uint32_t tokens = std::exchange(work.rows.tokens, 0);
  drop_slots(&work, run_compression(index, on), &work.live);
  work.rows.tokens = tokens;
}

void CompressedCache::drop_slots(Work* work, const RankBatch& batch, std::vector<uint64_t>* live_out) {
  const std::vector<uint32_t> rows = rows_left(*work, batch, batch.compacts[0].count);
  const std::span<const uint32_t> had = work->request->kv_entries.positions(0);
  std::vector<uint32_t> left = retain_tokens(had, rows, work->compression->end, live_out, [&](uint32_t row) {
    shared_.drop(work->request->kv_entries.place(0, row));
  });
  work->request->kv_entries.drop_all_but(std::move(left));
  resend_tables(work->request);
}

// The rows that select_entries has kept, or those that are forced.
std::vector<uint32_t> CompressedCache::rows_left(const Work& work, const RankBatch& batch,
                                                 uint32_t retained) const {
  const uint32_t* const first = retained_host_.as<uint32_t>();
  if (const CompressionOutcome* const forced_outcome = forced_retained(given_, work.rows.request)) {
    const std::vector<cpu::RankedHead> head = ranked_heads(work, batch, nullptr);
    std::vector<uint32_t> forced_list =
        cpu::forced_outcome_rows(forced_outcome->live, head[0].positions, head[0].forced, retained);
    if (!forced_list.empty()) return forced_list;
  }
  return {first, first + retained};
}

}  // namespace kvtwin::cuda
