#include "tests/unit/cpu_retrieval/retrieval_oracle.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "engine/methods/traits.h"
#include "kernels/attention/attention.h"
#include "kernels/common/small_floats.h"
#include "kernels/packed/packed_page.h"
#include "kernels/quant/pack.h"
#include "kernels/select/page_score.h"
#include "kernels/select/page_summary.h"

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
      selectable_(selectable_pages(setting.spec, page_)),
      extra_(setting.spec.extra_tokens / page_) {}

void RetrievalOracle::rotated(RequestId request, uint32_t layer, uint32_t position, const float* q,
                              const float* k, const float* v) {
  Rows& rows = rows_[{request, layer}];
  const uint32_t width = llm_.query_heads * llm_.head_dim, kv_width = llm_.kv_heads * llm_.head_dim;
  // A preempted request starts again.
  for (auto* all : {&rows.q, &rows.k, &rows.v}) all->resize(position);
  rows.q.emplace_back(q, q + width);
  rows.k.emplace_back(k, k + kv_width);
  rows.v.emplace_back(v, v + kv_width);
  store(&rows.k.back(), &rows.v.back());
}

// Packed pages give back other values than were stored.
void RetrievalOracle::store(std::vector<float>* k, std::vector<float>* v) const {
  const Format format = precision_traits(setting_.precision).prompt_format;
  if (format == Format::kBf16) return;
  for (std::vector<float>* x : {k, v}) {
    for (float& number : *x) number = kernels::from_bf16(kernels::to_bf16(number));
  }
  const PageShape shape{1, llm_.head_dim, 32};
  std::vector<uint8_t> page(page_bytes(format, shape));
  for (uint32_t h = 0; h < llm_.kv_heads; ++h) {
    const std::span<float> key(k->data() + h * llm_.head_dim, llm_.head_dim),
        value(v->data() + h * llm_.head_dim, llm_.head_dim);
    kernels::pack_kv_entry(format, shape, 0, key, value, page);
    const kernels::PackedRun packed = kernels::page_run(format, shape, page, 1);
    kernels::unpack_side(packed.k, true, 1, shape, key);
    kernels::unpack_side(packed.v, false, 1, shape, value);
  }
}

std::vector<float> RetrievalOracle::page_keys(const Key& key, uint32_t head, uint32_t page) const {
  const Rows& rows = rows_.at(key);
  std::vector<float> keys;
  for (uint32_t t = page * page_; t < (page + 1) * page_; ++t) {
    const auto from = rows.k[t].begin() + head * llm_.head_dim;
    keys.insert(keys.end(), from, from + llm_.head_dim);
  }
  return keys;
}

// Sel(q of `position`, pages full then): the best pages, by sorting all of them.
std::set<uint32_t> RetrievalOracle::selection(const Key& key, uint32_t head, uint32_t position) const {
  const Rows& rows = rows_.at(key);
  const uint32_t dim = llm_.head_dim, group = llm_.query_heads / llm_.kv_heads;
  const uint32_t pages = (position + page_) / page_;
  const auto stay = outliers_.find({std::get<0>(key), std::get<1>(key), head});
  std::vector<std::vector<float>> summaries;
  std::vector<kernels::PageVectors> vectors;
  std::vector<uint32_t> candidates;
  for (uint32_t p = sinks_; p < pages - window_; ++p) {
    if (stay != outliers_.end() && stay->second.contains(p)) continue;
    candidates.push_back(p);
    const std::vector<float> keys = page_keys(key, head, p);
    summaries.emplace_back(2 * dim);
    kernels::summarise_page_ref(kind_of(setting_.spec.summary), keys.data(), page_, dim,
                                summaries.back().data(), summaries.back().data() + dim);
  }
  for (const auto& one : summaries) vectors.push_back({one.data(), one.data() + dim});
  std::vector<float> scores(vectors.size());
  const float scale =
      setting_.spec.scale == ScoreScale::kOne ? 1.0f : 1.0f / std::sqrt(static_cast<float>(dim));
  // The enumerators have the same order.
  kernels::score_pages_ref(static_cast<kernels::PagePooling>(setting_.spec.pooling), scale,
                           rows.q[position].data() + head * group * dim, group, dim, vectors, scores.data());
  std::vector<std::pair<float, uint32_t>> order;
  for (uint32_t i = 0; i < scores.size(); ++i) order.emplace_back(scores[i], candidates[i]);
  std::sort(order.rbegin(), order.rend());
  std::set<uint32_t> out;
  for (uint32_t i = 0; i < std::min<size_t>(selectable_, order.size()); ++i) out.insert(order[i].second);
  return out;
}

