#include "tests/cpu/retrieval_oracle.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "kernels/attention.h"
#include "kernels/page_score.h"
#include "kernels/page_summary.h"

namespace kvtwin::testing {
namespace {

kernels::SummaryKind kind_of(PageSummary summary) {
  return summary == PageSummary::kMinMax   ? kernels::SummaryKind::kMinMax
         : summary == PageSummary::kCuboid ? kernels::SummaryKind::kCuboid
                                           : kernels::SummaryKind::kMean;
}

}  // namespace

RetrievalOracle::RetrievalOracle(const RetrievalSetting& setting, const LlmSpec& llm)
    : setting_(setting),
      llm_(llm),
      page_(setting.page_tokens),
      sinks_(setting.spec.sink_tokens / page_),
      window_(setting.spec.window_tokens / page_),
      selectable_(selectable_pages(setting.spec, page_)) {}

void RetrievalOracle::rotated(CallId call, uint32_t layer, uint32_t position, const float* q, const float* k,
                              const float* v) {
  Rows& rows = rows_[{call, layer}];
  const uint32_t width = llm_.query_heads * llm_.head_dim, kv_width = llm_.kv_heads * llm_.head_dim;
  // A preempted call comes back and starts anew.
  for (auto* all : {&rows.q, &rows.k, &rows.v}) all->resize(position);
  rows.q.emplace_back(q, q + width);
  rows.k.emplace_back(k, k + kv_width);
  rows.v.emplace_back(v, v + kv_width);
}

// Sel(q of `position`, pages full then): the best pages, by sorting all of them.
std::set<uint32_t> RetrievalOracle::selection(const Key& key, uint32_t head, uint32_t position) const {
  const Rows& rows = rows_.at(key);
  const uint32_t dim = llm_.head_dim, group = llm_.query_heads / llm_.kv_heads;
  const uint32_t pages = (position + page_) / page_;
  std::vector<std::vector<float>> summaries;
  std::vector<kernels::PageVectors> vectors;
  for (uint32_t p = sinks_; p < pages - window_; ++p) {
    std::vector<float> keys;
    for (uint32_t t = p * page_; t < (p + 1) * page_; ++t) {
      const auto from = rows.k[t].begin() + head * dim;
      keys.insert(keys.end(), from, from + dim);
    }
    summaries.emplace_back(2 * dim);
    kernels::summarise_page_ref(kind_of(setting_.spec.summary), keys.data(), page_, dim,
                                summaries.back().data(), summaries.back().data() + dim);
  }
  for (const auto& one : summaries) vectors.push_back({one.data(), one.data() + dim});
  std::vector<float> scores(vectors.size());
  const float scale =
      setting_.spec.scale == ScoreScale::kOne ? 1.0f : 1.0f / std::sqrt(static_cast<float>(dim));
  // The enumerators are in one order.
  kernels::score_pages_ref(static_cast<kernels::PagePooling>(setting_.spec.pooling), scale,
                           rows.q[position].data() + head * group * dim, group, dim, vectors, scores.data());
  std::vector<std::pair<float, uint32_t>> order;
  for (uint32_t i = 0; i < scores.size(); ++i) order.emplace_back(scores[i], sinks_ + i);
  std::sort(order.rbegin(), order.rend());
  std::set<uint32_t> out;
  for (uint32_t i = 0; i < std::min<size_t>(selectable_, order.size()); ++i) out.insert(order[i].second);
  return out;
}

// Is the query unlike the one before? nullopt: too close to tau for two ways of rounding.
std::optional<bool> RetrievalOracle::turns(const Key& key, uint32_t head, uint32_t position) const {
  const Rows& rows = rows_.at(key);
  const uint32_t dim = llm_.head_dim, group = llm_.query_heads / llm_.kv_heads;
  double mean = 0;
  for (uint32_t g = 0; g < group; ++g) {
    double ab = 0, aa = 0, bb = 0;
    for (uint32_t i = (head * group + g) * dim; i < (head * group + g + 1) * dim; ++i) {
      const auto a = static_cast<double>(rows.q[position][i]),
                 b = static_cast<double>(rows.q[position - 1][i]);
      ab += a * b, aa += a * a, bb += b * b;
    }
    mean += ab / std::sqrt(aa * bb) / group;
  }
  const double tau = static_cast<double>(setting_.spec.tau_q32) / static_cast<double>(kOneQ32);
  if (std::abs(mean - tau) < 1e-5) return std::nullopt;
  return mean < tau;
}

void RetrievalOracle::attends(const Read& read) {
  reading_ = &read;
  ++reads;
  corrected += read.corrected;
  const Key key{read.at.call, read.at.layer};
  std::vector<uint32_t>& positions = positions_[{read.at.call, read.at.layer, read.at.head}];
  if (!positions.empty() && positions.back() >= read.at.position) positions.clear();
  const bool first = positions.empty();
  positions.push_back(read.at.position);
  const uint32_t pages = (read.at.position + page_) / page_;
  CHECK(read.cells == tokens_read(setting_.spec, page_, read.at.position + 1));
  CHECK(std::is_sorted(read.pages.begin(), read.pages.end()));
  // What everybody reads, and nothing twice.
  std::set<uint32_t> chosen(read.pages.begin(), read.pages.end());
  CHECK(chosen.size() == read.pages.size());
  for (uint32_t p = 0; p < sinks_; ++p) CHECK(chosen.erase(p) == 1);
  for (uint32_t p = pages - window_; p < pages; ++p) CHECK(chosen.erase(p) == 1);
  if (setting_.spec.extra_tokens > 0) return;
  bool ahead = false;
  if (setting_.spec.speculation && setting_.retrieval == "freekv" && !first) {
    const std::optional<bool> turned = turns(key, read.at.head, read.at.position);
    ahead = !turned.value_or(read.corrected);
    CHECK(read.corrected == !ahead);
  }
  ++compared;
  speculated += ahead ? 1 : 0;
  CHECK(chosen == selection(key, read.at.head, read.at.position - (ahead ? 1 : 0)));
}

// Attention over the rotated rows of the pages that were read, laid out one after another.
std::vector<float> RetrievalOracle::exact_output(const Read& read) const {
  const Rows& rows = rows_.at({read.at.call, read.at.layer});
  const uint32_t dim = llm_.head_dim, group = llm_.query_heads / llm_.kv_heads;
  std::vector<float> keys, values;
  for (const uint32_t page : read.pages) {
    for (uint32_t t = page * page_; t < (page + 1) * page_ && t <= read.at.position; ++t) {
      const auto k = rows.k[t].begin() + read.at.head * dim, v = rows.v[t].begin() + read.at.head * dim;
      keys.insert(keys.end(), k, k + dim);
      values.insert(values.end(), v, v + dim);
    }
  }
  const auto cells = static_cast<uint32_t>(keys.size() / dim);
  CHECK(cells == read.cells);
  const kernels::KvPages pages{keys.data(), values.data(), keys.size(), cells, 1, dim};
  const kernels::ReadRun run{0, 0, cells};
  const kernels::AttentionRow row{{&run, 1}, cells};
  std::vector<float> out(size_t{group} * dim);
  kernels::attention_ref(pages, {0, 1}, group, 1.0f / std::sqrt(static_cast<float>(dim)),
                         rows.q[read.at.position].data() + read.at.head * group * dim, {&row, 1}, out.data(),
                         nullptr);
  return out;
}

void RetrievalOracle::attended(const Read& read, const float* out) {
  reading_ = nullptr;
  if (!exact_keys) return;
  const std::vector<float> expected = exact_output(read);
  CHECK(std::equal(expected.begin(), expected.end(), out));  // F-4: pages hold what they held on the gpu
}

void RetrievalOracle::recalls(const cpu::HeadAt& at, bool before_attention, uint32_t pages) {
  auto& [before, behind] = recalled_[{at.call, at.layer, at.head}][at.position];
  (before_attention ? before : behind) += pages;
}

// nothing is copied into a page while somebody reads it.
void RetrievalOracle::wrote(uint32_t page, uint32_t layer, uint32_t head) {
  if (reading_ == nullptr) return;
  ++writes_beside_reads;
  if (reading_->at.layer != layer || reading_->at.head != head) return;
  for (const kernels::ReadRun& run : reading_->runs) CHECK(run.page != page);
}

void RetrievalOracle::check_recalls() const {
  uint64_t checked = 0;
  for (const auto& [where, by_position] : recalled_) {
    const auto& [call, layer, head] = where;
    const Key key{call, layer};
    for (const auto& [position, counts] : by_position) {
      // Before the first step that chooses, other rules say what is there.
      if (position == 0 || !by_position.contains(position - 1)) continue;
      const std::set<uint32_t> had = selection(key, head, position - 1), has = selection(key, head, position);
      uint32_t missing = 0;
      for (const uint32_t page : has) missing += !had.contains(page);
      CHECK(counts.first + counts.second == missing);
      CHECK((counts.first == 0 || counts.second == 0));
      ++checked;
    }
  }
  CHECK(checked > 0);
}

}  // namespace kvtwin::testing
