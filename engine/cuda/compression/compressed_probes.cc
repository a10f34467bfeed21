// What scorers ask besides the prompt's own rows: passes of probe rows, a session's memory, and what is
// computed on the host.

#include <fmt/format.h>

#include <algorithm>

#include "engine/base/check.h"
#include "engine/base/prng.h"
#include "engine/cuda/compression/compressed_cache.h"
#include "engine/cuda/cuda_forward.h"
#include "engine/cuda/device/cuda_check.h"
#include "engine/methods/scorer_spec.h"

namespace kvtwin::cuda {

bool reads_matrices(const kernels::ScorerDefinition& scorer) {
  return scorer.captures_any(kernels::capture::kOutputWeights);
}

// The pass of an entry: scores of all heads, made while its rows go by. Soft tokens' scores are on the device
// until the compression, which follows at once. Scores of a repeated context are on the host between steps.
void CompressedCache::run_pass(size_t index, const StepStream& on) {
  Work& work = work_[index];
  const uint32_t heads = llm_.layers * llm_.kv_heads;
  uint32_t rows = 0;
  for (uint32_t head = 0; head < heads; ++head) rows = std::max(rows, rows_ranked(work, head, 0));
  scores_->reserve_scores(heads, rows);
  probing_ = Probing{rows, *work.pass, 0};
  if (work.pass->repeats()) {
    run_repeat(&work, on);
  } else {
    run_soft_tokens(&work, on);
  }
  probing_.reset();
}

void CompressedCache::run_soft_tokens(Work* work, const StepStream& on) {
  const ScorerSpec& spec = options_.config.core.policies.scorer_spec;
  const uint32_t end = work->pass->end;
  if (!options_.config.ask_response) return probe(work, {}, weights_.soft_tokens, on);
  // What is fed back: the last token of the output never is.
  const uint32_t asked = captured_queries(options_.config.core.policies.scorer, spec);
  const uint32_t last =
      access_.prompt_tokens(work->rows.request) + std::max(access_.output_tokens(work->rows.request), 2u) - 1;
  std::vector<uint32_t> tokens;
  for (uint32_t p = end; p < std::min(last, end + asked); ++p)
    tokens.push_back(access_.token(work->rows.request, p));
  probe(work, tokens, {}, on);
}

// As cpu::CompressedCache does: an instruction, the end of the part before, and the part itself once more.
// Where earlier chunks are compressed already, the scores of passes begin with the first of this chunk's.
void CompressedCache::run_repeat(Work* work, const StepStream& on) {
  const ProbePass& pass = *work->pass;
  const cpu::RequestTable& kv_entries = work->request->kv_entries;
  std::vector<uint32_t> tokens = cpu::repeat_instruction(options_.config, llm_.vocab);
  for (uint32_t p = pass.repeated; p < pass.end; ++p) tokens.push_back(access_.token(work->rows.request, p));
  probing_->sinks = options_.config.core.policies.budget_spec.sinks;
  probing_->stride = pass.end - pass.begin;
  RepeatedScores& repeated = work->request->repeated;
  if (pass.first) {
    repeated.first = kv_entries.kv_entries(0) == kv_entries.tokens() ? 0 : pass.begin;
    repeated.count = kv_entries.tokens() - repeated.first;
    // Of entries that no pass repeats.
    repeated.scores.assign(uint64_t{llm_.layers} * llm_.kv_heads * repeated.count, 1.0f);
  }
  KVT_CHECK(pass.begin >= repeated.first && pass.end <= repeated.first + repeated.count);
  probe(work, tokens, {}, on);
  fetch_repeated(work, on);
  if (work->compression != nullptr) send_repeated(work, on);
}

// The scores of the pass's own KV entries join those of the passes before it.
void CompressedCache::fetch_repeated(Work* work, const StepStream& on) {
  RepeatedScores& repeated = work->request->repeated;
  const uint64_t width = probing_->stride * sizeof(float), heads = uint64_t{llm_.layers} * llm_.kv_heads;
  must(cudaMemcpy2DAsync(repeated.scores.data() + work->pass->begin - repeated.first,
                         repeated.count * sizeof(float), scores_->scores(), width, width, heads,
                         cudaMemcpyDeviceToHost, on.stream),
       "copy of scores", width * heads);
  must(cudaStreamSynchronize(on.stream), "copy of scores");
}

// Nothing was dropped of the positions that are ranked: row i is position begin + i.
void CompressedCache::send_repeated(Work* work, const StepStream& on) {
  RepeatedScores& repeated = work->request->repeated;
  const Compression& c = *work->compression;
  KVT_CHECK(c.begin >= repeated.first && c.end == repeated.first + repeated.count);
  const uint64_t heads = uint64_t{llm_.layers} * llm_.kv_heads, rows = c.end - c.begin;
  host_scores_.resize(heads * rows);
  for (uint64_t head = 0; head < heads; ++head) {
    const float* const from = repeated.scores.data() + (head + 1) * repeated.count - rows;
    std::copy(from, from + rows, host_scores_.begin() + static_cast<ptrdiff_t>(head * rows));
  }
  repeated.scores.clear();
  send_scores(on);
}

// Rows after the request's KV entries that are not retained: they are staged, and nothing is ranked.
// `tokens`, or `values` as they enter the first layer.
void CompressedCache::probe(Work* of, const std::vector<uint32_t>& tokens, const std::vector<float>& values,
                            const StepStream& on) {
  const auto count = static_cast<uint32_t>(tokens.empty() ? values.size() / llm_.hidden : tokens.size());
  if (count == 0) return;
  KVT_CHECK(count <= memory_.rows_max);
  std::vector<Work> step = std::move(work_);
  const uint32_t step_rows = rows_, step_padded = padded_;
  Work work;
  work.request = of->request;
  work.rows = {.request = of->rows.request,
               .row = 0,
               .tokens = count,
               .context = of->request->kv_entries.tokens(),
               .phase = of->request->kv_entries.next_phase(),
               .prompt = true,
               .samples = false,
               .staged = true};
  work_.clear();
  work_.push_back(std::move(work));
  rows_ = padded_ = count;
  write_lists(on);
  std::vector<uint32_t> positions;
  for (uint32_t i = 0; i < count; ++i) positions.push_back(work_[0].rows.phase + i);
  choice_lists_.clear();
  const ListAt<uint32_t> positions_at = choice_lists_.add(positions), tokens_at = choice_lists_.add(tokens);
  choice_lists_.send(on.stream);
  DeviceRows rows;
  rows.tokens = choice_lists_.at(tokens_at), rows.positions = choice_lists_.at(positions_at);
  rows.rows = rows.padded_rows = count;
  access_.forward->pass(rows, tokens.empty() ? values.data() : nullptr, this, on);
  on.timer->end();
  must(cudaStreamSynchronize(on.stream), "probe rows", 0, [&] { return fmt::format("{} rows", count); });
  work_ = std::move(step);
  rows_ = step_rows, padded_ = step_padded;
}

// Soft tokens: all KV entries, and the rows themselves. A repeated part: sinks, the part, and the rows
// themselves.
void CompressedCache::add_probe_scores(uint32_t head, const Work& work, const Read& read) {
  const uint32_t count = work.rows.tokens, column = shape_.groups.column_of(head);
  AttentionScoreHead attention_scores;
  attention_scores.queries = count, attention_scores.q_row = 0;
  attention_scores.q_head = head % llm_.kv_heads * (llm_.query_heads / llm_.kv_heads);
  attention_scores.visible = static_cast<uint32_t>(visible_.size());
  if (probing_->pass.repeats()) {
    const ProbePass& pass = probing_->pass;
    const std::span<const uint32_t> positions = work.request->kv_entries.positions(head);
    const auto kv_entry_at = [&](uint32_t position) {
      return static_cast<uint32_t>(std::lower_bound(positions.begin(), positions.end(), position) -
                                   positions.begin());
    };
    const uint32_t first = kv_entry_at(pass.begin), end = kv_entry_at(pass.end);
    // Nothing was dropped of the part yet, and never of the sinks.
    KVT_CHECK(end - first == pass.end - pass.begin && kv_entry_at(probing_->sinks) == probing_->sinks);
    const uint32_t page = memory_.page_tokens;
    attention_scores.kv_entries = {tables_.size(), kv_entries_.packed() ? 0 : column, 0, 0};
    const auto add = [&](uint32_t from, uint32_t to) {
      for (uint32_t kv_entry = from; kv_entry < to; ++kv_entry)
        tables_.add(kv_entries_.packed() ? work.dequantized.at(head) + kv_entry
                    : read.listed        ? tables_[read.table + kv_entry]
                                         : tables_[read.table + kv_entry / page] * page + kv_entry % page);
      attention_scores.kv_entries.rows += to - from;
    };
    add(0, probing_->sinks), add(first, end);
    attention_scores.scored = attention_scores.kv_entries.rows;
    add(read.before, read.before + count);
  } else {
    attention_scores.kv_entries = {read.table, column, 0, read.before + count};
    if (kv_entries_.packed())
      attention_scores.kv_entries.table = PackedHeads::table(work.dequantized.at(head)),
      attention_scores.kv_entries.column = 0;
    attention_scores.scored = read.before;
  }
  for (uint32_t i = 0; i < count; ++i) visible_.push_back(attention_scores.scored + i + 1);
  score_rows_max_ = std::max(score_rows_max_, attention_scores.kv_entries.rows);
  score_queries_max_ = std::max(score_queries_max_, count);
  score_heads_.push_back(attention_scores);
}

void CompressedCache::score_probes(uint32_t layer, const LayerRows& tensors, const StepStream& on) {
  AttentionScoreArgs attention_scores = attention_score_args(tensors.q);
  attention_scores.heads = lists_.at(at_.score_heads) + layers_[layer].score_heads.first,
  attention_scores.count = llm_.kv_heads;
  float* scores = scores_->scores() + uint64_t{layer} * llm_.kv_heads * probing_->stride;
  uint32_t skip = 0;
  attention_scores.kv_entries.listed =
      !kv_entries_.packed() && read_of(&work_[0], layer * llm_.kv_heads).listed;
  if (probing_->pass.repeats()) {
    attention_scores.kv_entries.listed = true, attention_scores.kv_entries.pages = tables_.on_device();
    skip = probing_->sinks;
  }
  scores_->score_probes(attention_scores, scores, probing_->stride, skip, on.stream);
}

// A layer's keys and values come over, the definitions score them, and scores go back.
void CompressedCache::score_on_host(const Work& work, const RankBatch& batch, bool listed,
                                    const StepStream& on) {
  const uint64_t stride = batch.rows_max, numbers = llm_.kv_heads * stride * llm_.head_dim;
  grow(&fetched_, Buffer::Kind::kDevice, 2 * numbers * sizeof(float), "keys and values");
  grow(&fetched_host_, Buffer::Kind::kPinned, 2 * numbers * sizeof(float), "keys and values");
  const auto shape = [&] { return fmt::format("{} heads, {} rows", llm_.kv_heads, stride); };
  const auto fetch = [&](uint32_t layer, const float** keys, const float** values) {
    unpack_ranked(layer, on);
    ReadEntriesArgs args{kv_entries_.kv_entries(tables_.on_device(), listed),
                         rank_lists_.at(batch.at.kv_entries) + uint64_t{layer} * llm_.kv_heads,
                         fetched_.as<float>(),
                         fetched_.as<float>() + numbers,
                         stride,
                         llm_.kv_heads,
                         batch.rows_max};
    must(read_entries(args, on.stream), "read_entries", 0, shape);
    must(cudaMemcpyAsync(fetched_host_.as<float>(), fetched_.as<float>(), 2 * numbers * sizeof(float),
                         cudaMemcpyDeviceToHost, on.stream),
         "copy of keys and values", 2 * numbers * sizeof(float), shape);
    must(cudaStreamSynchronize(on.stream), "copy of keys and values", 0, shape);
    *keys = fetched_host_.as<float>(), *values = fetched_host_.as<float>() + numbers;
  };
  std::vector<cpu::RankedHead> heads = ranked_heads(work, batch, nullptr);
  const std::span<const uint32_t> known = work.compression->keep;
  std::vector<uint32_t> expected;  // by layer
  for (uint32_t l = 0; l < llm_.layers; ++l) {
    const cpu::RankedHead& head = heads[size_t{l} * llm_.kv_heads];
    expected.push_back(known.empty() ? budget_->expected(head.candidates(), work.compression->end)
                                     : known[shape_.groups.group_of(head.head)]);
  }
  host_->score(access_.session(work.rows.request), work.compression->query, heads, work.compression->end,
               work.rows, expected, scores_->fetch_queries(work.request->captured, on.stream), batch.rows_max,
               fetch);
  host_scores_.assign(batch.count() * stride, 0.0f);
  for (size_t i = 0; i < heads.size(); ++i)
    std::copy(heads[i].scores.begin(), heads[i].scores.end(),
              host_scores_.begin() + static_cast<ptrdiff_t>(i * stride));
  send_scores(on);
}

// One score for all heads; where tokens leave dropped slots it goes where the mean of heads' scores would.
void CompressedCache::score_intents(const Work& work, const RankBatch& batch, bool listed,
                                    const StepStream& on) {
  for (const RankBatch::Head& head : batch.heads) KVT_CHECK(head.rows == batch.rows_max);
  const RowRange& forced = batch.heads[0].forced_ranges;  // all heads hold the same positions
  IntentScoreArgs what;
  what.kv_entries = kv_entries_.kv_entries(tables_.on_device(), listed),
  what.heads = rank_lists_.at(batch.at.kv_entries);
  what.forced = rank_lists_.at(batch.at.forced) + forced.begin, what.forced_count = forced.end - forced.begin;
  what.rows = batch.rows_max;
  IntentScores::Target to{scores_->scores(), batch.rows_max, batch.count()};
  if (shape_.slot_retention == SlotRetention::kInPlace) to.scores += batch.count() * to.stride, to.copies = 1;
  std::function<void(uint32_t)> open;
  if (kv_entries_.packed()) open = [&](uint32_t layer) { unpack_ranked(layer, on); };
  const RankBatch::Head& any = batch.heads[0];
  const std::span<const uint32_t> positions = work.request->kv_entries.positions(any.head).subspan(any.first);
  const auto row_of = [&](uint32_t position) {
    return static_cast<uint32_t>(std::lower_bound(positions.begin(), positions.end(), position) -
                                 positions.begin());
  };
  IntentScores::Asked asked{{row_of(work.compression->query.begin), row_of(work.compression->query.end)},
                            any.rows};
  for (uint32_t range = forced.begin; range < forced.end; ++range)
    asked.candidates -= batch.forced[range].end - batch.forced[range].begin;
  intents_->score(access_.session(work.rows.request), what, asked, to, open, on.stream);
}

// A prompt has ended: what it asked becomes part of its session's memory, once, whether or not anything is
// dropped.
void CompressedCache::remember(const Work& work, const StepStream& on) {
  const bool at_end = work.compression != nullptr && !work.compression->before;
  const bool ended = work.rows.prompt && (work.rows.samples || at_end);
  // A query whose KV was reused whole was captured by the request that computed it.
  if (!ended || work.request->captured.phases.empty()) return;
  const SessionId session = access_.session(work.rows.request);
  // A session that ended meanwhile has lost it: then this turn is all there is.
  const bool known =
      !remembered_.insert(work.rows.request).second && intents_->memory().find(session) != nullptr;
  if (known) return;
  intents_->remember(session, *scores_, work.request->captured, work.request->kv_entries.tokens(), on.stream);
}

}  // namespace kvtwin::cuda
