#include "engine/cpu/captured_scores.h"

#include <algorithm>
#include <numeric>

#include "engine/base/check.h"
#include "engine/methods/probe_passes.h"

namespace kvtwin::cpu {
namespace {

using kernels::ScoreInputs;
using kernels::ScoreSource;
using kernels::ScoreSpec;
using kernels::ScoreView;

constexpr uint32_t kQueryRows = 64;  // of a context that does not say what it asks

class Scoring {
 public:
  Scoring(const ScoreSpec& spec, const ScoredContext& context, CapturedPass* pass)
      : spec_(spec),
        context_(context),
        pass_(*pass),
        tokens_(static_cast<uint32_t>(context.tokens.size())),
        positions_(tokens_),
        scores_(uint64_t{pass->llm().layers} * pass->llm().kv_heads * tokens_) {
    std::iota(positions_.begin(), positions_.end(), 0u);
  }

  std::vector<float> take() {
    if (spec_.scorer->scores_tokens()) {
      score_tokens();
    } else if (spec_.scorer->source == ScoreSource::kRepeats) {
      score_repeats();
    } else {
      probes_ = context_.response_tokens;
      if (spec_.scorer->source == ScoreSource::kProbes && probes_ == 0) {
        pass_.extend_rows(context_.scorer_weights->soft_tokens);
        probes_ = pass_.tokens() - tokens_;
      }
      for (uint32_t l = 0; l < pass_.llm().layers; ++l) score_layer(l);
      pass_.truncate(tokens_ + context_.response_tokens);
    }
    return std::move(scores_);
  }

 private:
  uint32_t heads() const { return pass_.llm().kv_heads; }
  ScoreView layer_scores(uint32_t layer) {
    const uint64_t size = uint64_t{heads()} * tokens_;
    return kernels::packed_scores(std::span(scores_).subspan(layer * size, size), heads(), tokens_);
  }
  std::span<const uint32_t> positions(uint32_t first, uint32_t count) const {
    return std::span(positions_).subspan(first, count);
  }
  kernels::RopePlanes planes() const { return {pass_.rope().inverse, pass_.rope().scale}; }

  ScoreInputs inputs(uint32_t layer) const {
    ScoreInputs in;
    in.layer = layer, in.layers = pass_.llm().layers;
    in.tokens = tokens_;
    in.positions = {tokens_, {}};
    in.k = pass_.k(layer, 0, tokens_), in.v = pass_.v(layer, 0, tokens_);
    in.query_heads = pass_.llm().query_heads;
    in.rope = planes();
    in.retained = context_.retained;
    return in;
  }
  void ask_last_rows(uint32_t layer, uint32_t rows, ScoreInputs* in) const {
    rows = std::min(rows, tokens_);
    in->q = pass_.q(layer, tokens_ - rows, rows);
    in->q_positions = positions(tokens_ - rows, rows);
  }

  void score_layer(uint32_t layer) {
    ScoreInputs in = inputs(layer);
    const ScoreView out = layer_scores(layer);
    std::vector<float> made;  // storage that `in` points to
    kernels::OutputProjection projection;
    kernels::FastKvzipGate gate;
    switch (spec_.scorer->source) {
      case ScoreSource::kStamps:
        return kernels::score_raas_prompt(pass_.q(layer, tokens_ - 1, 1), in.k, out);
      case ScoreSource::kSums:
      case ScoreSource::kPromptSums:
        made = accumulated(layer, in);
        in.accumulators = kernels::packed_scores(made, heads(), tokens_);
        break;
      case ScoreSource::kAllQueries:
        made.resize(uint64_t{pass_.llm().query_heads} * tokens_ * pass_.llm().head_dim);
        kernels::unrotate_queries(planes(), pass_.q(layer, 0, tokens_), positions(0, tokens_), made);
        in.q_hat = kernels::packed_heads(made, pass_.llm().query_heads, tokens_, pass_.llm().head_dim);
        break;
      case ScoreSource::kProbes:
        in.q = pass_.q(layer, tokens_, probes_);
        in.own_k = pass_.k(layer, tokens_, probes_);
        break;
      case ScoreSource::kGates:
        if (spec_.scorer->weights == kernels::TrainedWeights::kHeadGates) {
          gate = context_.scorer_weights->fastkvzip[layer].gate();
          in.gate = &gate;
          in.hidden = pass_.hidden_rows(layer, 0, tokens_);
          break;
        }
        made.resize(uint64_t{heads()} * tokens_);
        in.log_beta = kernels::packed_scores(made, heads(), tokens_);
        kernels::trimkv_log_beta(context_.scorer_weights->trimkv[layer].gate(),
                                 pass_.hidden_rows(layer, 0, tokens_), in.log_beta);
        break;
      default:
        if (spec_.scorer->captures_any(kernels::capture::kOutputWeights)) {
          made = read_floats(context_.weights->layer(layer).o);
          projection = {pass_.llm().hidden, pass_.llm().query_heads, made};
          in.output = &projection;
        }
        ask_last_rows(layer, spec_.window.window, &in);
    }
    kernels::score_entries(spec_, in, out);
  }

  std::vector<float> accumulated(uint32_t layer, const ScoreInputs& in) const {
    std::vector<float> sums(uint64_t{heads()} * tokens_);
    const kernels::AttentionScores attention_scores{.q = pass_.q(layer, 0, tokens_),
                                                    .q_positions = positions(0, tokens_),
                                                    .k = in.k,
                                                    .positions = in.positions};
    kernels::h2o_accumulate(attention_scores, kernels::packed_scores(sums, heads(), tokens_));
    return sums;
  }

