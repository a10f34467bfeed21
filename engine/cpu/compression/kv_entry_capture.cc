// KvEntryScorer: captures while rows are computed.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/cpu/compression/kv_entry_scorer.h"

namespace kvtwin::cpu {

using kernels::HeadsView;
using kernels::ScoreSource;

KvEntryScorer::KvEntryScorer(const ScorerConfig& config, const ModelWeights* model,
                             const ScorerWeights* weights, KvEntryStore* store)
    : config_(config),
      llm_(model->llm()),
      rope_(rope_frequencies(model->llm())),
      captured_(config.spec.scorer->captures),
      store_(store),
      weights_(*weights) {
  if ((captured_ & kernels::capture::kOutputWeights) == 0) return;
  for (uint32_t l = 0; l < llm_.layers; ++l) output_.push_back(read_floats(model->layer(l).o));
}

void KvEntryScorer::State::keep(uint32_t head, uint32_t first, std::span<const uint32_t> rows) {
  const auto keep_of = [&](auto& of_heads) {
    if (of_heads.empty()) return;
    auto& list = of_heads[head];
    for (size_t i = 0; i < rows.size(); ++i) list[first + i] = list[first + rows[i]];
    list.resize(first + rows.size());
  };
  keep_of(gathered);
  keep_of(stamps);
}

void KvEntryScorer::begin(State* state) const {
  *state = {};
  state->queries.resize(llm_.layers);
  const size_t heads = size_t{llm_.layers} * llm_.kv_heads;
  if (source() == ScoreSource::kSums) state->gathered.resize(heads);
  if (source() == ScoreSource::kStamps) state->stamps.resize(heads);
}

void KvEntryScorer::begin_rows(const StepRows& rows, State* state) const {
  // Scorers at chunk ends use the queries of one chunk alone.
  if (config_.compression_trigger != CompressionTrigger::kChunkEnd || !rows.prompt) return;
  for (Queries& queries : state->queries) queries.clear();
}

namespace {

CaptureRange last_rows(uint32_t kept, const StepRows& rows) {
  const uint32_t count = std::min(kept, rows.tokens);
  return {rows.tokens - count, count, kept};
}

// Those at positions of the query span.
CaptureRange rows_of_query(const StepRows& rows) {
  const auto row_of = [&](uint32_t position) {
    return std::clamp(position, rows.context, rows.context + rows.tokens) - rows.context;
  };
  const uint32_t first = row_of(rows.query.begin);
  return {first, row_of(rows.query.end) - first, rows.query.tokens()};
}

}  // namespace

CaptureRange capture_range(const ScorerConfig& config, const StepRows& rows) {
  const bool asks = rows.prompt || config.spec.scorer->watches_decodes;
  switch (config.spec.scorer->source) {
    case ScoreSource::kWindowQueries:
    case ScoreSource::kStamps:
      return asks ? last_rows(config.spec.window.window, rows) : CaptureRange{};
    case ScoreSource::kAllQueries:
    case ScoreSource::kPromptSums:
      return rows.prompt ? last_rows(kAllRows, rows) : CaptureRange{};
    case ScoreSource::kSessionMemory:
      return rows.prompt ? rows_of_query(rows) : CaptureRange{};
    default:
      return {};
  }
}

void KvEntryScorer::update_state(uint32_t layer, const float* hidden, uint32_t rows,
                                 std::span<const Place> places) const {
  std::vector<float> scorer_state(size_t{llm_.kv_heads} * rows);
  const kernels::ScoreView out = kernels::packed_scores(scorer_state, llm_.kv_heads, rows);
  const HeadsView x{hidden, 1, rows, llm_.hidden, 0, llm_.hidden, {}};
  if (config_.spec.scorer->weights == kernels::TrainedWeights::kHeadGates) {
    kernels::score_fastkvzip(weights_.fastkvzip[layer].gate(), x, out);
  } else {
    kernels::trimkv_log_beta(weights_.trimkv[layer].gate(), x, out);
  }
  for (uint32_t row = 0; row < rows; ++row) {
    for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
      *store_->state_value(layer * llm_.kv_heads + h, places[size_t{row} * llm_.kv_heads + h]) =
          out.row(h)[row];
    }
  }
}

