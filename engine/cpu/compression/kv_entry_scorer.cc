// KvEntryScorer: from captured rows and gathered KV entries to the inputs of kernels/scoring/score.h.

#include "engine/cpu/compression/kv_entry_scorer.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin::cpu {

using kernels::AttentionScores;
using kernels::HeadsView;
using kernels::Positions;
using kernels::ScoreSource;
using kernels::ScoreView;

namespace {

// The first row's part that begins at `at`; null if there are no rows.
const float* part_of(const std::vector<float>& rows, size_t at) {
  return rows.empty() ? nullptr : rows.data() + at;
}

}  // namespace

// Contiguous tensors that views point to; must not move while the views are used.
struct KvEntryScorer::Gathered {
  uint32_t heads = 0, rows = 0, dim = 0;
  std::vector<float> keys, values, scores;
  std::vector<uint32_t> positions, phases;
  std::vector<uint32_t> query_phases;
  HeadsView q, own_k;

  HeadsView k() const { return kernels::packed_heads(keys, heads, rows, dim); }
  HeadsView v() const { return kernels::packed_heads(values, heads, rows, dim); }
  Positions at() const { return {rows, positions}; }
  Positions turned() const { return {rows, phases}; }
  ScoreView out() { return kernels::packed_scores(scores, heads, rows); }
  AttentionScores attention_scores() const { return {q, query_phases, k(), turned(), {}, false}; }
};

void KvEntryScorer::score(uint32_t layer, std::span<RankedHead> heads, uint32_t tokens, const StepRows& rows,
                          uint32_t expected, const State& state) const {
  // Scores the heads of a layer together, as the kernels expect; one by one if they hold different numbers of
  // KV entries.
  const bool equal = std::all_of(heads.begin(), heads.end(),
                                 [&](const RankedHead& head) { return head.rows() == heads[0].rows(); });
  if (equal) return score_heads(layer, heads, tokens, rows, expected, state);
  KVT_CHECK(!config_.spec.scorer->joins_heads);
  for (size_t h = 0; h < heads.size(); ++h) {
    score_heads(layer, heads.subspan(h, 1), tokens, rows, expected, state);
  }
}

void KvEntryScorer::score_heads(uint32_t layer, std::span<RankedHead> heads, uint32_t tokens,
                                const StepRows& rows, uint32_t expected, const State& state) const {
  Gathered g;
  g.heads = static_cast<uint32_t>(heads.size());
  g.rows = heads[0].rows();
  g.dim = llm_.head_dim;
  g.scores.resize(size_t{g.heads} * g.rows);
  for (const RankedHead& head : heads) {
    g.positions.insert(g.positions.end(), head.positions.begin(), head.positions.end());
    g.phases.insert(g.phases.end(), head.phases.begin(), head.phases.end());
    if ((captured_ & kernels::capture::kKeys) != 0) store_->keys(head.head, head.places, &g.keys);
    if ((captured_ & kernels::capture::kValues) != 0) store_->values(head.head, head.places, &g.values);
  }
  const Queries& queries = state.queries[layer];
  const uint32_t group = llm_.query_heads / llm_.kv_heads;
  const size_t width = size_t{llm_.query_heads} * llm_.head_dim;
  const uint32_t first = heads[0].head % llm_.kv_heads * group;
  g.query_phases = queries.phases;
  g.q = {part_of(queries.rows, size_t{first} * llm_.head_dim),
         g.heads * group,
         static_cast<uint32_t>(queries.phases.size()),
         llm_.head_dim,
         llm_.head_dim,
         width,
         {}};
  if (source() == ScoreSource::kProbes) {
    const Probes& probes = state.probes[layer];
    g.q.data = part_of(probes.queries, size_t{first} * llm_.head_dim);
    g.q.rows = probes.rows;
    g.own_k = {part_of(probes.keys, size_t{heads[0].head % llm_.kv_heads} * llm_.head_dim),
               g.heads,
               probes.rows,
               llm_.head_dim,
               llm_.head_dim,
               size_t{llm_.kv_heads} * llm_.head_dim,
               {}};
  }
  score_gathered(&g, layer, heads, tokens, rows, expected, state);
  for (uint32_t h = 0; h < g.heads; ++h) {
    const std::span<const float> row = g.out().row(h);
    heads[h].scores.assign(row.begin(), row.end());
  }
}

