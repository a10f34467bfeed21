// Counts by level: selection among the KV entries of several heads (select.h).

#include <algorithm>
#include <numeric>

#include "engine/base/check.h"
#include "kernels/select/select.h"

namespace kvtwin::kernels {
namespace {

struct KvEntry {
  uint64_t key;
  uint32_t head;  // l * H + h, or cluster
};

bool comes_first(const KvEntry& a, const KvEntry& b) {
  return a.key != b.key ? a.key > b.key : a.head < b.head;
}

// Adds to *counts, by head, the KV entries among the first `count` of all.
void count_first(std::vector<KvEntry>* kv_entries, uint64_t count, std::vector<uint32_t>* counts) {
  if (count < kv_entries->size()) {
    std::nth_element(kv_entries->begin(), kv_entries->begin() + static_cast<ptrdiff_t>(count),
                     kv_entries->end(), comes_first);
    kv_entries->resize(count);
  }
  for (const KvEntry& kv_entry : *kv_entries) ++(*counts)[kv_entry.head];
}

std::vector<KvEntry> all_entries(const Ranked& ranked, uint64_t* nan) {
  std::vector<KvEntry> kv_entries;
  kv_entries.reserve(size_t{ranked.scores.heads} * ranked.scores.rows);
  for (uint32_t h = 0; h < ranked.scores.heads; ++h) {
    const std::span<const float> row = ranked.scores.row(h);
    for (uint32_t i = 0; i < row.size(); ++i) {
      if (nan != nullptr && row[i] != row[i]) ++*nan;
      kv_entries.push_back({order_key(row[i], ranked.positions.at(h, i)), h});
    }
  }
  return kv_entries;
}

}  // namespace

std::vector<uint32_t> count_flattened(const Ranked& ranked, uint64_t kv_entries, uint64_t* nan) {
  std::vector<uint32_t> counts(ranked.scores.heads, 0);
  std::vector<KvEntry> all = all_entries(ranked, nan);
  count_first(&all, kv_entries, &counts);
  return counts;
}

std::vector<uint32_t> count_clustered(const Ranked& ranked, std::span<const uint32_t> cluster_of,
                                      uint32_t clusters, uint64_t kv_entries, uint64_t* nan) {
  KVT_CHECK(cluster_of.size() == ranked.scores.heads);
  const uint32_t rows = ranked.scores.rows;
  // The key includes the position, so the largest key is the largest score. Members of a cluster may have
  // different positions at a row; the position of the best member is then used.
  std::vector<KvEntry> best(size_t{clusters} * rows);
  for (uint32_t c = 0; c < clusters; ++c) {
    for (uint32_t i = 0; i < rows; ++i) best[size_t{c} * rows + i] = {0, c};
  }
  for (uint32_t h = 0; h < ranked.scores.heads; ++h) {
    KVT_CHECK(cluster_of[h] < clusters);
    const std::span<const float> row = ranked.scores.row(h);
    for (uint32_t i = 0; i < rows; ++i) {
      if (nan != nullptr && row[i] != row[i]) ++*nan;
      uint64_t& key = best[size_t{cluster_of[h]} * rows + i].key;
      key = std::max(key, order_key(row[i], ranked.positions.at(h, i)));
    }
  }
  std::vector<uint32_t> counts(clusters, 0);
  count_first(&best, kv_entries, &counts);
  return counts;
}

std::vector<uint32_t> count_adakv(const Ranked& ranked, uint32_t k, uint32_t safe, uint64_t* nan) {
  const uint32_t heads = ranked.scores.heads, rows = ranked.scores.rows;
  const uint32_t keep = std::min(k, rows), own = std::min(safe, keep);
  std::vector<uint32_t> counts(heads, own);
  std::vector<KvEntry> others;
  std::vector<uint64_t> keys(rows);
  for (uint32_t h = 0; h < heads; ++h) {
    const std::span<const float> row = ranked.scores.row(h);
    for (uint32_t i = 0; i < rows; ++i) {
      if (nan != nullptr && row[i] != row[i]) ++*nan;
      keys[i] = order_key(row[i], ranked.positions.at(h, i));
    }
    std::nth_element(keys.begin(), keys.begin() + own, keys.end(), std::greater<>());
    for (uint32_t i = own; i < rows; ++i) others.push_back({keys[i], h});
  }
  count_first(&others, uint64_t{heads} * (keep - own), &counts);
  return counts;
}

}  // namespace kvtwin::kernels
