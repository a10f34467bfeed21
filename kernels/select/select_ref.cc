#include <algorithm>
#include <numeric>

#include "engine/base/check.h"
#include "kernels/select/select.h"

namespace kvtwin::kernels {
namespace {

bool is_nan(float score) { return score != score; }

// Keeps the first `k` of `order` by `before`, in any order.
template <typename Before>
void keep_best(std::vector<uint32_t>* order, uint64_t k, Before before) {
  if (k >= order->size()) return;
  std::nth_element(order->begin(), order->begin() + static_cast<ptrdiff_t>(k), order->end(), before);
  order->resize(k);
}

}  // namespace

RowSet sink_and_window(uint32_t rows, uint32_t sink, uint32_t window) {
  const uint32_t head = std::min(sink, rows);
  const uint32_t tail = std::max(head, rows - std::min(window, rows));
  RowSet out(head + (rows - tail));
  std::iota(out.begin(), out.begin() + head, 0u);
  std::iota(out.begin() + head, out.end(), tail);
  return out;
}

RowSet select_rows(std::span<const float> scores, std::span<const uint32_t> forced, uint32_t k,
                   uint64_t* nan) {
  const uint32_t rows = static_cast<uint32_t>(scores.size());
  RowSet candidates;
  candidates.reserve(rows);
  size_t at = 0;
  for (uint32_t i = 0; i < rows; ++i) {
    if (at < forced.size() && forced[at] == i) {
      ++at;
      continue;
    }
    candidates.push_back(i);
    if (nan != nullptr && is_nan(scores[i])) ++*nan;
  }
  KVT_CHECK(at == forced.size());  // forced ascends, below the number of rows
  keep_best(&candidates, k,
            [&](uint32_t a, uint32_t b) { return order_key(scores[a], a) > order_key(scores[b], b); });
  candidates.insert(candidates.end(), forced.begin(), forced.end());
  std::sort(candidates.begin(), candidates.end());
  return candidates;
}

}  // namespace kvtwin::kernels