// True if the query differs from the one before; nullopt: too close to tau for two ways of rounding.
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

// ShadowKV's outliers, computed in double once, when the prompt is complete or the request outgrows its
// resident pages.
void RetrievalOracle::note_outliers(const Key& key, uint32_t head, uint32_t position) {
  const uint32_t slots = resident_pages(setting_.spec, page_);
  const uint32_t end = position == slots * page_ ? slots - window_ : (position + page_ - 1) / page_ - window_;
  std::vector<std::pair<double, uint32_t>> order;
  for (uint32_t p = sinks_; p < end; ++p) {
    const std::vector<float> keys = page_keys(key, head, p);
    const uint32_t dim = llm_.head_dim;
    std::vector<double> mean(dim);
    for (size_t i = 0; i < keys.size(); ++i) mean[i % dim] += static_cast<double>(keys[i]) / page_;
    double least = 1;
    for (uint32_t t = 0; t < page_; ++t) {
      double km = 0, kk = 0, mm = 0;
      for (uint32_t i = 0; i < dim; ++i) {
        const auto k = static_cast<double>(keys[t * dim + i]);
        km += k * mean[i], kk += k * k, mm += mean[i] * mean[i];
      }
      least = std::min(least, km / std::sqrt(kk * mm));
    }
    order.emplace_back(-least, p);
  }
  std::sort(order.rbegin(), order.rend());
  std::set<uint32_t>& out = outliers_[{std::get<0>(key), std::get<1>(key), head}];
  out.clear();
  for (uint32_t i = 0; i < extra_; ++i) out.insert(order[i].second);
}

void RetrievalOracle::attends(const Read& read) {
  reads_began(read);
  ++reads;
  corrected += read.corrected;
  std::vector<uint32_t>& positions = positions_[{read.at.request, read.at.layer, read.at.head}];
  if (!positions.empty() && positions.back() >= read.at.position) positions.clear();
  const bool first = positions.empty();
  positions.push_back(read.at.position);
  CHECK(std::is_sorted(read.positions.begin(), read.positions.end()));
  CHECK(std::adjacent_find(read.positions.begin(), read.positions.end()) == read.positions.end());
  CHECK(read.positions.back() == read.at.position);
  if (setting_.retrieval == "infinigen") {
    check_tokens(read);
    return;
  }
  check_pages(read, first);
}

void RetrievalOracle::projected(RequestId request, uint32_t layer, uint32_t position, const float* q) {
  projected_[{request, layer, position}].assign(q, q + llm_.query_heads * llm_.head_dim);
}

// InfiniGen with all columns: the number of tokens is the mean count of those within 5 of each query head's
// largest product, and the tokens are those of the largest mean product. In double, except for near ties.
void RetrievalOracle::check_tokens(const Read& read) {
  CHECK(read.positions.size() <= tokens_read(setting_.spec, page_, read.at.position + 1));
  const Rows& rows = rows_.at({read.at.request, read.at.layer});
  const std::vector<float>& q = projected_.at({read.at.request, read.at.layer, read.at.position});
  const uint32_t dim = llm_.head_dim, group = llm_.query_heads / llm_.kv_heads;
  const uint32_t first = sinks_ * page_, end = ((read.at.position + page_) / page_ - window_) * page_;
  std::vector<double> pooled(end - first);
  uint32_t near = 0, unsure = 0;
  for (uint32_t j = 0; j < llm_.query_heads; ++j) {
    std::vector<double> own(end - first);
    for (uint32_t t = first; t < end; ++t) {
      for (uint32_t i = 0; i < dim; ++i) {
        own[t - first] += static_cast<double>(q[j * dim + i]) *
                          static_cast<double>(rows.k[t][j / group * dim + i]) / std::sqrt(dim);
      }
      if (j / group == read.at.head) pooled[t - first] += own[t - first] / group;
    }
    const double bar = *std::max_element(own.begin(), own.end()) - 5;
    for (const double s : own) near += s > bar, unsure += std::abs(s - bar) < 1e-4;
  }
  std::set<uint32_t> chosen;
  for (const uint32_t t : read.positions) {
    if (t >= first && t < end) chosen.insert(t);
  }
  const auto at_most = [&](uint32_t count) {
    return std::clamp(count / llm_.query_heads, 1u, selectable_ * page_);
  };
  CHECK(chosen.size() >= at_most(near - std::min(near, unsure)));
  CHECK(chosen.size() <= at_most(near + unsure));
  double least = INFINITY, most_left = -INFINITY;
  for (uint32_t t = first; t < end; ++t) {
    double& bar = chosen.contains(t) ? least : most_left;
    bar = chosen.contains(t) ? std::min(bar, pooled[t - first]) : std::max(bar, pooled[t - first]);
  }
  CHECK(least >= most_left - 1e-4);
  ++compared;
}

