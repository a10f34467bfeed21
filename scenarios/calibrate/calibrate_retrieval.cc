#include "scenarios/calibrate/calibrate_retrieval.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

#include "kernels/select/page_score.h"
#include "kernels/select/page_summary.h"
#include "kernels/select/select.h"
#include "scenarios/load/retrieval_options.h"

namespace kvtwin {
namespace {

constexpr int kTaus = 41;  // -1 to 1 by 0.05

double tau_at(int index) { return (index - 20) / 20.0; }

// The kernels' enums are in the order of the policy's, which does not depend on kernels.
static_assert(static_cast<int>(GroupPooling::kMaxQ) == static_cast<int>(kernels::PagePooling::kMaxQ));
static_assert(static_cast<int>(GroupPooling::kMeanQk) == static_cast<int>(kernels::PagePooling::kMeanQk));
static_assert(static_cast<int>(PageSummary::kMean) == static_cast<int>(kernels::SummaryKind::kMean));

struct Moments {
  uint64_t count = 0;
  double sum = 0, squares = 0;
  void add(double x) { ++count, sum += x, squares += x * x; }
  double mean() const { return count > 0 ? sum / static_cast<double>(count) : 0; }
  double deviation() const {
    return count > 0 ? std::sqrt(std::max(0.0, squares / static_cast<double>(count) - mean() * mean())) : 0;
  }
};

class RetrievalPass {
 public:
  RetrievalPass(const RetrievalSpec& spec, uint32_t page_tokens, const LlmSpec& llm)
      : spec_(spec),
        page_(page_tokens),
        llm_(llm),
        group_(llm.query_heads / llm.kv_heads),
        similar_(uint64_t{llm.layers} * llm.kv_heads),
        below_(llm.layers, std::vector<uint64_t>(kTaus)),
        misses_(llm.layers) {}

  // `pass` holds the prompt and `rows` tokens of the response.
  void add(const cpu::CapturedPass& pass, uint32_t tokens, uint32_t rows) {
    uint32_t steps = 0;
    for (uint32_t l = spec_.layers_dense; l < llm_.layers; ++l) {
      for (uint32_t h = 0; h < llm_.kv_heads; ++h)
        steps = std::max(steps, add_head(pass, tokens, rows, l, h));
    }
    contexts_ += steps > 0 ? 1 : 0;
    steps_ += steps;
  }

  void fill(RecallProfile* out) const {
    out->contexts = contexts_, out->steps = steps_;
    for (const Moments& one : similar_) {
      out->similarity.push_back(one.mean());
      out->similarity_deviation.push_back(one.deviation());
    }
    for (int t = 0; t < kTaus; ++t) out->tau.push_back(tau_at(t));
    for (uint32_t l = 0; l < llm_.layers; ++l) {
      uint64_t all = 0;
      for (uint32_t h = 0; h < llm_.kv_heads; ++h) all += similar_[uint64_t{l} * llm_.kv_heads + h].count;
      for (const uint64_t below : below_[l])
        out->correction_rate.push_back(all > 0 ? static_cast<double>(below) / static_cast<double>(all) : 0);
      out->miss_rate.push_back(misses_[l].mean());
    }
    for (const Moments& step : by_step_) out->miss_by_step.push_back(step.mean());
  }

 private:
  // Queries of one KV head at one position, [group][head_dim].
  std::vector<float> queries(const cpu::CapturedPass& pass, uint32_t layer, uint32_t head,
                             uint32_t position) const {
    std::vector<float> out;
    const kernels::HeadsView q = pass.q(layer, position, 1);
    for (uint32_t g = 0; g < group_; ++g) {
      const float* const row = q.row(head * group_ + g, 0);
      out.insert(out.end(), row, row + llm_.head_dim);
    }
    return out;
  }

