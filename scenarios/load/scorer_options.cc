#include "scenarios/load/scorer_options.h"

#include <fmt/format.h>
#include <google/protobuf/message.h>

#include <algorithm>
#include <optional>

#include "engine/methods/axis_factories.h"
#include "models/files/textproto.h"
#include "scenarios/load/names.h"

namespace kvtwin {
namespace {

using kernels::IntentMode;
using kernels::MemoryForm;
using kernels::ObservedForm;
using kernels::Pool;
using kernels::PoolOrder;
using kernels::QueryNorm;
using kernels::Reduce;
using kernels::RuleNorm;
using kernels::ScorerKind;
using kernels::WindowCodeBase;

constexpr NameTable<CompressionTrigger, 4> kMoments{{{{"chunk_end", CompressionTrigger::kChunkEnd},
                                                      {"prompt_end", CompressionTrigger::kPromptEnd},
                                                      {"turn_start", CompressionTrigger::kTurnStart},
                                                      {"decode_step", CompressionTrigger::kDecodeStep}}}};
constexpr NameTable<WindowCodeBase, 6> kCodeBases{{{{"kvpress", WindowCodeBase::kKvpress},
                                                    {"adakv", WindowCodeBase::kAdaKv},
                                                    {"kvcache_factory", WindowCodeBase::kKvCacheFactory},
                                                    {"tangram", WindowCodeBase::kTangram},
                                                    {"intentkv", WindowCodeBase::kIntentKv},
                                                    {"h2o_window", WindowCodeBase::kH2oWindow}}}};
constexpr NameTable<Pool, 3> kPools{
    {{{"none", Pool::kNone}, {"average", Pool::kAverage}, {"max", Pool::kMax}}}};
constexpr NameTable<Reduce, 3> kReduces{
    {{{"mean", Reduce::kMean}, {"max", Reduce::kMax}, {"sum", Reduce::kSum}}}};
constexpr NameTable<PoolOrder, 3> kOrders{{{{"pool_then_reduce", PoolOrder::kPoolThenReduce},
                                            {"reduce_then_pool", PoolOrder::kReduceThenPool},
                                            {"reduce_logits_first", PoolOrder::kReduceLogitsFirst}}}};
constexpr NameTable<ObservedForm, 2> kObserved{
    {{{"per_row", ObservedForm::kPerRow}, {"sum", ObservedForm::kSum}}}};
constexpr NameTable<IntentMode, 2> kModes{{{{"memory", IntentMode::kMemory}, {"query", IntentMode::kQuery}}}};
constexpr NameTable<QueryNorm, 2> kQueryNorms{{{{"unit", QueryNorm::kUnit}, {"raw", QueryNorm::kRaw}}}};
constexpr NameTable<MemoryForm, 2> kMemories{
    {{{"sum", MemoryForm::kSum}, {"max_over_turns", MemoryForm::kMaxOverTurns}}}};
constexpr NameTable<RuleNorm, 3> kRuleNorms{{{{"none", RuleNorm::kNone},
                                              {"times_candidates", RuleNorm::kTimesCandidates},
                                              {"zscore", RuleNorm::kZScore}}}};

template <typename T, size_t kCount>
std::string name_of(const NameTable<T, kCount>& table, T value) {
  for (const auto& [name, known] : table.rows) {
    if (known == value) return std::string(name);
  }
  return {};
}

bool knows(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void window_options(const kernels::WindowSpec& window, v1::ScorerOptions* out) {
  out->set_kernel(window.kernel);
  out->set_pool(name_of(kPools, window.pool));
  out->set_reduce(name_of(kReduces, window.reduce));
  out->set_order(name_of(kOrders, window.order));
}

void snapkv_options(const std::string& code_base, const kernels::WindowSpec& own, v1::ScorerOptions* out) {
  const bool given = knows(kCodeBases.names(), code_base);
  const kernels::WindowSpec window = given ? kernels::window_spec(kCodeBases.value(code_base)) : own;
  window_options(window, out);
  out->set_query_tokens(window.window);
  out->set_causal(window.causal);
}

void expected_options(const kernels::ScoreSpec& spec, v1::ScorerOptions* out) {
  out->set_sink(spec.expected.sink);
  out->set_outliers(spec.expected.first);
  out->set_future(spec.expected.future);
  out->set_covariance(spec.expected.covariance);
  out->set_eps(spec.expected.eps);
}

void intent_options(const kernels::ScoreSpec& spec, v1::ScorerOptions* out) {
  out->set_gamma(0.9);
  out->set_temperature(spec.intent.temperature);
  out->set_memory_pre_rope(spec.intent.memory_pre_rope);
  out->set_query_norm(name_of(kQueryNorms, spec.intent.query_norm));
  if (spec.kind == ScorerKind::kIntentRule) {
    out->set_mode(name_of(kModes, spec.intent_mode));
    out->set_memory(name_of(kMemories, spec.intent.memory));
  }
  if (spec.kind == ScorerKind::kIntentResidual) out->set_rule_norm(name_of(kRuleNorms, spec.rule_norm));
}

// Fills the options that only this kind of scorer reads.
void own_options(const kernels::ScoreSpec& spec, const std::string& code_base, v1::ScorerOptions* out) {
  switch (spec.kind) {
    case ScorerKind::kStreaming:
    case ScorerKind::kDuo:
    case ScorerKind::kRazor:
      return out->set_sink(spec.sink);
    case ScorerKind::kObserved:
      return out->set_observed(name_of(kObserved, spec.observed));
    case ScorerKind::kSnapKv:
    case ScorerKind::kCritical:
      out->set_code_base("kvpress");
      return snapkv_options(code_base, spec.window, out);
    case ScorerKind::kPyramidKv:
      out->set_code_base("kvcache_factory");
      return snapkv_options(code_base, spec.window, out);
    case ScorerKind::kFinch:
      return out->set_query_tokens(spec.window.window);
    case ScorerKind::kJudgeQ:
      window_options(spec.window, out);
      out->set_probe_tokens(captured_queries("judge_q", {}));
      return out->set_renormalise(spec.renormalise);
    case ScorerKind::kExpected:
      return expected_options(spec, out);
    case ScorerKind::kKvzip:
      out->set_repeat_tokens(ScorerSpec().repeat_tokens);
      out->set_repeat_tail(ScorerSpec().repeat_tail);
      return out->set_repeat_instruction(ScorerSpec().repeat_instruction);
    case ScorerKind::kTrimKv:
      return out->set_key_norm(spec.trim.key_norm);
    case ScorerKind::kRaas:
      out->set_alpha(1e-4);
      out->set_scaled(spec.raas.scaled);
      return out->set_inherit_stamp(spec.raas.inherit_stamp);
    case ScorerKind::kIntentRule:
    case ScorerKind::kIntentResidual:
      return intent_options(spec, out);
    case ScorerKind::kRandom:
    case ScorerKind::kNone:
    case ScorerKind::kH2o:
    case ScorerKind::kTova:
    case ScorerKind::kKnorm:
    case ScorerKind::kKeyDiff:
    case ScorerKind::kFastKvzip:
      return;
  }
}

class ScorerChecker {
 public:
  ScorerChecker(const Scenario& scenario, Errors* errors)
      : scenario_(scenario), options_(scenario.values.policies().scorer_options()), errors_(*errors) {}

  void add(const std::string& field, std::string what, std::string hint) {
    errors_.push_back(
        {scenario_.where("policies.scorer_options." + field), std::move(what), std::move(hint)});
  }
  void choice(const char* field, bool set, const std::string& value, const std::vector<std::string>& known) {
    if (!set || knows(known, value)) return;
    const std::string close = did_you_mean(value, known);
    add(field, fmt::format("{} is \"{}\"", field, value),
        close.empty() ? fmt::format("one of: {}", fmt::join(known, ", ")) : close);
  }
  template <typename T>
  void range(const char* field, bool set, T value, T low, T high) {
    if (set && !(value >= low && value <= high)) {
      add(field, fmt::format("{} is {}", field, value), fmt::format("from {} to {}", low, high));
    }
  }
  void names();
  void numbers();

 private:
  const Scenario& scenario_;
  const v1::ScorerOptions& options_;
  Errors& errors_;
};

void ScorerChecker::names() {
  const v1::ScorerOptions& o = options_;
  choice("compression_trigger", o.has_compression_trigger(), o.compression_trigger(), kMoments.names());
  choice("code_base", o.has_code_base(), o.code_base(), kCodeBases.names());
  choice("pool", o.has_pool(), o.pool(), kPools.names());
  choice("reduce", o.has_reduce(), o.reduce(), kReduces.names());
  choice("order", o.has_order(), o.order(), kOrders.names());
  choice("observed", o.has_observed(), o.observed(), kObserved.names());
  choice("mode", o.has_mode(), o.mode(), kModes.names());
  choice("query_norm", o.has_query_norm(), o.query_norm(), kQueryNorms.names());
  choice("memory", o.has_memory(), o.memory(), kMemories.names());
  choice("rule_norm", o.has_rule_norm(), o.rule_norm(), kRuleNorms.names());
}

void ScorerChecker::numbers() {
  const v1::ScorerOptions& o = options_;
  const uint32_t rows = 65'536;
  range("query_tokens", o.has_query_tokens(), o.query_tokens(), 1u, rows);
  range("probe_tokens", o.has_probe_tokens(), o.probe_tokens(), 1u, rows);
  range("kernel", o.has_kernel(), o.kernel(), 1u, 255u);
  if (o.has_kernel() && o.kernel() % 2 == 0 && o.kernel() <= 255 && o.kernel() > 0) {
    add("kernel", fmt::format("kernel is {}", o.kernel()), "an odd number");
  }
  range("sink", o.has_sink(), o.sink(), 0u, 1u << 24);
  range("outliers", o.has_outliers(), o.outliers(), 0u, 1u << 24);
  range("future", o.has_future(), o.future(), 1u, 1u << 20);
  range("eps", o.has_eps(), o.eps(), 0.0, 1.0);
  range("repeat_tokens", o.has_repeat_tokens(), o.repeat_tokens(), 1u, 1u << 24);
  range("repeat_tail", o.has_repeat_tail(), o.repeat_tail(), 0u, rows);
  range("repeat_instruction", o.has_repeat_instruction(), o.repeat_instruction(), 0u, rows);
  range("alpha", o.has_alpha(), o.alpha(), 0.0, 1.0);
  range("gamma", o.has_gamma(), o.gamma(), 0.0, 1.0);
  range("temperature", o.has_temperature(), o.temperature(), 1e-6, 1e6);
}

}  // namespace

v1::ScorerOptions default_scorer_options(const std::string& scorer, const std::string& code_base) {
  v1::ScorerOptions out;
  const std::optional<ScorerKind> kind = kernels::scorer_kind(scorer);
  if (!kind || *kind == ScorerKind::kNone) return out;
  out.set_compression_trigger(name_of(kMoments, make_scorer(scorer, {})->compression_trigger()));
  ScorerSpec closed;
  closed.window_closed = true;
  if (!validate_scorer(scorer, closed)) out.set_window_closed(false);
  own_options(kernels::score_spec(*kind), code_base, &out);
  return out;
}

void complete_scorer_options(v1::Policies* policies) {
  v1::ScorerOptions options =
      default_scorer_options(policies->scorer(), policies->scorer_options().code_base());
  options.MergeFrom(policies->scorer_options());
  if (options.ByteSizeLong() > 0) *policies->mutable_scorer_options() = options;
}

void check_scorer_options(const Scenario& scenario, Errors* errors) {
  const v1::Policies& policies = scenario.values.policies();
  if (!kernels::scorer_kind(policies.scorer()) || !policies.has_scorer_options()) return;
  const v1::ScorerOptions& given = policies.scorer_options();
  const v1::ScorerOptions read = default_scorer_options(policies.scorer(), given.code_base());
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  given.GetReflection()->ListFields(given, &fields);
  ScorerChecker check(scenario, errors);
  for (const auto* field : fields) {
    const bool seed = field->name() == "seed" && policies.scorer() == "random";
    if (seed || read.GetReflection()->HasField(read, field)) continue;
    std::vector<const google::protobuf::FieldDescriptor*> known;
    read.GetReflection()->ListFields(read, &known);
    std::string names;
    for (const auto* one : known) names += (names.empty() ? "" : ", ") + one->name();
    check.add(field->name(), fmt::format("scorer {} does not read {}", policies.scorer(), field->name()),
              names.empty() ? "it has no options" : "it reads " + names);
  }
  check.names();
  check.numbers();
}

ScorerSpec scorer_spec(const v1::Policies& policies) {
  const v1::ScorerOptions& in = policies.scorer_options();
  ScorerSpec out;
  if (in.has_compression_trigger()) out.compression_trigger = kMoments.value(in.compression_trigger());
  out.query_tokens = in.query_tokens();
  out.probe_tokens = in.probe_tokens();
  out.window_closed = in.window_closed();
  if (in.has_repeat_tokens()) out.repeat_tokens = in.repeat_tokens();
  if (in.has_repeat_tail()) out.repeat_tail = in.repeat_tail();
  if (in.has_repeat_instruction()) out.repeat_instruction = in.repeat_instruction();
  return out;
}

kernels::ScoreSpec score_spec(const v1::Scenario& values) {
  const v1::ScorerOptions& in = values.policies().scorer_options();
  const std::optional<ScorerKind> kind = kernels::scorer_kind(values.policies().scorer());
  KVT_CHECK(kind.has_value());
  kernels::ScoreSpec out = kernels::score_spec(*kind);
  if (in.has_code_base()) out.window = kernels::window_spec(kCodeBases.value(in.code_base()));
  if (in.has_query_tokens()) out.window.window = in.query_tokens();
  if (in.has_kernel()) out.window.kernel = in.kernel();
  if (in.has_pool()) out.window.pool = kPools.value(in.pool());
  if (in.has_reduce()) out.window.reduce = kReduces.value(in.reduce());
  if (in.has_order()) out.window.order = kOrders.value(in.order());
  if (in.has_causal()) out.window.causal = in.causal();
  if (in.has_sink()) out.sink = out.expected.sink = in.sink();
  if (in.has_observed()) out.observed = kObserved.value(in.observed());
  if (in.has_outliers()) out.expected.first = in.outliers();
  if (in.has_future()) out.expected.future = in.future();
  if (in.has_covariance()) out.expected.covariance = in.covariance();
  if (in.has_eps()) out.expected.eps = static_cast<float>(in.eps());
  if (in.has_alpha()) out.raas.alpha = static_cast<float>(in.alpha());
  if (in.has_gamma()) out.intent.gamma = static_cast<float>(in.gamma());
  if (in.has_temperature()) out.intent.temperature = static_cast<float>(in.temperature());
  if (in.has_mode()) out.intent_mode = kModes.value(in.mode());
  if (in.has_query_norm()) out.intent.query_norm = kQueryNorms.value(in.query_norm());
  if (in.has_memory()) out.intent.memory = kMemories.value(in.memory());
  if (*kind == ScorerKind::kIntentResidual) out.intent_mode = IntentMode::kLearnable;
  if (in.has_rule_norm()) out.rule_norm = kRuleNorms.value(in.rule_norm());
  out.trim.key_norm = in.key_norm();
  out.raas.scaled = in.scaled();
  out.raas.inherit_stamp = in.inherit_stamp();
  out.renormalise = in.renormalise();
  out.intent.memory_pre_rope = in.memory_pre_rope();
  out.page_tokens = values.memory().page_tokens();
  out.seed = in.has_seed() ? in.seed() : values.seed();
  return out;
}

}  // namespace kvtwin
