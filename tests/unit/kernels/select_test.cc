#include "kernels/select/select.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <tuple>

#include "engine/base/prng.h"

using namespace kvtwin;
using namespace kvtwin::kernels;

namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Few distinct scores, so that ties are frequent; some are NaN and -inf.
std::vector<float> tied_scores(Prng* prng, size_t count) {
  std::vector<float> out(count);
  for (float& score : out) {
    const uint64_t kind = prng->range(0, 19);
    score = kind == 0 ? kNan : kind == 1 ? -kInf : static_cast<float>(prng->range(0, 6)) - 3.0f;
  }
  return out;
}

RowSet random_rows(Prng* prng, uint32_t rows) {
  RowSet out;
  for (uint32_t i = 0; i < rows; ++i) {
    if (prng->chance(1, 5)) out.push_back(i);
  }
  return out;
}

// True if KV entry a ranks above KV entry b by docs/design/methods/conventions.md#selection.
bool better(float a, uint32_t position_a, uint32_t head_a, float b, uint32_t position_b, uint32_t head_b) {
  if (std::isnan(a)) a = -kInf;
  if (std::isnan(b)) b = -kInf;
  if (a != b) return a > b;
  if (position_a != position_b) return position_a > position_b;
  return head_a < head_b;
}

// Retains one row at a time, always the best of the rest.
RowSet one_by_one(const std::vector<float>& scores, const RowSet& forced, uint32_t k) {
  std::vector<bool> retained(scores.size(), false);
  for (const uint32_t row : forced) retained[row] = true;
  for (uint32_t n = 0; n < k; ++n) {
    int best = -1;
    for (uint32_t i = 0; i < scores.size(); ++i) {
      if (retained[i]) continue;
      if (best < 0 ||
          better(scores[i], i, 0, scores[static_cast<size_t>(best)], static_cast<uint32_t>(best), 0)) {
        best = static_cast<int>(i);
      }
    }
    if (best < 0) break;
    retained[static_cast<size_t>(best)] = true;
  }
  RowSet out;
  for (uint32_t i = 0; i < scores.size(); ++i) {
    if (retained[i]) out.push_back(i);
  }
  return out;
}

struct KvEntry {
  float score;
  uint32_t position, head;
};

// Counts by head of the best `kv_entries` KV entries, by sorting all of them.
std::vector<uint32_t> sorted_counts(const std::vector<float>& scores, uint32_t heads, uint32_t rows,
                                    uint64_t kv_entries) {
  std::vector<KvEntry> all;
  for (uint32_t h = 0; h < heads; ++h) {
    for (uint32_t i = 0; i < rows; ++i) all.push_back({scores[h * rows + i], i, h});
  }
  std::sort(all.begin(), all.end(), [](const KvEntry& a, const KvEntry& b) {
    return better(a.score, a.position, a.head, b.score, b.position, b.head);
  });
  std::vector<uint32_t> counts(heads, 0);
  for (uint64_t n = 0; n < std::min<uint64_t>(kv_entries, all.size()); ++n) ++counts[all[n].head];
  return counts;
}

uint64_t sum(const std::vector<uint32_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

}  // namespace

TEST_CASE(
    "G-1 the retained set ascends, has no duplicates, includes the forced rows, and has exactly min(N, F + "
    "k) rows") {
  Prng prng(1);
  for (int round = 0; round < 400; ++round) {
    const uint32_t rows = static_cast<uint32_t>(prng.range(0, 40));
    const std::vector<float> scores = tied_scores(&prng, rows);
    const RowSet forced = random_rows(&prng, rows);
    const uint32_t k = static_cast<uint32_t>(prng.range(0, 45));
    const RowSet retained = select_rows(scores, forced, k);
    CAPTURE(round);
    CHECK(retained.size() == std::min<size_t>(rows, forced.size() + k));
    CHECK(std::adjacent_find(retained.begin(), retained.end(), std::greater_equal<>()) == retained.end());
    CHECK((retained.empty() || retained.back() < rows));
    CHECK(std::includes(retained.begin(), retained.end(), forced.begin(), forced.end()));
    CHECK(retained == one_by_one(scores, forced, k));
  }
}

TEST_CASE("G-4 a constant added to all scores of a head does not change the retained set") {
  Prng prng(2);
  for (int round = 0; round < 100; ++round) {
    std::vector<float> scores = tied_scores(&prng, 60);
    const RowSet forced = random_rows(&prng, 60);
    const RowSet before = select_rows(scores, forced, 17);
    const float constant = static_cast<float>(prng.range(0, 64)) - 32.0f;  // exact in fp32
    for (float& score : scores) score += constant;
    CHECK(select_rows(scores, forced, 17) == before);
  }
}

