// Page summaries, page scores, slots and the host's layouts compared with the formulas of
// docs/design/methods/freekv.md in double.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "kernels/cache_ops/host_page.h"
#include "kernels/select/page_score.h"
#include "kernels/select/page_summary.h"
#include "kernels/select/select.h"
#include "tests/unit/kernels/floats.h"
#include "tests/unit/kernels/random_rows.h"

using namespace kvtwin;
using namespace kvtwin::kernels;
using namespace kvtwin::testing;

namespace {

struct Pages {
  uint32_t count = 0, tokens = 0, dim = 0;
  std::vector<float> keys;       // [count][tokens][dim]
  std::vector<float> summaries;  // [count][2][dim]

  std::vector<PageVectors> vectors() const {
    std::vector<PageVectors> out;
    for (uint32_t p = 0; p < count; ++p) {
      const float* const high = summaries.data() + size_t{p} * 2 * dim;
      out.push_back({high, high + dim});
    }
    return out;
  }
};

Pages make_pages(uint64_t seed, SummaryKind kind, uint32_t count, uint32_t tokens, uint32_t dim) {
  Pages out{count, tokens, dim, random_rows(seed, size_t{count} * tokens * dim), {}};
  out.summaries.resize(size_t{count} * 2 * dim);
  for (uint32_t p = 0; p < count; ++p) {
    float* const high = out.summaries.data() + size_t{p} * 2 * dim;
    summarise_page_ref(kind, out.keys.data() + size_t{p} * tokens * dim, tokens, dim, high, high + dim);
  }
  return out;
}

double product(const float* a, const float* b, uint32_t dim) {
  double sum = 0;
  for (uint32_t i = 0; i < dim; ++i) sum += static_cast<double>(a[i]) * static_cast<double>(b[i]);
  return sum;
}

double largest_product(const Pages& pages, uint32_t page, const float* q) {
  double most = -INFINITY;
  for (uint32_t t = 0; t < pages.tokens; ++t) {
    const float* const key = pages.keys.data() + (size_t{page} * pages.tokens + t) * pages.dim;
    most = std::max(most, product(q, key, pages.dim));
  }
  return most;
}

double bound(const PageVectors& page, const std::vector<double>& q) {
  double sum = 0;
  for (size_t i = 0; i < q.size(); ++i) {
    sum += std::max(q[i] * static_cast<double>(page.high[i]), q[i] * static_cast<double>(page.low[i]));
  }
  return sum;
}

// docs/design/methods/freekv.md#page-scores in double.
std::vector<double> pooled(PagePooling pooling, double scale, const std::vector<float>& q, uint32_t group,
                           const Pages& pages) {
  std::vector<std::vector<double>> queries(group);
  for (uint32_t g = 0; g < group; ++g)
    queries[g].assign(q.begin() + g * pages.dim, q.begin() + (g + 1) * pages.dim);
  const bool most =
      pooling == PagePooling::kMaxQ || pooling == PagePooling::kMaxQk || pooling == PagePooling::kMaxS;
  const auto join = [&](const std::vector<std::vector<double>>& rows) {
    std::vector<double> out = rows[0];
    for (size_t g = 1; g < rows.size(); ++g) {
      for (size_t i = 0; i < out.size(); ++i)
        out[i] = most ? std::max(out[i], rows[g][i]) : out[i] + rows[g][i];
    }
    for (double& x : out) x /= most ? 1.0 : static_cast<double>(rows.size());
    return out;
  };
  if (pooling == PagePooling::kMaxQ || pooling == PagePooling::kMeanQ) queries = {join(queries)};
  std::vector<std::vector<double>> scores;
  for (const auto& query : queries) {
    std::vector<double>& own = scores.emplace_back();
    for (const PageVectors& page : pages.vectors()) own.push_back(bound(page, query));
    if (pooling != PagePooling::kMaxS && pooling != PagePooling::kMeanS) continue;
    double sum = 0;
    const double top = scale * *std::max_element(own.begin(), own.end());
    for (double& u : own) sum += u = std::exp(scale * u - top);
    for (double& u : own) u /= sum;
  }
  return join(scores);
}

}  // namespace

TEST_CASE("F-1 page score: min-max bounds every product of the page, the cuboid does not") {
  uint32_t cuboid_below = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    for (const uint32_t dim : {16u, 40u, 64u}) {
      const std::vector<float> q = random_rows(seed + 100, dim);
      for (const SummaryKind kind : {SummaryKind::kMinMax, SummaryKind::kCuboid}) {
        const Pages pages = make_pages(seed, kind, 9, 16, dim);
        std::vector<float> scores(9);
        score_pages_ref(PagePooling::kMaxQk, 1, q.data(), 1, dim, pages.vectors(), scores.data());
        for (uint32_t p = 0; p < 9; ++p) {
          const double most = largest_product(pages, p, q.data());
          const bool holds = static_cast<double>(scores[p]) >= most - 1e-5 * (1 + std::abs(most));
          if (kind == SummaryKind::kMinMax) CHECK(holds);
          cuboid_below += kind == SummaryKind::kCuboid && !holds;
        }
      }
    }
  }
  CHECK(cuboid_below > 0);  // as docs/design/methods/freekv.md#page-scores warns
}

