#include "scenarios/inspect/inspect_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <optional>

#include "kernels/scoring/keep_metrics.h"
#include "kernels/select/select.h"
#include "models/files/textproto.h"
#include "scenarios/load/scorer_options.h"

namespace kvtwin {
namespace {

constexpr char kOracle[] = "oracle";

struct NamedScorer {
  std::string name;
  kernels::ScoreSpec spec;
};

Result<NamedScorer> named_scorer(const Scenario& scenario, const std::string& name) {
  v1::Scenario values = scenario.values;
  v1::Policies& policies = *values.mutable_policies();
  if (policies.scorer() != name) policies.clear_scorer_options();
  policies.set_scorer(name == kOracle ? "judge_q" : name);
  const kernels::ScorerDefinition* const scorer = kernels::find_scorer(policies.scorer());
  if (scorer == nullptr) {
    std::vector<std::string> known = {kOracle};
    for (const kernels::ScorerDefinition* one : kernels::all_scorers()) known.emplace_back(one->name);
    const std::string close = did_you_mean(name, known);
    return make_error("--scorers", fmt::format("there is no scorer \"{}\"", name),
                      close.empty() ? fmt::format("one of: {}", fmt::join(known, ", ")) : close);
  }
  if (const std::optional<std::string> cannot = cpu::cannot_score(*scorer))
    return make_error("--scorers", fmt::format("{} cannot be inspected", name), *cannot);
  complete_scorer_options(&policies);
  return NamedScorer{name, score_spec(values)};
}

// The entries that a scorer retains of one context with one budget: by layer, then KV head.
std::vector<kernels::RowSet> keep(std::vector<float>* scores, uint32_t heads, uint32_t tokens,
                                  uint32_t budget, const kernels::RowSet& forced) {
  const auto fixed = static_cast<uint32_t>(forced.size());
  const uint32_t best = budget > fixed ? budget - fixed : 0;
  std::vector<kernels::RowSet> out;
  for (uint32_t h = 0; h < heads; ++h) {
    const std::span<const float> row(scores->data() + uint64_t{h} * tokens, tokens);
    out.push_back(kernels::select_rows(row, forced, best));
  }
  return out;
}

// The attention outputs of response tokens over the whole context, in one layer.
class FullOutputs {
 public:
  // `positions` of the response tokens; `count` of them are compared.
  FullOutputs(const cpu::CapturedPass& pass, uint32_t layer, std::span<const uint32_t> positions,
              uint32_t count)
      : tokens_(positions.front()), kv_entries_(positions.back() + 1), v_(pass.v(layer, 0, kv_entries_)) {
    const auto rows = static_cast<uint32_t>(positions.size());
    attention_scores_ = {.q = pass.q(layer, tokens_, rows),
                         .q_positions = positions,
                         .k = pass.k(layer, 0, kv_entries_),
                         .positions = {kv_entries_, {}}};
    for (uint32_t i = 0; i < std::min(count, rows); ++i) asked_.push_back(i * rows / std::min(count, rows));
    kernels::RowSet all(kv_entries_);
    std::iota(all.begin(), all.end(), 0u);
    each([&](uint32_t j, uint32_t i) {
      outputs_.emplace_back(v_.dim);
      kernels::attention_output(attention_scores_, v_, j, i, all, outputs_.back());
    });
  }

  // Adds the squared norms of the difference that dropped entries make, and of the full output. `retained` is
  // by KV head; the response's own entries are always retained.
  void add_error(std::span<const kernels::RowSet> retained, double* lost, double* whole) const {
    std::vector<kernels::RowSet> seen(retained.begin(), retained.end());
    for (kernels::RowSet& set : seen) {
      for (uint32_t p = tokens_; p < kv_entries_; ++p) set.push_back(p);
    }
    std::vector<double> cut(v_.dim);
    size_t at = 0;
    each([&](uint32_t j, uint32_t i) {
      kernels::attention_output(attention_scores_, v_, j, i, seen[j / attention_scores_.group()], cut);
      const std::vector<double>& full = outputs_[at++];
      for (uint32_t c = 0; c < v_.dim; ++c) {
        *lost += (cut[c] - full[c]) * (cut[c] - full[c]);
        *whole += full[c] * full[c];
      }
    });
  }

 private:
  template <typename Visit>
  void each(Visit visit) const {
    for (uint32_t j = 0; j < attention_scores_.q.heads; ++j) {
      for (const uint32_t i : asked_) visit(j, i);
    }
  }

