#include "engine/cuda/compression/device_scorer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/base/check.h"
#include "engine/cuda/device/cuda_check.h"
#include "kernels/common/small_floats.h"
#include "kernels/scoring/cuda/score_keys_cuda.h"

namespace kvtwin::cuda {

using kernels::ScoreSource;

namespace {

constexpr uint32_t kQueryRows = 32;  // room for queries is a multiple

void started(cudaError_t error, const char* kernel, uint32_t heads, uint32_t rows) {
  must(error, kernel, 0, [&] { return fmt::format("{} heads, {} rows at most", heads, rows); });
}

AttentionScorePool pool_of(kernels::Pool pool) {
  switch (pool) {
    case kernels::Pool::kAverage:
      return AttentionScorePool::kAverage;
    case kernels::Pool::kMax:
      return AttentionScorePool::kMax;
    case kernels::Pool::kNone:
      break;
  }
  return AttentionScorePool::kNone;
}

AttentionScoreReduce reduce_of(kernels::Reduce reduce) {
  switch (reduce) {
    case kernels::Reduce::kMax:
      return AttentionScoreReduce::kMax;
    case kernels::Reduce::kSum:
      return AttentionScoreReduce::kSum;
    case kernels::Reduce::kMean:
      break;
  }
  return AttentionScoreReduce::kMean;
}

}  // namespace

Result<DeviceScorer> DeviceScorer::make(const Config& config, const LlmSpec* llm, const KvEntryMemory* memory,
                                        const cpu::ScorerWeights& weights, uint32_t rows) {
  DeviceScorer out;
  out.config_ = config;
  out.llm_ = llm;
  out.memory_ = memory;
  if (!out.scorer_state_is_gates()) return out;
  Result<KvEntryGates> gates = KvEntryGates::make(weights, *llm, rows);
  if (!gates) return tl::unexpected<Error>(gates.error());
  out.gates_ = std::move(*gates);
  return out;
}

bool DeviceScorer::has_scorer_state() const {
  return source() == ScoreSource::kSums || source() == ScoreSource::kPromptSums ||
         source() == ScoreSource::kStamps || scorer_state_is_gates();
}

bool DeviceScorer::scorer_state_is_gates() const { return source() == ScoreSource::kGates; }

bool DeviceScorer::asks_positions() const { return state_score() != StateScore::kPlain; }

StateScore DeviceScorer::state_score() const {
  if (config_.spec.scorer->weights == kernels::TrainedWeights::kDecayGates) return StateScore::kDecayed;
  const bool per_row =
      source() == ScoreSource::kPromptSums && config_.spec.observed == kernels::ObservedForm::kPerRow;
  return per_row ? StateScore::kPerRow : StateScore::kPlain;
}

bool DeviceScorer::score_heads() const { return source() == ScoreSource::kWindowQueries && !on_host(); }

bool DeviceScorer::probes() const {
  return source() == ScoreSource::kProbes || source() == ScoreSource::kRepeats;
}

bool DeviceScorer::on_host() const { return config_.spec.scorer->device == kernels::DeviceScores::kHost; }

void DeviceScorer::score_probes(AttentionScoreArgs attention_scores, float* scores, uint64_t stride,
                                uint32_t skip, cudaStream_t stream) {
  const kernels::WindowSpec& window = config_.spec.window;
  const bool repeats = source() == ScoreSource::kRepeats;
  attention_scores.sums = sums_.as<float>(), attention_scores.workspace = score_workspace_.as<void>();
  attention_scores.largest = repeats;
  attention_scores.join_logits = !repeats && window.order == kernels::PoolOrder::kReduceLogitsFirst;
  started(compute_attention_scores(attention_scores, stream), "compute_attention_scores",
          attention_scores.count, attention_scores.rows_max);
  WindowScoreArgs args{attention_scores,        scores, stride, window.kernel, pool_of(window.pool),
                       reduce_of(window.reduce)};
  args.pool_first = window.order == kernels::PoolOrder::kPoolThenReduce;
  if (repeats)
    args.kernel = 1, args.pool = AttentionScorePool::kNone, args.reduce = AttentionScoreReduce::kMax;
  args.probes = true, args.skip = skip;
  started(score_window_entries(args, stream), "score_window_entries", attention_scores.count,
          attention_scores.rows_max);
}

bool DeviceScorer::by_position() const { return config_.spec.scorer->by_position(); }

// Attention observed during a prompt becomes scorer state chunk by chunk.
cpu::CaptureRange DeviceScorer::capture_range(const cpu::StepRows& rows) const {
  return source() == ScoreSource::kPromptSums ? cpu::CaptureRange{} : cpu::capture_range(config_, rows);
}

void DeviceScorer::begin_rows(const cpu::StepRows& rows, State* state) {
  // Scorers that work at chunk ends score their chunk alone.
  if (config_.compression_trigger == CompressionTrigger::kChunkEnd && rows.prompt) state->phases.clear();
  const uint32_t retained = capture_range(rows).kept, had = static_cast<uint32_t>(state->phases.size());
  const uint32_t needed = retained == cpu::kAllRows ? had + rows.tokens : retained;
  if (needed <= state->room) return;
  const uint64_t row = uint64_t{llm_->query_heads} * llm_->head_dim * sizeof(__nv_bfloat16);
  State larger = take_queries(retained == cpu::kAllRows ? 2 * needed : needed);
  larger.phases = state->phases;
  for (uint32_t l = 0; had > 0 && l < llm_->layers; ++l) {  // nothing is in flight
    must(cudaMemcpy(larger.queries.as<char>(l * larger.room * row), queries(*state, l), had * row,
                    cudaMemcpyDeviceToDevice),
         "copy of queries", had * row);
  }
  end_rows(state);
  *state = std::move(larger);
}

DeviceScorer::State DeviceScorer::take_queries(uint32_t rows) {
  const auto free = std::find_if(free_queries_.begin(), free_queries_.end(),
                                 [&](const State& one) { return one.room >= rows; });
  State out;
  if (free != free_queries_.end()) {
    out = std::move(*free);
    free_queries_.erase(free);
    return out;
  }
  const uint64_t row = uint64_t{llm_->query_heads} * llm_->head_dim * sizeof(__nv_bfloat16);
  out.room = div_ceil(rows, kQueryRows) * kQueryRows;
  grow(&out.queries, Buffer::Kind::kDevice, 2 * row * out.room * llm_->layers, "captured queries");
  return out;
}

void DeviceScorer::end_rows(State* state) {
  State ended = std::exchange(*state, State{});
  if (ended.room == 0) return;
  ended.phases.clear(), ended.side = 0;
  free_queries_.push_back(std::move(ended));
}

void DeviceScorer::reserve_queries() {
  const uint32_t rows = capture_range({.tokens = 1, .prompt = true}).kept;
  if (rows == 0 || rows == cpu::kAllRows) return;
  State first = take_queries(rows), second = take_queries(rows);
  end_rows(&first), end_rows(&second);
}

bool DeviceScorer::captures_prompts_alone() const {
  return config_.compression_trigger != CompressionTrigger::kDecodeStep &&
         !config_.spec.scorer->watches_decodes;
}

const __nv_bfloat16* DeviceScorer::queries(const State& state, uint32_t layer) const {
  const uint64_t row = uint64_t{llm_->query_heads} * llm_->head_dim;
  return state.queries.as<__nv_bfloat16>() + (uint64_t{state.side} * llm_->layers + layer) * state.room * row;
}

std::vector<cpu::Queries> DeviceScorer::fetch_queries(const State& state, cudaStream_t stream) const {
  const uint64_t row = uint64_t{llm_->query_heads} * llm_->head_dim, count = state.phases.size() * row;
  std::vector<cpu::Queries> out(llm_->layers);
  if (count == 0) return out;
  std::vector<uint16_t> bits(count * llm_->layers);
  must(cudaMemcpy2DAsync(bits.data(), count * sizeof(uint16_t), queries(state, 0),
                         state.room * row * sizeof(uint16_t), count * sizeof(uint16_t), llm_->layers,
                         cudaMemcpyDeviceToHost, stream),
       "copy of queries", bits.size() * sizeof(uint16_t));
  must(cudaStreamSynchronize(stream), "copy of queries");
  for (uint32_t l = 0; l < llm_->layers; ++l) {
    out[l].phases = out[l].positions = state.phases;
    out[l].rows.resize(count);
    for (uint64_t i = 0; i < count; ++i) out[l].rows[i] = kernels::from_bf16(bits[l * count + i]);
  }
  return out;
}

void DeviceScorer::capture(uint32_t layer, const cpu::StepRows& rows, const __nv_bfloat16* q, State* state,
                           cudaStream_t stream) const {
  const cpu::CaptureRange own = capture_range(rows);
  if (own.count == 0) return;
  const uint64_t row = uint64_t{llm_->query_heads} * llm_->head_dim;
  const auto had = static_cast<uint32_t>(state->phases.size());
  const uint32_t old = std::min(had, own.kept - own.count);
  auto* const to = state->queries.as<__nv_bfloat16>() +
                   (uint64_t{1 - state->side} * llm_->layers + layer) * state->room * row;
  const auto copy = [&](__nv_bfloat16* target, const __nv_bfloat16* source, uint32_t count) {
    if (count == 0) return;
    must(cudaMemcpyAsync(target, source, count * row * sizeof(*q), cudaMemcpyDeviceToDevice, stream),
         "copy of queries", count * row * sizeof(*q));
  };
  copy(to, queries(*state, layer) + (had - old) * row, old);
  copy(to + old * row, q + (uint64_t{rows.row} + own.first) * row, own.count);
}

void DeviceScorer::captured(const cpu::StepRows& rows, State* state) const {
  const cpu::CaptureRange own = capture_range(rows);
  if (own.count == 0) return;
  for (uint32_t i = own.first; i < own.first + own.count; ++i) state->phases.push_back(rows.phase + i);
  if (state->phases.size() > own.kept)
    state->phases.erase(state->phases.begin(), state->phases.end() - static_cast<ptrdiff_t>(own.kept));
  state->side = 1 - state->side;
}

void DeviceScorer::update_state(uint32_t layer, const LayerRows& tensors, const DeviceRows& rows,
                                Matmul* matmul, cudaStream_t stream) {
  if (!has_scorer_state()) return;
  NewStateArgs args;
  args.slots = rows.slots, args.scorer_state = memory_->scorer_state();
  args.rows = rows.rows, args.kv_heads = llm_->kv_heads;
  args.page_tokens = memory_->stored(nullptr, false).page_tokens;
  if (source() == ScoreSource::kStamps) args.positions = rows.positions;
  if (scorer_state_is_gates()) args.values = gates_.of(layer, tensors.hidden, rows, matmul, stream);
  started(write_state(args, stream), "write_state", llm_->kv_heads, rows.rows);
}

bool DeviceScorer::observes(const cpu::StepRows& rows) const {
  if (source() == ScoreSource::kSums) return true;
  if (source() == ScoreSource::kPromptSums) return rows.prompt;
  return source() == ScoreSource::kStamps && rows.samples;
}

void DeviceScorer::observe_state(AttentionScoreArgs attention_scores, uint32_t now, cudaStream_t stream) {
  if (attention_scores.count == 0) return;
  attention_scores.sums = sums_.as<float>(), attention_scores.workspace = score_workspace_.as<void>();
  const bool stamps = source() == ScoreSource::kStamps;
  if (stamps && !config_.spec.raas.scaled) attention_scores.scale = 1;
  started(compute_attention_scores(attention_scores, stream), "compute_attention_scores",
          attention_scores.count, attention_scores.rows_max);
  const StateUpdateArgs args{attention_scores, memory_->scorer_state(), config_.spec.raas.alpha,
                             static_cast<float>(now)};
  started(stamps ? stamp_entries(args, stream) : gather_state(args, stream), "gather_state",
          attention_scores.count, attention_scores.rows_max);
}

AttentionScoreArgs DeviceScorer::attention_score_args(const RankBatch& batch, const DeviceLists& lists,
                                                      uint32_t first, uint32_t count, const uint32_t* tables,
                                                      const __nv_bfloat16* q, bool listed) const {
  const kernels::WindowSpec& window = config_.spec.window;
  AttentionScoreArgs out;
  out.kv_entries = memory_->kv_entries(tables, listed);
  out.heads = lists.at(batch.at.score_heads) + first, out.visible = lists.at(batch.at.visible);
  out.q = q, out.q_stride = llm_->query_heads * llm_->head_dim;
  out.scale = 1 / std::sqrt(static_cast<float>(llm_->head_dim));
  out.count = count, out.group = llm_->query_heads / llm_->kv_heads;
  out.rows_max = batch.rows_max, out.queries_max = batch.queries_max;
  out.stride = batch.rows_max;
  const bool last_row = config_.spec.scorer->joins_heads;
  out.join_logits = !last_row && window.order == kernels::PoolOrder::kReduceLogitsFirst;
  out.weigh_visible = !last_row && window.weigh_visible;
  out.sums = sums_.as<float>(), out.workspace = score_workspace_.as<void>();
  return out;
}

void DeviceScorer::score(const RankBatch& batch, const DeviceLists& lists, uint32_t first, uint32_t count,
                         const uint32_t* tables, const __nv_bfloat16* q, bool listed, uint32_t tokens,
                         uint64_t stride, cudaStream_t stream) {
  if (count == 0 || by_position() || probes() || on_host() || config_.spec.scorer->scores_tokens()) return;
  float* const out = scores() + first * stride;
  const kernels::ScoreSpec& spec = config_.spec;
  if (score_heads()) {
    const AttentionScoreArgs attention_scores =
        attention_score_args(batch, lists, first, count, tables, q, listed);
    started(compute_attention_scores(attention_scores, stream), "compute_attention_scores", count,
            batch.rows_max);
    if (spec.scorer->joins_heads) {
      return started(score_layer_entries({attention_scores, out, stride, llm_->kv_heads}, stream),
                     "score_layer_entries", count, batch.rows_max);
    }
    WindowScoreArgs args{attention_scores,
                         out,
                         stride,
                         spec.window.kernel,
                         pool_of(spec.window.pool),
                         reduce_of(spec.window.reduce)};
    args.pool_first = spec.window.order == kernels::PoolOrder::kPoolThenReduce;
    return started(score_window_entries(args, stream), "score_window_entries", count, batch.rows_max);
  }
  if (source() == ScoreSource::kStamps &&
      !batch.score_heads.empty()) {  // a prompt: nothing was stamped for it
    const AttentionScoreArgs attention_scores =
        attention_score_args(batch, lists, first, count, tables, q, listed);
    return started(score_pointed_entries(attention_scores, out, stride, stream), "score_pointed_entries",
                   count, batch.rows_max);
  }
  if (has_scorer_state()) {
    StateScoreArgs args{memory_->stored(tables, listed),
                        lists.at(batch.at.scorer_state) + first,
                        memory_->scorer_state(),
                        lists.at(batch.at.positions),
                        out,
                        stride,
                        count,
                        batch.rows_max,
                        tokens};
    args.kind = state_score();
    if (args.kind == StateScore::kDecayed) ++args.now;
    return started(score_from_state(args, stream), "score_from_state", count, batch.rows_max);
  }
  const KeyScoreArgs args{memory_->kv_entries(tables, listed),
                          lists.at(batch.at.kv_entries) + first,
                          out,
                          stride,
                          count,
                          batch.rows_max,
                          keydiff_.as<float>()};
  if (spec.scorer->device == kernels::DeviceScores::kKeyNorms)
    return started(score_knorm_entries(args, stream), "score_knorm_entries", count, batch.rows_max);
  KVT_CHECK(spec.scorer->device == kernels::DeviceScores::kKeyAngles);
  started(score_keydiff_entries(args, stream), "score_keydiff_entries", count, batch.rows_max);
}

// One row more than heads: of their mean.
void DeviceScorer::reserve_scores(uint32_t heads, uint64_t stride) {
  grow(&scores_, Buffer::Kind::kDevice, (uint64_t{heads} + 1) * stride * sizeof(float), "scores");
  if (config_.spec.scorer->device == kernels::DeviceScores::kKeyAngles) {
    grow(&keydiff_, Buffer::Kind::kDevice,
         keydiff_floats(heads, static_cast<uint32_t>(stride), llm_->head_dim) * sizeof(float),
         "sums of keys");
  }
}

void DeviceScorer::reserve_attention_scores(const AttentionScoreArgs& attention_scores) {
  grow(&sums_, Buffer::Kind::kDevice,
       uint64_t{attention_scores.count} * attention_scores.lanes() * attention_scores.stride * sizeof(float),
       "sums of attention");
  grow(&score_workspace_, Buffer::Kind::kDevice, attention_score_workspace_bytes(attention_scores),
       "attention of scorers");
}

}  // namespace kvtwin::cuda