TEST_CASE("page summary: of one token it is the token, for every kind; the mean is the mean") {
  const std::vector<float> key = random_rows(3, 24);
  for (const SummaryKind kind : {SummaryKind::kMinMax, SummaryKind::kCuboid, SummaryKind::kMean}) {
    std::vector<float> high(24), low(24);
    summarise_page_ref(kind, key.data(), 1, 24, high.data(), low.data());
    CHECK(high == key);
    CHECK(low == key);
  }
  const Pages pages = make_pages(5, SummaryKind::kMean, 1, 32, 24);
  for (uint32_t i = 0; i < 24; ++i) {
    double sum = 0;
    for (uint32_t t = 0; t < 32; ++t) sum += static_cast<double>(pages.keys[t * 24 + i]);
    CHECK(static_cast<double>(pages.summaries[i]) == doctest::Approx(sum / 32).epsilon(1e-5));
    CHECK(pages.summaries[i] == pages.summaries[24 + i]);
  }
  const Pages cuboid = make_pages(5, SummaryKind::kCuboid, 1, 32, 24);
  const Pages box = make_pages(5, SummaryKind::kMinMax, 1, 32, 24);
  for (uint32_t i = 0; i < 24; ++i) {
    const double center =
        (static_cast<double>(box.summaries[i]) + static_cast<double>(box.summaries[24 + i])) / 2;
    double radius = 0;
    for (uint32_t t = 0; t < 32; ++t)
      radius += std::abs(center - static_cast<double>(box.keys[t * 24 + i])) / 32;
    CHECK(static_cast<double>(cuboid.summaries[i]) == doctest::Approx(center + radius).epsilon(1e-5));
    CHECK(static_cast<double>(cuboid.summaries[24 + i]) == doctest::Approx(center - radius).epsilon(1e-5));
  }
}

TEST_CASE("page score: six poolings and two scales equal their formulas") {
  constexpr PagePooling kAll[] = {PagePooling::kMeanS, PagePooling::kMaxS,  PagePooling::kMeanQk,
                                  PagePooling::kMaxQk, PagePooling::kMeanQ, PagePooling::kMaxQ};
  for (const uint32_t group : {1u, 4u, 8u}) {
    for (const uint32_t dim : {16u, 20u, 64u}) {
      const std::vector<float> q = random_rows(group * 7 + dim, size_t{group} * dim);
      const Pages pages = make_pages(dim, SummaryKind::kMinMax, 33, 16, dim);
      std::set<std::vector<float>> different;
      for (const PagePooling pooling : kAll) {
        for (const float scale : {1.0f, 1.0f / std::sqrt(static_cast<float>(dim))}) {
          std::vector<float> scores(33);
          score_pages_ref(pooling, scale, q.data(), group, dim, pages.vectors(), scores.data());
          CHECK(distance(scores, pooled(pooling, static_cast<double>(scale), q, group, pages)) < 1e-4);
          different.insert(scores);
        }
      }
      // Scales matter only before a softmax; a single query head leaves nothing to pool.
      CHECK(different.size() == (group == 1 ? 3 : 8));
    }
  }
}

TEST_CASE("page score: the similarity of queries is in [-1, 1], to the bit") {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    const std::vector<float> q = random_rows(seed, 4 * 64), other = random_rows(seed + 1000, 4 * 64);
    std::vector<float> minus = q;
    for (float& x : minus) x = -x;
    CHECK(group_cosine_ref(q.data(), q.data(), 4, 64) <= 1.0f);
    CHECK(group_cosine_ref(q.data(), q.data(), 4, 64) > 0.99999f);
    CHECK(group_cosine_ref(q.data(), minus.data(), 4, 64) >= -1.0f);
    double sum = 0;
    for (uint32_t g = 0; g < 4; ++g) {
      const float *a = q.data() + g * 64, *b = other.data() + g * 64;
      sum += product(a, b, 64) / std::sqrt(product(a, a, 64) * product(b, b, 64)) / 4;
    }
    CHECK(static_cast<double>(group_cosine_ref(q.data(), other.data(), 4, 64)) ==
          doctest::Approx(sum).epsilon(1e-4));
  }
  const std::vector<float> none(64, 0.0f);
  CHECK(group_cosine_ref(none.data(), none.data(), 1, 64) == 0.0f);
}