  const uint32_t tokens_, kv_entries_;
  std::vector<uint32_t> asked_;
  const kernels::HeadsView v_;
  kernels::AttentionScores attention_scores_;
  std::vector<std::vector<double>> outputs_;
};

// Sums for one scorer and budget.
struct Sums {
  uint32_t contexts = 0;
  double floor = 0;
  std::vector<std::vector<kernels::HitCount>> hits;  // by layer
  std::vector<double> hit_rates;                     // by context
  std::vector<double> lost, whole;                   // by layer
};

class Inspection {
 public:
  Inspection(const Scenario& scenario, const InspectRequest& request, CalibrationModel* model,
             std::vector<NamedScorer> scorers, kernels::ScoreSpec oracle)
      : scenario_(scenario),
        request_(request),
        model_(*model),
        llm_(model->llm()),
        scorers_(std::move(scorers)),
        oracle_(oracle),
        sums_(scorers_.size() * request.budgets.size()) {
    for (Sums& sums : sums_) {
      sums.hits.resize(llm_.layers);
      sums.lost.resize(llm_.layers), sums.whole.resize(llm_.layers);
    }
  }

  void run() {
    CalibrationModel::Room room{request_.response_tokens, false};
    for (const NamedScorer& scorer : scorers_) {
      const CalibrationModel::Room own = model_.room(scenario_, *scorer.spec.scorer);
      room = {std::max(room.rows, own.rows), room.hidden || own.hidden};
    }
    model_.each(room, [&](size_t index, cpu::CapturedPass* pass) { context(index, pass); });
  }

  std::vector<InspectRow> rows() const {
    std::vector<InspectRow> out;
    for (size_t s = 0; s < scorers_.size(); ++s) {
      for (size_t b = 0; b < request_.budgets.size(); ++b)
        out.push_back(row(scorers_[s].name, request_.budgets[b], sums_[s * request_.budgets.size() + b]));
    }
    return out;
  }

 private:
  static double relative(double lost, double whole) { return whole > 0 ? std::sqrt(lost / whole) : 0; }

  // 1.96 standard errors of the mean; 0: fewer than two values.
  static double margin(const std::vector<double>& values) {
    if (values.size() < 2) return 0;
    const double count = static_cast<double>(values.size());
    const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
    double squares = 0;
    for (const double value : values) squares += (value - mean) * (value - mean);
    return 1.96 * std::sqrt(squares / (count - 1) / count);
  }

  InspectRow row(const std::string& name, uint32_t budget, const Sums& sums) const {
    InspectRow out;
    out.scorer = name, out.budget = budget, out.contexts = sums.contexts;
    std::vector<kernels::HitCount> all;
    for (uint32_t l = 0; l < llm_.layers; ++l) {
      all.insert(all.end(), sums.hits[l].begin(), sums.hits[l].end());
      out.layers.push_back({kernels::hit_rate(sums.hits[l]), relative(sums.lost[l], sums.whole[l])});
    }
    out.hit_rate = kernels::hit_rate(all);
    out.hit_margin = margin(sums.hit_rates);
    out.floor = sums.contexts > 0 ? sums.floor / sums.contexts : 0;
    out.error = relative(std::accumulate(sums.lost.begin(), sums.lost.end(), 0.0),
                         std::accumulate(sums.whole.begin(), sums.whole.end(), 0.0));
    return out;
  }

  uint32_t heads() const { return llm_.layers * llm_.kv_heads; }

  void context(size_t index, cpu::CapturedPass* pass) {
    const TraceContext& context = model_.contexts()[index];
    const auto tokens = static_cast<uint32_t>(context.prompt.size());
    const auto rows =
        static_cast<uint32_t>(std::min<size_t>(context.output.size(), request_.response_tokens));
    // Scores before the response is appended: probe tokens take its positions.
    std::vector<std::vector<float>> scores;
    for (const NamedScorer& scorer : scorers_) {
      const bool later = scorer.name == kOracle || depends_on_budget(scorer);
      scores.push_back(later ? std::vector<float>{}
                             : cpu::score_captured(
                                   scorer.spec, model_.scored(scenario_, *scorer.spec.scorer, index), pass));
    }
    pass->extend(std::span(context.output).first(rows));
    cpu::ScoredContext scored = model_.scored(scenario_, *oracle_.scorer, index);
    scored.response_tokens = rows;
    std::vector<float> oracle = cpu::score_captured(oracle_, scored, pass);
    std::vector<FullOutputs> full;
    std::vector<uint32_t> positions(rows);
    std::iota(positions.begin(), positions.end(), tokens);
    for (uint32_t l = 0; l < llm_.layers; ++l) full.emplace_back(*pass, l, positions, request_.error_tokens);
    const kernels::RowSet forced = kernels::sink_and_window(tokens, request_.sinks, request_.window);
    for (size_t b = 0; b < request_.budgets.size(); ++b) {
      const uint32_t budget = request_.budgets[b];
      if (budget >= tokens) continue;
      const std::vector<kernels::RowSet> critical = keep(&oracle, heads(), tokens, budget, forced);
      for (size_t s = 0; s < scorers_.size(); ++s) {
        const NamedScorer& scorer = scorers_[s];
        std::vector<float>* own = scorer.name == kOracle ? &oracle : &scores[s];
        if (depends_on_budget(scorer)) {
          cpu::ScoredContext own_context = model_.scored(scenario_, *scorer.spec.scorer, index);
          own_context.response_tokens = rows, own_context.retained = budget;
          scores[s] = cpu::score_captured(scorer.spec, own_context, pass);
        }
        count(keep(own, heads(), tokens, budget, forced), critical, full, forced.size(), tokens,
              &sums_[s * request_.budgets.size() + b]);
      }
    }
  }