// The pages that every head reads, and those that docs/design/methods/freekv.md#step selects for this head.
void RetrievalOracle::check_pages(const Read& read, bool first) {
  const Key key{read.at.request, read.at.layer};
  const uint32_t head = read.at.head, position = read.at.position, pages = (position + page_) / page_;
  CHECK(read.positions.size() == tokens_read(setting_.spec, page_, position + 1));
  std::set<uint32_t> chosen;
  for (const uint32_t p : read.positions) chosen.insert(p / page_);
  for (uint32_t p = 0; p < sinks_; ++p) CHECK(chosen.erase(p) == 1);
  for (uint32_t p = pages - window_; p < pages; ++p) CHECK(chosen.erase(p) == 1);
  if (extra_ > 0) {
    if (first) note_outliers(key, head, position);
    for (const uint32_t p : outliers_.at({read.at.request, read.at.layer, head})) CHECK(chosen.erase(p) == 1);
  }
  bool ahead = false;
  if (setting_.spec.speculation && setting_.retrieval == "freekv" && !first) {
    const std::optional<bool> turned = turns(key, head, position);
    ahead = !turned.value_or(read.corrected);
    CHECK(read.corrected == !ahead);
  }
  ++compared;
  speculated += ahead ? 1 : 0;
  CHECK(chosen == selection(key, head, position - (ahead ? 1 : 0)));
}

// Attention over the rotated rows of the pages that were read, in sequence.
std::vector<float> RetrievalOracle::exact_output(const Read& read) const {
  const Rows& rows = rows_.at({read.at.request, read.at.layer});
  const uint32_t dim = llm_.head_dim, group = llm_.query_heads / llm_.kv_heads;
  std::vector<float> keys, values;
  for (const uint32_t t : read.positions) {
    const auto k = rows.k[t].begin() + read.at.head * dim, v = rows.v[t].begin() + read.at.head * dim;
    keys.insert(keys.end(), k, k + dim);
    values.insert(values.end(), v, v + dim);
  }
  const auto kv_entries = static_cast<uint32_t>(keys.size() / dim);
  const kernels::KvPages pages{keys.data(), values.data(), keys.size(), kv_entries, 1, dim};
  const kernels::ReadRun run{0, 0, kv_entries};
  const kernels::AttentionRow row{{&run, 1}, kv_entries};
  std::vector<float> out(size_t{group} * dim);
  kernels::attention_ref(pages, {0, 1}, group, 1.0f / std::sqrt(static_cast<float>(dim)),
                         rows.q[read.at.position].data() + read.at.head * group * dim, {&row, 1}, out.data(),
                         nullptr);
  return out;
}

// F-4: pages have the contents that they had on the GPU.
void RetrievalOracle::attended(const Read& read, const float* out) {
  reading_ = nullptr;
  const std::vector<float> expected = exact_output(read);
  for (size_t i = 0; i < expected.size(); ++i) {
    const double off = std::abs(static_cast<double>(out[i]) - static_cast<double>(expected[i]));
    worst_output = std::max(worst_output, std::isfinite(off) ? off : INFINITY);
  }
}

void RetrievalOracle::recalls(const cpu::HeadAt& at, bool before_attention, uint32_t pages) {
  auto& [before, behind] = recalled_[{at.request, at.layer, at.head}][at.position];
  (before_attention ? before : behind) += pages;
}

void RetrievalOracle::wrote(uint32_t page, uint32_t layer, uint32_t head) {
  if (reading_ == nullptr) return;
  ++writes_during_reads;
  if (reading_->at.layer != layer || reading_->at.head != head) return;
  for (const kernels::ReadRun& run : reading_->runs) writes_into_reads += run.page == page;
}

void RetrievalOracle::check_recalls() const {
  uint64_t checked = 0;
  for (const auto& [where, by_position] : recalled_) {
    const auto& [request, layer, head] = where;
    const Key key{request, layer};
    for (const auto& [position, counts] : by_position) {
      // Other rules apply before the first step that selects.
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