  // IntentKV: a session of one turn, whose memory is the context's query span.
  void score_tokens() {
    std::vector<float> one(tokens_);
    const uint32_t dim = pass_.llm().head_dim;
    const TokenRange last{tokens_ - std::min(kQueryRows, tokens_), tokens_};
    const auto [begin, end] = context_.query.empty() ? last : context_.query;
    for (uint32_t l = 0; l < pass_.llm().layers; ++l) {
      std::vector<float> query(uint64_t{pass_.llm().query_heads} * dim), memory(query.size());
      const kernels::HeadsView q = pass_.q(l, begin, end - begin);
      if (spec_.intent.memory_pre_rope) {
        kernels::intent_query_pre_rope(planes(), q, positions(begin, end - begin), tokens_, query);
      } else {
        kernels::intent_query(q, query);
      }
      kernels::intent_forget(dim, query, memory);
      ScoreInputs in = inputs(l);
      in.memory = memory;
      kernels::score_entries(spec_, in, kernels::packed_scores(one, 1, tokens_));
    }
    kernels::finish_scores(spec_, {}, kernels::packed_scores(one, 1, tokens_));
    for (size_t i = 0; i < scores_.size(); ++i) scores_[i] = one[i % tokens_];
  }

  // KVzip: the context is repeated, part by part, after itself.
  void score_repeats() {
    const uint32_t sinks = std::min(spec_.sink, tokens_);
    std::fill(scores_.begin(), scores_.end(), 1.0f);  // sinks
    ScorerSpec spec;
    spec.repeat_tokens = context_.repeat_tokens, spec.repeat_tail = context_.repeat_tail;
    const ProbePasses passes = ProbePasses::of_repeats(spec, sinks);
    for (uint32_t i = 0; i < passes.count(tokens_); ++i) {
      const ProbePass chunk = passes.at(tokens_, i);
      std::vector<uint32_t> rows(context_.tokens.begin() + chunk.repeated,
                                 context_.tokens.begin() + chunk.begin);
      rows.insert(rows.end(), context_.instruction.begin(), context_.instruction.end());
      rows.insert(rows.end(), context_.tokens.begin() + chunk.begin, context_.tokens.begin() + chunk.end);
      pass_.extend(rows);
      for (uint32_t l = 0; l < pass_.llm().layers; ++l)
        score_repeat(l, chunk, sinks, static_cast<uint32_t>(rows.size()));
      pass_.truncate(tokens_);
    }
  }

  void score_repeat(uint32_t layer, const ProbePass& chunk, uint32_t sinks, uint32_t rows) {
    const uint32_t kv_entries = chunk.end - chunk.begin;
    std::vector<uint32_t> seen(sinks + kv_entries);
    std::iota(seen.begin(), seen.begin() + sinks, 0u);
    std::iota(seen.begin() + sinks, seen.end(), chunk.begin);
    ScoreInputs in = inputs(layer);
    in.k.rows = sinks + kv_entries, in.k.list = seen;
    in.positions = {sinks + kv_entries, seen};
    in.sinks = sinks;
    in.q = pass_.q(layer, tokens_, rows), in.own_k = pass_.k(layer, tokens_, rows);
    ScoreView out = layer_scores(layer);
    out.data += chunk.begin, out.rows = kv_entries;
    kernels::score_entries(spec_, in, out);
  }

  const ScoreSpec spec_;
  const ScoredContext& context_;
  CapturedPass& pass_;
  const uint32_t tokens_;
  uint32_t probes_ = 0;              // probe rows after the context
  std::vector<uint32_t> positions_;  // 0, 1, 2, ...
  std::vector<float> scores_;
};

}  // namespace

std::optional<std::string> cannot_score(const kernels::ScorerDefinition& scorer) {
  if (&scorer == kernels::all_scorers().front())
    return "it ranks nothing; choose a scorer (kvtwin list policies)";
  if (scorer.weights == kernels::TrainedWeights::kResidual)
    return "its residual looks at what earlier turns of a session left; intent_rule is its base";
  return std::nullopt;
}

uint32_t probe_tokens_max(const kernels::ScorerDefinition& scorer, const ScoredContext& context,
                          uint32_t hidden) {
  if (scorer.source == ScoreSource::kProbes && context.scorer_weights != nullptr)
    return static_cast<uint32_t>(context.scorer_weights->soft_tokens.size() / hidden);
  if (scorer.source != ScoreSource::kRepeats) return 0;
  const auto piece = std::min<size_t>(context.repeat_tokens, context.tokens.size());
  return context.repeat_tail + static_cast<uint32_t>(context.instruction.size() + piece);
}

std::vector<float> score_captured(const ScoreSpec& spec, const ScoredContext& context, CapturedPass* pass) {
  const kernels::ScorerDefinition& scorer = *spec.scorer;
  KVT_CHECK(!cannot_score(scorer));
  KVT_CHECK(!context.tokens.empty() && pass->tokens() == context.tokens.size() + context.response_tokens);
  KVT_CHECK(!scorer.captures_any(kernels::capture::kOutputWeights) || context.weights != nullptr);
  KVT_CHECK(!scorer.captures_any(kernels::capture::kHidden) || context.scorer_weights != nullptr);
  KVT_CHECK(scorer.source != ScoreSource::kProbes || context.response_tokens > 0 ||
            context.scorer_weights != nullptr);
  KVT_CHECK(scorer.source != ScoreSource::kRepeats || context.response_tokens == 0);
  return Scoring(spec, context, pass).take();
}

}  // namespace kvtwin::cpu