  static bool depends_on_budget(const NamedScorer& scorer) {
    return scorer.spec.scorer->captures_any(kernels::capture::kRetained);
  }

  void count(const std::vector<kernels::RowSet>& retained, const std::vector<kernels::RowSet>& critical,
             const std::vector<FullOutputs>& full, size_t forced, uint32_t tokens, Sums* sums) const {
    ++sums->contexts;
    const double k = static_cast<double>(critical.front().size()), f = static_cast<double>(forced);
    sums->floor +=
        (f + (k - f) * kernels::random_hit_rate(static_cast<uint64_t>(k - f), tokens - forced)) / k;
    std::vector<kernels::HitCount> own;
    for (uint32_t l = 0; l < llm_.layers; ++l) {
      const size_t first = size_t{l} * llm_.kv_heads;
      for (size_t h = first; h < first + llm_.kv_heads; ++h) {
        own.push_back(kernels::count_hits(retained[h], critical[h]));
        sums->hits[l].push_back(own.back());
      }
      full[l].add_error(std::span(retained).subspan(first, llm_.kv_heads), &sums->lost[l], &sums->whole[l]);
    }
    sums->hit_rates.push_back(kernels::hit_rate(own));
  }

  const Scenario& scenario_;
  const InspectRequest& request_;
  CalibrationModel& model_;
  const LlmSpec& llm_;
  const std::vector<NamedScorer> scorers_;
  const kernels::ScoreSpec oracle_;
  std::vector<Sums> sums_;  // by scorer, then budget
};

}  // namespace

Result<std::vector<InspectRow>> inspect_policy(const Scenario& scenario, const InspectRequest& request,
                                               CalibrationModel* model) {
  std::vector<NamedScorer> scorers;
  for (const std::string& name : request.scorers) {
    Result<NamedScorer> scorer = named_scorer(scenario, name);
    if (!scorer) return tl::unexpected<Error>(scorer.error());
    scorers.push_back(std::move(*scorer));
  }
  const Result<NamedScorer> oracle = named_scorer(scenario, kOracle);
  if (!oracle) return tl::unexpected<Error>(oracle.error());
  Inspection inspection(scenario, request, model, std::move(scorers), oracle->spec);
  inspection.run();
  std::vector<InspectRow> rows = inspection.rows();
  size_t longest = 0;
  for (const TraceContext& context : model->contexts()) longest = std::max(longest, context.prompt.size());
  for (const InspectRow& row : rows) {
    if (row.contexts == 0)
      return make_error("--budgets", fmt::format("{} KV entries hold every context", row.budget),
                        fmt::format("fewer than {}, the longest", longest));
  }
  return rows;
}

std::string inspect_text(const std::vector<InspectRow>& rows, OutputFormat format) {
  std::string out;
  const auto add = std::back_inserter(out);
  if (format == OutputFormat::kTable) {
    fmt::format_to(add, "  {:<20} {:>7} {:>9} {:>19} {:>9} {:>7} {:>10} {:>12}\n", "scorer", "budget",
                   "contexts", "hit rate (95 %)", "random", "lift", "error", "worst layer");
    for (const InspectRow& row : rows) {
      double worst = 0;
      for (const InspectLayer& layer : row.layers) worst = std::max(worst, layer.error);
      fmt::format_to(add,
                     "  {:<20} {:>7} {:>9} {:>8.2f} % +-{:>6.2f} {:>7.2f} % {:>7.2f} {:>10.4f} {:>12.4f}\n",
                     row.scorer, row.budget, row.contexts, 100 * row.hit_rate, 100 * row.hit_margin,
                     100 * row.floor, row.lift(), row.error, worst);
    }
    return out;
  }
  const bool csv = format == OutputFormat::kCsv, array = format == OutputFormat::kJson;
  if (csv) fmt::format_to(add, "scorer,budget,layer,contexts,hit_rate,floor,error\n");
  if (array) fmt::format_to(add, "[");
  bool first = true;
  for (const InspectRow& row : rows) {
    for (size_t l = 0; l < row.layers.size(); ++l) {
      if (csv) {
        fmt::format_to(add, "{},{},{},{},{},{},{}\n", row.scorer, row.budget, l, row.contexts,
                       row.layers[l].hit_rate, row.floor, row.layers[l].error);
        continue;
      }
      fmt::format_to(add,
                     "{}{{\"scorer\":\"{}\",\"budget\":{},\"layer\":{},\"contexts\":{},\"hit_rate\":{},"
                     "\"floor\":{},\"error\":{}}}{}",
                     array && !first ? ",\n " : "", row.scorer, row.budget, l, row.contexts,
                     row.layers[l].hit_rate, row.floor, row.layers[l].error, array ? "" : "\n");
      first = false;
    }
  }
  if (array) fmt::format_to(add, "]\n");
  return out;
}

}  // namespace kvtwin