  void summarise(const cpu::CapturedPass& pass, uint32_t layer, uint32_t head, uint32_t page) {
    const kernels::HeadsView k = pass.k(layer, page * page_, page_);
    std::vector<float> keys;
    for (uint32_t t = 0; t < page_; ++t)
      keys.insert(keys.end(), k.row(head, t), k.row(head, t) + llm_.head_dim);
    summaries_.emplace_back(2 * llm_.head_dim);
    float* const high = summaries_.back().data();
    kernels::summarise_page_ref(static_cast<kernels::SummaryKind>(spec_.summary), keys.data(), page_,
                                llm_.head_dim, high, high + llm_.head_dim);
  }

  // Chooses among `count` candidate pages after the sinks.
  kernels::RowSet choose(const std::vector<float>& q, uint32_t count) const {
    std::vector<kernels::PageVectors> pages;
    for (uint32_t p = 0; p < count; ++p)
      pages.push_back({summaries_[p].data(), summaries_[p].data() + llm_.head_dim});
    std::vector<float> scores(count);
    const float scale =
        spec_.scale == ScoreScale::kOne ? 1.0f : 1.0f / std::sqrt(static_cast<float>(llm_.head_dim));
    kernels::score_pages_ref(static_cast<kernels::PagePooling>(spec_.pooling), scale, q.data(), group_,
                             llm_.head_dim, pages, scores.data());
    return kernels::select_rows(scores, {}, selectable_pages(spec_, page_));
  }

  // Returns the number of steps that have a choice and a previous choice to compare with.
  uint32_t add_head(const cpu::CapturedPass& pass, uint32_t tokens, uint32_t rows, uint32_t layer,
                    uint32_t head) {
    const uint32_t first = spec_.sink_tokens / page_;
    summaries_.clear();
    std::vector<float> before;
    kernels::RowSet chosen_before;
    uint32_t steps = 0;
    for (uint32_t i = 0; i < rows; ++i) {
      const uint32_t position = tokens + i, count = candidate_pages(spec_, page_, position + 1);
      while (summaries_.size() < count)
        summarise(pass, layer, head, first + static_cast<uint32_t>(summaries_.size()));
      std::vector<float> q = queries(pass, layer, head, position);
      kernels::RowSet chosen;
      if (count > selectable_pages(spec_, page_)) chosen = choose(q, count);
      if (!chosen.empty() && !chosen_before.empty()) {
        ++steps;
        compare(layer, head, i, kernels::group_cosine_ref(q.data(), before.data(), group_, llm_.head_dim),
                chosen, chosen_before);
      }
      before = std::move(q);
      chosen_before = std::move(chosen);
    }
    return steps;
  }

  void compare(uint32_t layer, uint32_t head, uint32_t step, double alike, const kernels::RowSet& chosen,
               const kernels::RowSet& before) {
    similar_[uint64_t{layer} * llm_.kv_heads + head].add(alike);
    for (int t = 0; t < kTaus; ++t) below_[layer][static_cast<size_t>(t)] += alike < tau_at(t) ? 1 : 0;
    kernels::RowSet missing;
    std::set_difference(chosen.begin(), chosen.end(), before.begin(), before.end(),
                        std::back_inserter(missing));
    const double fraction = static_cast<double>(missing.size()) / static_cast<double>(chosen.size());
    misses_[layer].add(fraction);
    if (by_step_.size() <= step) by_step_.resize(step + 1);
    by_step_[step].add(fraction);
  }