void KvEntryScorer::observe(uint32_t layer, const StepRows& rows, const float* q,
                            const RequestTable& kv_entries, State* state) const {
  if (const CaptureRange captured = capture_range(config_, rows); captured.count > 0) {
    const size_t width = size_t{llm_.query_heads} * llm_.head_dim;
    Queries& queries = state->queries[layer];
    const uint32_t end = captured.first + captured.count;
    queries.rows.insert(queries.rows.end(), q + captured.first * width, q + end * width);
    for (uint32_t i = captured.first; i < end; ++i) {
      queries.positions.push_back(rows.context + i);
      queries.phases.push_back(rows.phase + i);
    }
    if (queries.positions.size() > captured.kept) {
      const auto surplus = static_cast<ptrdiff_t>(queries.positions.size() - captured.kept);
      queries.rows.erase(queries.rows.begin(),
                         queries.rows.begin() + surplus * static_cast<ptrdiff_t>(width));
      queries.positions.erase(queries.positions.begin(), queries.positions.begin() + surplus);
      queries.phases.erase(queries.phases.begin(), queries.phases.begin() + surplus);
    }
  }
  if (source() == ScoreSource::kSums) accumulate(layer, rows, q, kv_entries, state);
  if (source() == ScoreSource::kStamps) touch(layer, rows, q, kv_entries, state);
}

namespace {

// The keys of all KV entries of one head, and the positions that they are rotated by.
struct Keys {
  std::vector<float> keys;
  std::vector<uint32_t> phases;

  Keys(const KvEntryStore& store, const RequestTable& kv_entries, const RequestTableShape& shape,
       uint32_t head) {
    std::vector<Place> places;
    const uint32_t group = shape.groups.group_of(head);
    for (uint32_t kv_entry = 0; kv_entry < kv_entries.kv_entries(head); ++kv_entry)
      places.push_back(kv_entries.place(group, kv_entry));
    store.keys(head, places, &keys);
    kv_entries.phases(head, 0, &phases);
  }
  uint32_t rows() const { return static_cast<uint32_t>(phases.size()); }
};

}  // namespace

// Each query row is added separately, so that sums do not depend on the division of rows into steps.
void KvEntryScorer::accumulate(uint32_t layer, const StepRows& rows, const float* q,
                               const RequestTable& kv_entries, State* state) const {
  const uint32_t group = llm_.query_heads / llm_.kv_heads, dim = llm_.head_dim;
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    const uint32_t head = layer * llm_.kv_heads + h;
    const Keys keys(*store_, kv_entries, store_->shape(), head);
    std::vector<float>& sums = state->gathered[head];
    sums.resize(keys.rows(), 0.0f);
    for (uint32_t i = 0; i < rows.tokens; ++i) {
      // Later KV entries are not visible; leaving them out saves work.
      const uint32_t seen = keys.rows() - rows.tokens + i + 1;
      const float* const query = q + (size_t{i} * llm_.query_heads + size_t{h} * group) * dim;
      const kernels::AttentionScores attention_scores{
          {query, group, 1, dim, dim, 0, {}},         {}, {keys.keys.data(), 1, seen, dim, 0, dim, {}},
          {seen, std::span(keys.phases).first(seen)}, {}, false};
      kernels::h2o_accumulate(attention_scores, kernels::packed_scores(std::span(sums).first(seen), 1, seen));
    }
  }
}

// RaaS with pages of one KV entry: stamps move with their KV entries. A KV entry is stamped when it is
// created, and again when the newest query attends to it. A prompt has one such query, its last.
void KvEntryScorer::touch(uint32_t layer, const StepRows& rows, const float* q,
                          const RequestTable& kv_entries, State* state) const {
  const uint32_t group = llm_.query_heads / llm_.kv_heads, dim = llm_.head_dim;
  const uint32_t now = rows.context + rows.tokens;
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    const uint32_t head = layer * llm_.kv_heads + h;
    std::vector<uint32_t>& stamps = state->stamps[head];
    const std::span<const uint32_t> positions = kv_entries.positions(head);
    for (size_t kv_entry = stamps.size(); kv_entry < positions.size(); ++kv_entry)
      stamps.push_back(positions[kv_entry] + 1);
    if (!rows.samples) continue;
    const Keys keys(*store_, kv_entries, store_->shape(), head);
    std::vector<float> attention(keys.rows());
    const HeadsView k{keys.keys.data(), 1, keys.rows(), dim, 0, dim, {}};
    const float* const query = q + (size_t{rows.tokens - 1} * llm_.query_heads + size_t{h} * group) * dim;
    kernels::raas_attention(config_.spec.raas, {query, group, 1, dim, dim, 0, {}}, k, k,
                            kernels::packed_scores(attention, 1, keys.rows()));
    kernels::raas_touch(config_.spec.raas, attention, now, stamps);
  }
}

}  // namespace kvtwin::cpu
