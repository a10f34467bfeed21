#include "kernels/scoring/score.h"

#include <algorithm>
#include <iterator>

#include "engine/base/check.h"
#include "kernels/scoring/score_keys.h"
#include "kernels/scoring/score_position.h"

namespace kvtwin::kernels {
namespace {

using namespace capture;

struct Row {
  ScorerKind kind;
  std::string_view name;
  uint32_t captures;
};
constexpr Row kScorers[] = {
    {ScorerKind::kNone, "none", 0},
    {ScorerKind::kStreaming, "streaming_llm", 0},
    {ScorerKind::kH2o, "h2o", kKeys | kAllQueries | kAccumulators},
    {ScorerKind::kObserved, "h2o_prefill", kKeys | kAllQueries | kAccumulators},
    {ScorerKind::kSnapKv, "snapkv", kKeys | kWindowQueries},
    {ScorerKind::kPyramidKv, "pyramidkv", kKeys | kWindowQueries},
    {ScorerKind::kTova, "tova", kKeys | kWindowQueries},
    {ScorerKind::kKnorm, "knorm", kKeys},
    {ScorerKind::kKeyDiff, "keydiff", kKeys},
    {ScorerKind::kExpected, "expected_attention", kKeys | kValues | kAllQueries},
    {ScorerKind::kKvzip, "kvzip", kKeys | kProbeTokens},
    {ScorerKind::kFastKvzip, "fastkvzip", kHidden | kGateWeights},
    {ScorerKind::kTrimKv, "trimkv", kKeys | kHidden | kGateWeights},
    {ScorerKind::kRaas, "raas", kKeys | kWindowQueries | kPageStamps},
    {ScorerKind::kDuo, "duo_attention", 0},
    {ScorerKind::kRazor, "razor_attention", 0},
    {ScorerKind::kJudgeQ, "judge_q", kKeys | kProbeTokens},
    {ScorerKind::kIntentRule, "intent_rule", kKeys | kSpanQueries | kSessionMemory},
    {ScorerKind::kIntentResidual, "intent_residual", kKeys | kSpanQueries | kSessionMemory | kGateWeights},
    {ScorerKind::kFinch, "finch", kKeys | kWindowQueries},
    {ScorerKind::kCritical, "critical_kv", kKeys | kValues | kWindowQueries | kOutputWeights},
    {ScorerKind::kRandom, "random", 0},
};

const Row& row_of(ScorerKind kind) {
  const auto at = std::find_if(std::begin(kScorers), std::end(kScorers),
                               [&](const Row& row) { return row.kind == kind; });
  KVT_CHECK(at != std::end(kScorers));
  return *at;
}

AttentionScores attention_scores_of(const ScoreSpec& spec, const ScoreInputs& in) {
  return {in.q, in.q_positions, in.k, in.positions, in.own_k, spec.renormalise};
}

void copy_scores(ScoreView from, ScoreView to) {
  KVT_CHECK(from.heads == to.heads && from.rows == to.rows);
  for (uint32_t h = 0; h < to.heads; ++h) {
    const std::span<const float> row = from.row(h);
    std::copy(row.begin(), row.end(), to.row(h).begin());
  }
}

// The probe tokens of Judge Q and KVzip see the whole cache: their positions are after it.
void score_probes(const ScoreSpec& spec, const ScoreInputs& in, ScoreView out) {
  AttentionScores attention_scores = attention_scores_of(spec, in);
  attention_scores.q_positions = {};
  if (spec.kind == ScorerKind::kKvzip) return score_kvzip_chunk(attention_scores, in.sinks, out);
  score_window(spec.window, attention_scores, out);
}

void score_stamps(const ScoreSpec& spec, const ScoreInputs& in, ScoreView out) {
  const size_t pages = in.stamps.size() / std::max(out.heads, 1u);
  for (uint32_t h = 0; h < out.heads; ++h) {
    score_raas(in.stamps.subspan(h * pages, pages), spec.page_tokens, out.row(h));
  }
}

}  // namespace

std::optional<ScorerKind> scorer_kind(std::string_view name) {
  for (const Row& row : kScorers) {
    if (row.name == name) return row.kind;
  }
  return std::nullopt;
}

std::string_view scorer_name(ScorerKind kind) { return row_of(kind).name; }

uint32_t captures(ScorerKind kind) { return row_of(kind).captures; }

bool scores_tokens(ScorerKind kind) {
  return kind == ScorerKind::kIntentRule || kind == ScorerKind::kIntentResidual;
}

bool watches_decodes(ScorerKind kind) {
  return kind == ScorerKind::kH2o || kind == ScorerKind::kRaas || kind == ScorerKind::kTova;
}

ScoreSpec score_spec(ScorerKind kind) {
  ScoreSpec spec;
  spec.kind = kind;
  if (kind == ScorerKind::kSnapKv) spec.window = window_spec(WindowCodeBase::kKvpress);
  if (kind == ScorerKind::kPyramidKv) spec.window = window_spec(WindowCodeBase::kKvCacheFactory);
  if (kind == ScorerKind::kCritical) spec.window = window_spec(WindowCodeBase::kKvpress);
  if (kind == ScorerKind::kFinch) spec.window = window_spec(WindowCodeBase::kFinch);
  if (kind == ScorerKind::kJudgeQ) spec.window = window_spec(WindowCodeBase::kJudgeQ);
  if (kind == ScorerKind::kObserved) spec.window.window = 0;
  if (kind == ScorerKind::kDuo) spec.sink = 128;
  return spec;
}

void score_entries(const ScoreSpec& spec, const ScoreInputs& in, ScoreView out) {
  switch (spec.kind) {
    case ScorerKind::kNone:
      return;
    case ScorerKind::kStreaming:
    case ScorerKind::kDuo:
    case ScorerKind::kRazor:
      return score_streaming(in.positions, spec.sink, out);
    case ScorerKind::kH2o:
      return copy_scores(in.accumulators, out);
    case ScorerKind::kObserved:
      copy_scores(in.accumulators, out);
      return finish_observed(spec.observed, in.positions, in.tokens, spec.window.window, out);
    case ScorerKind::kSnapKv:
    case ScorerKind::kPyramidKv:
    case ScorerKind::kFinch:
      return score_window(spec.window, attention_scores_of(spec, in), out);
    case ScorerKind::kCritical:
      KVT_CHECK(in.output != nullptr);
      score_window(spec.window, attention_scores_of(spec, in), out);
      return score_critical(*in.output, in.v, spec.critical_first, out);
    case ScorerKind::kTova:
      return score_tova(attention_scores_of(spec, in), out);
    case ScorerKind::kKnorm:
      return score_knorm(in.k, out);
    case ScorerKind::kKeyDiff:
      return score_keydiff(in.k, out);
    case ScorerKind::kExpected:
      return score_expected(spec.expected, in.rope, in.q_hat, in.k, in.v, in.positions, in.tokens, out);
    case ScorerKind::kKvzip:
    case ScorerKind::kJudgeQ:
      return score_probes(spec, in, out);
    case ScorerKind::kFastKvzip:
      KVT_CHECK(in.gate != nullptr);
      return score_fastkvzip(*in.gate, in.hidden, out);
    case ScorerKind::kTrimKv:
      return score_trimkv(spec.trim, in.log_beta, in.k, in.positions, in.tokens, out);
    case ScorerKind::kRaas:
      return score_stamps(spec, in, out);
    case ScorerKind::kIntentRule:
    case ScorerKind::kIntentResidual:
      return intent_add_layer(spec.intent, in.layers, in.memory, in.query_heads, in.k, out.row(0));
    case ScorerKind::kRandom:
      return score_random(spec.seed, in.layer, in.head_first, in.positions, out);
  }
}

void finish_scores(const ScoreSpec& spec, std::span<const float> corrections, ScoreView out) {
  if (!scores_tokens(spec.kind)) return;
  const std::span<float> scores = out.row(0);
  intent_normalise(spec.rule_norm, scores);
  if (corrections.empty()) return;
  KVT_CHECK(corrections.size() == scores.size());
  for (size_t p = 0; p < scores.size(); ++p) scores[p] += corrections[p];
}

}  // namespace kvtwin::kernels