TEST_CASE("select: ties go to the larger position, NaN ranks with -inf and is counted") {
  uint64_t nan = 0;
  CHECK(select_rows(std::vector<float>{1, 1, 1, 1}, {}, 2) == RowSet{2, 3});
  CHECK(select_rows(std::vector<float>{kNan, -5, kNan, -kInf}, {}, 1, &nan) == RowSet{1});
  CHECK(nan == 2);
  CHECK(select_rows(std::vector<float>{kNan, -5, kNan, -kInf}, {}, 2) == RowSet{1, 3});
  CHECK(select_rows(std::vector<float>{kInf, 2, 3}, {}, 1) == RowSet{0});
  nan = 0;
  const RowSet forced{0};
  CHECK(select_rows(std::vector<float>{kNan, 1, 2}, forced, 1, &nan) == RowSet{0, 2});
  CHECK(nan == 0);  // forced KV entries are not ranked
  CHECK(order_key(-1.0f, 5) < order_key(-0.5f, 0));
  CHECK(order_key(-0.5f, 9) < order_key(0.25f, 0));
}

TEST_CASE("select: sinks and window overlap without duplicates") {
  CHECK(sink_and_window(10, 2, 3) == RowSet{0, 1, 7, 8, 9});
  CHECK(sink_and_window(4, 3, 3) == RowSet{0, 1, 2, 3});
  CHECK(sink_and_window(2, 4, 0) == RowSet{0, 1});
  CHECK(sink_and_window(0, 4, 4) == RowSet{});
  CHECK(sink_and_window(3, 0, 9) == RowSet{0, 1, 2});
}

TEST_CASE("select: flattened counts equal those of sorting all KV entries, and sum exactly") {
  Prng prng(3);
  for (int round = 0; round < 200; ++round) {
    const uint32_t heads = static_cast<uint32_t>(prng.range(1, 6)),
                   rows = static_cast<uint32_t>(prng.range(1, 12));
    std::vector<float> scores = tied_scores(&prng, size_t{heads} * rows);
    const Ranked ranked{packed_scores(scores, heads, rows), {rows, {}}};
    const uint64_t kv_entries = prng.range(0, size_t{heads} * rows + 3);
    const std::vector<uint32_t> counts = count_flattened(ranked, kv_entries);
    CHECK(counts == sorted_counts(scores, heads, rows, kv_entries));
    CHECK(sum(counts) == std::min<uint64_t>(kv_entries, size_t{heads} * rows));
  }
}

TEST_CASE("select: of equal KV entries at one position the one of the smaller head is retained") {
  std::vector<float> scores(8, 1.0f);  // 4 heads, 2 rows
  const Ranked ranked{packed_scores(scores, 4, 2), {2, {}}};
  CHECK(count_flattened(ranked, 3) == std::vector<uint32_t>{1, 1, 1, 0});
  CHECK(count_flattened(ranked, 5) == std::vector<uint32_t>{2, 1, 1, 1});
  // Where heads hold different positions, the position decides before the head.
  const std::vector<uint32_t> positions{0, 9, 0, 5, 1, 7, 2, 8};
  const Ranked own{packed_scores(scores, 4, 2), {2, positions}};
  CHECK(count_flattened(own, 3) == std::vector<uint32_t>{1, 0, 1, 1});
}

TEST_CASE("select: a cluster counts the KV entries by its members' largest scores") {
  Prng prng(4);
  for (int round = 0; round < 200; ++round) {
    const uint32_t heads = 6, rows = 9, clusters = 3;
    const std::vector<uint32_t> cluster_of{0, 1, 2, 0, 1, 2};
    std::vector<float> scores = tied_scores(&prng, size_t{heads} * rows);
    std::vector<float> joined(size_t{clusters} * rows, -kInf);
    for (uint32_t h = 0; h < heads; ++h) {
      for (uint32_t i = 0; i < rows; ++i) {
        float& best = joined[cluster_of[h] * rows + i];
        if (scores[h * rows + i] > best) best = scores[h * rows + i];
      }
    }
    const uint64_t kv_entries = prng.range(0, 30);
    const std::vector<uint32_t> counts =
        count_clustered({packed_scores(scores, heads, rows), {rows, {}}}, cluster_of, clusters, kv_entries);
    CHECK(counts == sorted_counts(joined, clusters, rows, kv_entries));
  }
}

TEST_CASE("select: AdaKV retains each head's safe part and sums exactly to heads * k") {
  Prng prng(6);
  for (int round = 0; round < 200; ++round) {
    const uint32_t heads = static_cast<uint32_t>(prng.range(1, 5)),
                   rows = static_cast<uint32_t>(prng.range(1, 15));
    const uint32_t k = static_cast<uint32_t>(prng.range(0, 16)),
                   safe = static_cast<uint32_t>(prng.range(0, 16));
    std::vector<float> scores = tied_scores(&prng, size_t{heads} * rows);
    const std::vector<uint32_t> counts =
        count_adakv({packed_scores(scores, heads, rows), {rows, {}}}, k, safe);
    const uint32_t keep = std::min(k, rows), own = std::min(safe, keep);
    CHECK(sum(counts) == uint64_t{heads} * keep);
    // Equivalent: the safe rows of a head score above every other row.
    std::vector<float> marked = scores;
    for (uint32_t h = 0; h < heads; ++h) {
      const std::vector<float> row(scores.begin() + h * rows, scores.begin() + (h + 1) * rows);
      for (const uint32_t i : select_rows(row, {}, own)) marked[h * rows + i] = kInf;
    }
    CHECK(counts == sorted_counts(marked, heads, rows, uint64_t{heads} * keep));
    for (const uint32_t count : counts) CHECK(count >= own);
  }
}