  const RetrievalSpec spec_;
  const uint32_t page_;
  const LlmSpec& llm_;
  const uint32_t group_;
  std::vector<std::vector<float>>
      summaries_;                             // high, then low; of the current head, from its first candidate
  std::vector<Moments> similar_;              // by layer, then KV head
  std::vector<std::vector<uint64_t>> below_;  // by layer, then tau
  std::vector<Moments> misses_, by_step_;
  uint32_t contexts_ = 0, steps_ = 0;
};

}  // namespace

Result<RecallProfile> calibrate_retrieval(const Scenario& scenario, const RetrievalRequest& request,
                                          CalibrationModel* model) {
  const LlmSpec& llm = model->llm();
  const std::string& name = scenario.values.policies().retrieval();
  const RetrievalTraits traits = retrieval_traits(name);
  if (traits.reads_everything() || traits.kind == RetrievalKind::kRecallsTokens) {
    return make_error(scenario.where("policies.retrieval"),
                      fmt::format("retrieval {} chooses no pages", name),
                      "a retrieval that chooses pages (kvtwin list policies)");
  }
  const RetrievalSpec spec = retrieval_spec(scenario.values, llm);
  const uint32_t page_tokens = scenario.values.memory().page_tokens();
  if (const auto problem = check_retrieval_spec(spec, traits, page_tokens))
    return make_error(scenario.where("policies.retrieval_options"), *problem, {});
  RetrievalPass retrieving(spec, page_tokens, llm);
  model->each({request.steps, false}, [&](size_t index, cpu::CapturedPass* pass) {
    const TraceContext& context = model->contexts()[index];
    const auto rows = static_cast<uint32_t>(std::min<size_t>(context.output.size(), request.steps));
    pass->extend(std::span(context.output).first(rows));
    retrieving.add(*pass, static_cast<uint32_t>(context.prompt.size()), rows);
  });
  RecallProfile out;
  out.name = fmt::format("{}-{}", name, llm.name);
  out.model = llm.name, out.method = name;
  out.source = fmt::format("kvtwin calibrate policy retrieval, scenario {}, seed {}", scenario.values.name(),
                           scenario.values.seed());
  out.layers = llm.layers, out.kv_heads = llm.kv_heads;
  out.page_tokens = page_tokens, out.selectable_pages = selectable_pages(spec, page_tokens);
  retrieving.fill(&out);
  if (out.steps == 0)
    return make_error(
        scenario.where("policies.retrieval_options.budget_tokens"),
        fmt::format("no context has two steps with more than {} pages to choose from", out.selectable_pages),
        fmt::format("prompts above {} tokens (--context-max), or a smaller budget", spec.budget_tokens));
  return out;
}

std::string recall_table(const RecallProfile& p) {
  std::string out = fmt::format("{}: {} pages of {} tokens chosen; {} steps of {} contexts\n\n", p.name,
                                p.selectable_pages, p.page_tokens, p.steps, p.contexts);
  const auto add = std::back_inserter(out);
  fmt::format_to(add, "  {:<8} {:>11} {:>11} {:>12} {:>12} {:>12} {:>10}\n", "layer", "similarity",
                 "deviation", "tau 0.5", "tau 0.8", "tau 0.9", "misses");
  const auto line = [&](const std::string& layer, const std::vector<double>& row) {
    fmt::format_to(add, "  {:<8} {:>11.4f} {:>11.4f} {:>10.1f} % {:>10.1f} % {:>10.1f} % {:>8.1f} %\n", layer,
                   row[0], row[1], 100 * row[2], 100 * row[3], 100 * row[4], 100 * row[5]);
  };
  std::vector<double> mean(6);
  for (uint32_t l = 0; l < p.layers; ++l) {
    std::vector<double> row = {
        0, 0, p.corrections(l, 0.5), p.corrections(l, 0.8), p.corrections(l, 0.9), p.miss_rate[l]};
    for (uint32_t h = 0; h < p.kv_heads; ++h) {
      row[0] += p.similarity[uint64_t{l} * p.kv_heads + h] / p.kv_heads;
      row[1] += p.similarity_deviation[uint64_t{l} * p.kv_heads + h] / p.kv_heads;
    }
    for (size_t i = 0; i < row.size(); ++i) mean[i] += row[i] / p.layers;
    line(fmt::to_string(l), row);
  }
  line("mean", mean);
  return out;
}

}  // namespace kvtwin
