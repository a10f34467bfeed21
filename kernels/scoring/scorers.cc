// The definitions of all scorers. The names are those of engine/methods/axis_scorer_table.cc; a test compares
// the two.

#include <algorithm>

#include "engine/base/check.h"
#include "kernels/scoring/score.h"
#include "kernels/scoring/score_keys.h"
#include "kernels/scoring/score_position.h"
#include "kernels/scoring/scorer_option.h"

namespace kvtwin::kernels {

// Definitions in files of their own.
extern const ScorerDefinition kRKv;       // score_r_kv.cc
extern const ScorerDefinition kExternal;  // score_external.cc

namespace {

using namespace capture;

constexpr double kRowsMax = 65'536, kTokensMax = 1u << 24;

constexpr std::string_view kCodeBases[] = {"kvpress", "adakv",    "kvcache_factory",
                                           "tangram", "intentkv", "h2o_window"};
constexpr std::string_view kPools[] = {"none", "average", "max"};
constexpr std::string_view kReduces[] = {"mean", "max", "sum"};
constexpr std::string_view kOrders[] = {"pool_then_reduce", "reduce_then_pool", "reduce_logits_first"};
constexpr std::string_view kObservedForms[] = {"sum", "per_row"};
constexpr std::string_view kModes[] = {"query", "memory"};
constexpr std::string_view kQueryNorms[] = {"unit", "raw"};
constexpr std::string_view kMemoryForms[] = {"sum", "max_over_turns"};
constexpr std::string_view kRuleNorms[] = {"none", "times_candidates", "zscore"};

// Sets all of a code base's window, so it comes before the options that adjust the window.
constexpr ScorerOption kCodeBase{"code_base",
                                 0,
                                 0,
                                 [](const ScoreSpec& spec) { return static_cast<double>(spec.code_base); },
                                 [](ScoreSpec* spec, double value) {
                                   spec->code_base = static_cast<WindowCodeBase>(value);
                                   spec->window = window_spec(spec->code_base);
                                 },
                                 kCodeBases};
constexpr ScorerOption kQueryTokens = option(
    "query_tokens", 1, kRowsMax, [](auto& s) -> auto& { return s.window.window; });
constexpr ScorerOption kKernel = option(
    "kernel", 1, 255, [](auto& s) -> auto& { return s.window.kernel; }, {}, true);
constexpr ScorerOption kPool = choice(
    "pool", kPools, [](auto& s) -> auto& { return s.window.pool; });
constexpr ScorerOption kReduce = choice(
    "reduce", kReduces, [](auto& s) -> auto& { return s.window.reduce; });
constexpr ScorerOption kOrder = choice(
    "order", kOrders, [](auto& s) -> auto& { return s.window.order; });
constexpr ScorerOption kCausal = flag(
    "causal", [](auto& s) -> auto& { return s.window.causal; });
constexpr ScorerOption kGamma = option(
    "gamma", 0, 1, [](auto& s) -> auto& { return s.intent.gamma; });
constexpr ScorerOption kTemperature = option(
    "temperature", 1e-6, 1e6, [](auto& s) -> auto& { return s.intent.temperature; });
constexpr ScorerOption kMemoryPreRope = flag(
    "memory_pre_rope", [](auto& s) -> auto& { return s.intent.memory_pre_rope; });
constexpr ScorerOption kQueryNorm = choice(
    "query_norm", kQueryNorms, [](auto& s) -> auto& { return s.intent.query_norm; });

constexpr ScorerOption kStreamingOptions[] = {option(
    "sink", 0, kTokensMax, [](auto& s) -> auto& { return s.sink; })};
constexpr ScorerOption kObservedOptions[] = {choice(
    "observed", kObservedForms, [](auto& s) -> auto& { return s.observed; })};
constexpr ScorerOption kWindowOptions[] = {kCodeBase, kQueryTokens, kKernel, kPool, kReduce, kOrder, kCausal};
constexpr ScorerOption kFinchOptions[] = {kQueryTokens};
constexpr ScorerOption kJudgeQOptions[] = {
    kKernel, kPool, kReduce, kOrder,
    flag(
        "renormalise", [](auto& s) -> auto& { return s.renormalise; })};
constexpr ScorerOption kExpectedOptions[] = {
    option(
        "sink", 0, kTokensMax, [](auto& s) -> auto& { return s.expected.sink; }),
    option(
        "outliers", 0, kTokensMax, [](auto& s) -> auto& { return s.expected.first; }),
    option(
        "future", 1, 1u << 20, [](auto& s) -> auto& { return s.expected.future; }),
    flag(
        "covariance", [](auto& s) -> auto& { return s.expected.covariance; }),
    option(
        "eps", 0, 1, [](auto& s) -> auto& { return s.expected.eps; })};
constexpr ScorerOption kTrimKvOptions[] = {flag(
    "key_norm", [](auto& s) -> auto& { return s.trim.key_norm; })};
constexpr ScorerOption kRaasOptions[] = {option(
                                             "alpha", 0, 1, [](auto& s) -> auto& { return s.raas.alpha; }),
                                         flag(
                                             "scaled", [](auto& s) -> auto& { return s.raas.scaled; })};
constexpr ScorerOption kIntentRuleOptions[] = {
    kGamma,
    kTemperature,
    kMemoryPreRope,
    kQueryNorm,
    choice(
        "mode", kModes, [](auto& s) -> auto& { return s.intent_mode; }),
    choice(
        "memory", kMemoryForms, [](auto& s) -> auto& { return s.intent.memory; })};
constexpr ScorerOption kIntentResidualOptions[] = {
    kGamma, kTemperature, kMemoryPreRope, kQueryNorm,
    choice(
        "rule_norm", kRuleNorms, [](auto& s) -> auto& { return s.rule_norm; })};

void use_code_base(WindowCodeBase code_base, ScoreSpec* spec) {
  spec->code_base = code_base;
  spec->window = window_spec(code_base);
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

void score_nothing(const ScoreSpec& /*spec*/, const ScoreInputs& /*in*/, ScoreView /*out*/) {}

void score_by_position(const ScoreSpec& spec, const ScoreInputs& in, ScoreView out) {
  score_streaming(in.positions, spec.sink, out);
}

void score_by_window(const ScoreSpec& spec, const ScoreInputs& in, ScoreView out) {
  score_window(spec.window, attention_scores_of(spec, in), out);
}

void score_by_sums(const ScoreSpec& /*spec*/, const ScoreInputs& in, ScoreView out) {
  copy_scores(in.accumulators, out);
}

void score_by_prompt_sums(const ScoreSpec& spec, const ScoreInputs& in, ScoreView out) {
  copy_scores(in.accumulators, out);
  finish_observed(spec.observed, in.positions, in.tokens, spec.window.window, out);
}

// Forced entries take no part of the half that the base score assigns.
void score_by_output_change(const ScoreSpec& spec, const ScoreInputs& in, ScoreView out) {
  KVT_CHECK(in.output != nullptr);
  score_by_window(spec, in, out);
  for (size_t h = 0; h < in.forced.size(); ++h) {
    for (const uint32_t row : in.forced[h]) out.row(static_cast<uint32_t>(h))[row] = kMustStay;
  }
  score_critical(*in.output, in.v, in.retained / 2, out);
}

// Probe tokens see the whole cache: their positions are after it.
AttentionScores probes_of(const ScoreSpec& spec, const ScoreInputs& in) {
  AttentionScores out = attention_scores_of(spec, in);
  out.q_positions = {};
  return out;
}

void score_by_stamps(const ScoreSpec& spec, const ScoreInputs& in, ScoreView out) {
  const size_t pages = in.stamps.size() / std::max(out.heads, 1u);
  for (uint32_t h = 0; h < out.heads; ++h) {
    score_raas(in.stamps.subspan(h * pages, pages), spec.page_tokens, out.row(h));
  }
}

void score_by_memory(const ScoreSpec& spec, const ScoreInputs& in, ScoreView out) {
  intent_add_layer(spec.intent, in.layers, in.memory, in.query_heads, in.k, out.row(0));
}

constexpr ScorerDefinition kNone{.name = "none", .score = score_nothing, .device = DeviceScores::kOfSource};
constexpr ScorerDefinition kStreaming{.name = "streaming_llm",
                                      .score = score_by_position,
                                      .options = kStreamingOptions,
                                      .device = DeviceScores::kOfSource};
constexpr ScorerDefinition kDuo{.name = "duo_attention",
                                .score = score_by_position,
                                .options = kStreamingOptions,
                                .set_defaults = [](ScoreSpec* spec) { spec->sink = 128; },
                                .device = DeviceScores::kOfSource};
constexpr ScorerDefinition kRazor{.name = "razor_attention",
                                  .score = score_by_position,
                                  .options = kStreamingOptions,
                                  .device = DeviceScores::kOfSource};
constexpr ScorerDefinition kRandom{
    .name = "random",
    .source = ScoreSource::kDraws,
    .score = [](const ScoreSpec& spec, const ScoreInputs& in,
                ScoreView out) { score_random(spec.seed, in.layer, in.head_first, in.positions, out); },
    .device = DeviceScores::kOfSource};

constexpr ScorerDefinition kH2o{.name = "h2o",
                                .source = ScoreSource::kSums,
                                .captures = kKeys | kAllQueries | kAccumulators,
                                .score = score_by_sums,
                                .watches_decodes = true,
                                .device = DeviceScores::kOfSource};
constexpr ScorerDefinition kObserved{.name = "h2o_prefill",
                                     .source = ScoreSource::kPromptSums,
                                     .captures = kKeys | kAllQueries | kAccumulators,
                                     .score = score_by_prompt_sums,
                                     .options = kObservedOptions,
                                     .set_defaults = [](ScoreSpec* spec) { spec->window.window = 0; },
                                     .device = DeviceScores::kOfSource};

constexpr ScorerDefinition kSnapKv{
    .name = "snapkv",
    .source = ScoreSource::kWindowQueries,
    .captures = kKeys | kWindowQueries,
    .score = score_by_window,
    .options = kWindowOptions,
    .set_defaults = [](ScoreSpec* spec) { use_code_base(WindowCodeBase::kKvpress, spec); },
    .device = DeviceScores::kOfSource};
constexpr ScorerDefinition kPyramidKv{
    .name = "pyramidkv",
    .source = ScoreSource::kWindowQueries,
    .captures = kKeys | kWindowQueries,
    .score = score_by_window,
    .options = kWindowOptions,
    .set_defaults = [](ScoreSpec* spec) { use_code_base(WindowCodeBase::kKvCacheFactory, spec); },
    .device = DeviceScores::kOfSource};
constexpr ScorerDefinition kFinch{
    .name = "finch",
    .source = ScoreSource::kWindowQueries,
    .captures = kKeys | kWindowQueries,
    .score = score_by_window,
    .options = kFinchOptions,
    .set_defaults = [](ScoreSpec* spec) { use_code_base(WindowCodeBase::kFinch, spec); },
    .device = DeviceScores::kOfSource};
constexpr ScorerDefinition kCritical{
    .name = "critical_kv",
    .source = ScoreSource::kWindowQueries,
    .captures = kKeys | kValues | kWindowQueries | kOutputWeights | kRetained,
    .score = score_by_output_change,
    .options = kWindowOptions,
    .set_defaults = [](ScoreSpec* spec) { use_code_base(WindowCodeBase::kKvpress, spec); },
    .joins_heads = true};
constexpr ScorerDefinition kTova{
    .name = "tova",
    .source = ScoreSource::kWindowQueries,
    .captures = kKeys | kWindowQueries,
    .score = [](const ScoreSpec& spec, const ScoreInputs& in,
                ScoreView out) { score_tova(attention_scores_of(spec, in), out); },
    .set_defaults = [](ScoreSpec* spec) { spec->window.window = 1; },
    .joins_heads = true,
    .watches_decodes = true,
    .device = DeviceScores::kOfSource};

constexpr ScorerDefinition kKnorm{
    .name = "knorm",
    .source = ScoreSource::kEntries,
    .captures = kKeys,
    .score = [](const ScoreSpec&, const ScoreInputs& in, ScoreView out) { score_knorm(in.k, out); },
    .device = DeviceScores::kKeyNorms,
    .work = {.entry_reads = 1}};
constexpr ScorerDefinition kKeyDiff{
    .name = "keydiff",
    .source = ScoreSource::kEntries,
    .captures = kKeys,
    .score = [](const ScoreSpec&, const ScoreInputs& in, ScoreView out) { score_keydiff(in.k, out); },
    .device = DeviceScores::kKeyAngles,
    .work = {.entry_reads = 2}};  // the anchor, then each key against it
constexpr ScorerDefinition kExpected{.name = "expected_attention",
                                     .source = ScoreSource::kAllQueries,
                                     .captures = kKeys | kValues | kAllQueries,
                                     .score =
                                         [](const ScoreSpec& spec, const ScoreInputs& in, ScoreView out) {
                                           score_expected(spec.expected, in.rope, in.q_hat, in.k, in.v,
                                                          in.positions, in.tokens, out);
                                         },
                                     .options = kExpectedOptions};

constexpr ScorerDefinition kJudgeQ{
    .name = "judge_q",
    .source = ScoreSource::kProbes,
    .captures = kKeys | kProbeTokens,
    .score = [](const ScoreSpec& spec, const ScoreInputs& in,
                ScoreView out) { score_window(spec.window, probes_of(spec, in), out); },
    .options = kJudgeQOptions,
    .set_defaults = [](ScoreSpec* spec) { use_code_base(WindowCodeBase::kJudgeQ, spec); },
    .weights = TrainedWeights::kSoftTokens,
    .device = DeviceScores::kOfSource};
constexpr ScorerDefinition kKvzip{
    .name = "kvzip",
    .source = ScoreSource::kRepeats,
    .captures = kKeys | kProbeTokens,
    .score = [](const ScoreSpec& spec, const ScoreInputs& in,
                ScoreView out) { score_kvzip_chunk(probes_of(spec, in), in.sinks, out); },
    .device = DeviceScores::kOfSource};

constexpr ScorerDefinition kFastKvzip{.name = "fastkvzip",
                                      .source = ScoreSource::kGates,
                                      .captures = kHidden | kGateWeights,
                                      .score =
                                          [](const ScoreSpec&, const ScoreInputs& in, ScoreView out) {
                                            KVT_CHECK(in.gate != nullptr);
                                            score_fastkvzip(*in.gate, in.hidden, out);
                                          },
                                      .weights = TrainedWeights::kHeadGates,
                                      .device = DeviceScores::kOfSource,
                                      .work = {.gate_width = FastKvzipGate::kWidth, .gate_per_head = true}};
constexpr ScorerDefinition kTrimKv{
    .name = "trimkv",
    .source = ScoreSource::kGates,
    .captures = kKeys | kHidden | kGateWeights,
    .score = [](const ScoreSpec& spec, const ScoreInputs& in,
                ScoreView out) { score_trimkv(spec.trim, in.log_beta, in.k, in.positions, in.tokens, out); },
    .options = kTrimKvOptions,
    .weights = TrainedWeights::kDecayGates,
    .device = DeviceScores::kOfSource,
    .work = {.gate_width = 64}};  // of drawn gates (engine/common/scorer_weights.cc)
constexpr ScorerDefinition kRaas{.name = "raas",
                                 .source = ScoreSource::kStamps,
                                 .captures = kKeys | kWindowQueries | kPageStamps,
                                 .score = score_by_stamps,
                                 .options = kRaasOptions,
                                 .set_defaults = [](ScoreSpec* spec) { spec->window.window = 1; },
                                 .watches_decodes = true,
                                 .device = DeviceScores::kOfSource};

constexpr ScorerDefinition kIntentRule{.name = "intent_rule",
                                       .source = ScoreSource::kSessionMemory,
                                       .captures = kKeys | kSpanQueries | kSessionMemory,
                                       .score = score_by_memory,
                                       .options = kIntentRuleOptions,
                                       .device = DeviceScores::kOfSource};
constexpr ScorerDefinition kIntentResidual{
    .name = "intent_residual",
    .source = ScoreSource::kSessionMemory,
    .captures = kKeys | kSpanQueries | kSessionMemory | kGateWeights,
    .score = score_by_memory,
    .options = kIntentResidualOptions,
    .set_defaults = [](ScoreSpec* spec) { spec->intent_mode = IntentMode::kLearnable; },
    .weights = TrainedWeights::kResidual,
    .device = DeviceScores::kOfSource};

const ScorerDefinition* const kScorers[] = {
    &kNone,           &kStreaming, &kH2o,      &kObserved, &kSnapKv,   &kPyramidKv,
    &kTova,           &kKnorm,     &kKeyDiff,  &kExpected, &kKvzip,    &kFastKvzip,
    &kTrimKv,         &kRaas,      &kDuo,      &kRazor,    &kJudgeQ,   &kIntentRule,
    &kIntentResidual, &kFinch,     &kCritical, &kRKv,      &kExternal, &kRandom};

}  // namespace

std::span<const ScorerDefinition* const> all_scorers() { return kScorers; }

const ScorerDefinition* find_scorer(std::string_view name) {
  for (const ScorerDefinition* scorer : kScorers) {
    if (scorer->name == name) return scorer;
  }
  return nullptr;
}

}  // namespace kvtwin::kernels