void KvEntryScorer::score_gathered(Gathered* g, uint32_t layer, std::span<RankedHead> heads, uint32_t tokens,
                                   const StepRows& rows, uint32_t expected, const State& state) const {
  const kernels::ScoreSpec& spec = config_.spec;
  kernels::ScoreInputs in;
  in.layer = layer;
  in.layers = llm_.layers;
  in.head_first = heads[0].head % llm_.kv_heads;
  in.tokens = tokens;
  in.positions = g->at();
  in.k = g->k();
  in.v = g->v();
  in.q = g->q;
  in.own_k = g->own_k;
  in.q_positions = g->query_phases;
  in.rope = planes();
  in.query_heads = llm_.query_heads;
  in.retained = expected;
  std::vector<kernels::RowSet> forced;
  std::vector<float> scratch;
  kernels::OutputProjection output;
  switch (source()) {
    case ScoreSource::kWindowQueries:
      in.positions = g->turned();
      for (const RankedHead& head : heads) forced.push_back(head.forced);
      in.forced = forced;
      if ((captured_ & kernels::capture::kOutputWeights) == 0) break;
      output = {llm_.hidden, llm_.query_heads, output_[layer]};
      in.output = &output;
      break;
    case ScoreSource::kAllQueries:
      in.positions = g->turned();
      in.tokens = rows.phase + rows.tokens;
      scratch.resize(size_t{g->q.heads} * g->q.rows * g->dim);
      kernels::unrotate_queries(planes(), g->q, g->query_phases, scratch);
      in.q_hat = kernels::packed_heads(scratch, g->q.heads, g->q.rows, g->dim);
      break;
    case ScoreSource::kPromptSums:
      return kernels::score_observed(spec.observed, g->attention_scores(), spec.window.window, g->out());
    case ScoreSource::kSums:
    case ScoreSource::kGates:
    case ScoreSource::kStamps:
    case ScoreSource::kRepeats:
      return score_retained(g, heads, tokens, rows, state);
    default:
      break;
  }
  kernels::score_entries(spec, in, g->out());
}

// Scores from values that KV entries carry, or that were accumulated.
void KvEntryScorer::score_retained(Gathered* g, std::span<RankedHead> heads, uint32_t tokens,
                                   const StepRows& rows, const State& state) const {
  std::vector<float> scorer_state;
  for (uint32_t h = 0; h < g->heads; ++h) {
    const RankedHead& head = heads[h];
    const std::span<float> out = g->out().row(h);
    if (source() == ScoreSource::kSums) {
      std::copy_n(state.gathered[head.head].begin() + head.first, head.rows(), out.begin());
    } else if (source() == ScoreSource::kRepeats) {
      std::copy_n(state.repeated[head.head].begin() + head.first, head.rows(), out.begin());
    } else if (source() == ScoreSource::kStamps && !rows.prompt) {
      const std::vector<uint32_t>& stamps = state.stamps[head.head];
      kernels::score_raas({stamps.data() + head.first, head.rows()}, 1, out);
    } else if (source() == ScoreSource::kGates) {
      for (const Place place : head.places) scorer_state.push_back(*store_->state_value(head.head, place));
    }
  }
  if (config_.spec.scorer->weights == kernels::TrainedWeights::kHeadGates)
    std::copy(scorer_state.begin(), scorer_state.end(), g->scores.begin());
  if (config_.spec.scorer->weights == kernels::TrainedWeights::kDecayGates) {
    kernels::score_trimkv(config_.spec.trim, kernels::packed_scores(scorer_state, g->heads, g->rows), g->k(),
                          g->at(), tokens, g->out());
  }
  // A prompt that is longer than the budget: scored by the attention of the last query
  // (docs/design/methods/uniform.md#raas).
  if (source() == ScoreSource::kStamps && rows.prompt) {
    kernels::score_raas_prompt(g->q, g->k(), g->out());
  }
}

void KvEntryScorer::score_repeated(uint32_t layer, const Probes& probes, const ProbePass& pass,
                                   uint32_t begin, const RequestTable& kv_entries, State* state) const {
  const uint32_t group = llm_.query_heads / llm_.kv_heads, dim = llm_.head_dim;
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    const uint32_t head = layer * llm_.kv_heads + h;
    const std::span<const uint32_t> positions = kv_entries.positions(head);
    std::vector<Place> places;
    std::vector<uint32_t> repeated;  // indices of the chunk's KV entries
    uint32_t sinks = 0;
    for (uint32_t kv_entry = 0; kv_entry < positions.size(); ++kv_entry) {
      const bool in_chunk = positions[kv_entry] >= pass.begin && positions[kv_entry] < pass.end;
      if (positions[kv_entry] >= begin && !in_chunk) continue;
      places.push_back(kv_entries.place(store_->shape().groups.group_of(head), kv_entry));
      if (in_chunk) repeated.push_back(kv_entry);
      if (!in_chunk) ++sinks;
    }
    std::vector<float> keys, scores(repeated.size());
    store_->keys(head, places, &keys);
    const auto rows = static_cast<uint32_t>(places.size());
    const kernels::AttentionScores attention_scores{
        {probes.queries.data() + size_t{h} * group * dim,
         group,
         probes.rows,
         dim,
         dim,
         size_t{llm_.query_heads} * dim,
         {}},
        {},
        kernels::packed_heads(keys, 1, rows, dim),
        {rows, {}},
        {probes.keys.data() + size_t{h} * dim, 1, probes.rows, dim, dim, size_t{llm_.kv_heads} * dim, {}},
        false};
    kernels::score_kvzip_chunk(attention_scores, sinks,
                               kernels::packed_scores(scores, 1, static_cast<uint32_t>(scores.size())));
    std::vector<float>& out = state->repeated[head];
    out.resize(positions.size(), 1.0f);  // KV entries of the system prefix get 1
    for (size_t i = 0; i < repeated.size(); ++i) out[repeated[i]] = scores[i];
  }
}

}  // namespace kvtwin::cpu