TEST_CASE(
    "F-3 slots: pages that are selected and absent are fetched, and those with the lowest scores are "
    "dropped") {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    Prng prng(seed);
    const auto pages = static_cast<uint32_t>(prng.range(6, 40)),
               first = static_cast<uint32_t>(prng.range(0, 3));
    const auto count = static_cast<uint32_t>(prng.range(1, pages / 2));
    const auto size = count + static_cast<uint32_t>(prng.range(0, 2));
    const std::vector<float> scores = random_rows(seed, pages);
    std::vector<uint32_t> all(pages);
    std::iota(all.begin(), all.end(), first);
    for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[prng.range(0, i - 1)]);
    std::vector<uint32_t> slots(all.begin(), all.begin() + std::min(size, pages));
    for (size_t i = all.size(); i > 1; --i) std::swap(all[i - 1], all[prng.range(0, i - 1)]);
    std::vector<uint32_t> chosen(all.begin(), all.begin() + count);
    std::sort(chosen.begin(), chosen.end());
    const std::set<uint32_t> before(slots.begin(), slots.end());
    const auto changes = replace_slots_ref(chosen, scores, first, slots);
    const std::set<uint32_t> after(slots.begin(), slots.end());
    std::vector<uint32_t> missing;
    for (const uint32_t page : chosen) {
      CHECK(after.contains(page));
      if (!before.contains(page)) missing.push_back(page);
    }
    CHECK(changes.size() == missing.size());
    if (slots.size() == chosen.size()) CHECK(std::vector<uint32_t>(after.begin(), after.end()) == chosen);
    // No retained page outside the selection scores below a dropped one.
    for (const uint32_t dropped : before) {
      if (after.contains(dropped)) continue;
      for (const uint32_t stays : after) {
        if (std::binary_search(chosen.begin(), chosen.end(), stays)) continue;
        CHECK(scores[stays - first] >= scores[dropped - first]);
      }
    }
  }
}

TEST_CASE("forced misses: the forced number of pages is fetched, the best absent ones replacing the worst") {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    CAPTURE(seed);
    Prng prng(seed);
    const auto count = static_cast<uint32_t>(prng.range(1, 12)),
               first = static_cast<uint32_t>(prng.range(0, 3));
    const auto pages = count + static_cast<uint32_t>(prng.range(0, 20));
    const auto missing = static_cast<uint32_t>(prng.range(0, std::min(count, pages - count)));
    const std::vector<float> natural = random_rows(seed, pages);
    std::vector<uint32_t> slots(pages);
    std::iota(slots.begin(), slots.end(), first);
    for (size_t i = slots.size(); i > 1; --i) std::swap(slots[i - 1], slots[prng.range(0, i - 1)]);
    slots.resize(count);
    const std::set<uint32_t> before(slots.begin(), slots.end());
    std::vector<float> scores = natural;
    force_missing_ref(scores, first, slots, missing);
    std::vector<uint32_t> chosen = select_rows(scores, {}, count);
    for (uint32_t& page : chosen) page += first;
    CHECK(replace_slots_ref(chosen, scores, first, slots).size() == missing);
    // By their own scores: no dropped page beats a retained one, and no absent page beats a fetched one.
    const std::set<uint32_t> then(slots.begin(), slots.end());
    const auto score = [&](uint32_t page) { return natural[page - first]; };
    for (uint32_t page = first; page < first + pages; ++page) {
      for (uint32_t other = first; other < first + pages; ++other) {
        if (before.contains(page) != before.contains(other)) continue;
        if (then.contains(page) && !then.contains(other)) CHECK(score(page) >= score(other));
      }
    }
  }
  // A page without a score is dropped in any case.
  std::vector<float> scores = {3, 1, 2};
  std::vector<uint32_t> slots = {7, 0};
  force_missing_ref(scores, 0, slots, 0);
  CHECK(replace_slots_ref(std::vector<uint32_t>{0, 2}, scores, 0, slots).size() == 1);
}

TEST_CASE("F-4 host page: a round trip keeps the bits in both layouts; HND is one copy, NHD two per token") {
  constexpr uint32_t kTokens = 8, kHeads = 3, kDim = 20, kPages = 4;
  const size_t part = size_t{kPages} * kHeads * kTokens * kDim;
  std::vector<float> keys = random_rows(1, part), values = random_rows(2, part);
  const std::vector<float> keys_before = keys, values_before = values;
  const KvPages gpu{keys.data(), values.data(), size_t{kHeads} * kTokens * kDim, kTokens, kHeads, kDim};
  for (const HostPageLayout layout : {HostPageLayout::kHnd, HostPageLayout::kNhd}) {
    std::vector<float> host_copy(size_t{2} * kHeads * kTokens * kDim), staging(size_t{2} * kTokens * kDim);
    const HostPage host{host_copy.data(), layout, kTokens, kHeads, kDim};
    offload_page_ref(gpu, 2, host);
    CHECK(*host.at(1, 0, 3) == keys[gpu.at(2, 1, 3)]);
    CHECK(*host.at(2, 1, 7) == values[gpu.at(2, 2, 7)]);
    for (uint32_t h = 0; h < kHeads; ++h) {
      const uint32_t pieces = recall_head_ref(host, h, staging.data());
      CHECK(pieces == (layout == HostPageLayout::kHnd ? 1 : 2 * kTokens));
      std::fill_n(keys.data() + gpu.at(2, h, 0), kTokens * kDim, NAN);
      scatter_head_ref(staging.data(), h, 2, gpu);
    }
    CHECK(keys == keys_before);
    CHECK(values == values_before);
  }
}
