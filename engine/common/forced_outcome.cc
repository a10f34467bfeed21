#include "engine/common/forced_outcome.h"

#include <algorithm>

#include "engine/base/check.h"

namespace kvtwin::cpu {
namespace {

using kernels::HeadRecall;

// The i-th of n integer parts of `total`, which differ by at most one.
uint32_t part(uint64_t total, uint64_t i, uint64_t n) {
  return static_cast<uint32_t>((i + 1) * total / n - i * total / n);
}

// The number of corrected heads of each row, and the pages that heads can recall before and after attention.
struct HeadAllotment {
  bool all = false;  // all rows count as trusting
  std::vector<uint32_t> turned;
  uint64_t before = 0, behind = 0;

  bool may(const ForcedRow& row) const { return all || row.trusts; }
  // Pages of the sums that cannot be placed, if heads before attention can recall `room` pages.
  uint64_t lacking(const LayerRecall& given, uint64_t room) const {
    const uint64_t rest = before + behind - room;
    return (given.blocking > room ? given.blocking - room : 0) +
           (given.background > rest ? given.background - rest : 0);
  }
};

// Distributes corrected heads evenly over the eligible rows, at most kv_heads each.
HeadAllotment spread(uint64_t corrected, bool all, std::span<const ForcedRow> rows, uint32_t kv_heads) {
  HeadAllotment out;
  out.all = all;
  out.turned.assign(rows.size(), 0);
  uint64_t may = 0, i = 0;
  for (const ForcedRow& row : rows) may += out.may(row) ? 1 : 0;
  corrected = std::min(corrected, may * kv_heads);
  for (size_t r = 0; r < rows.size(); ++r) {
    if (out.may(rows[r])) out.turned[r] = part(corrected, i++, may);
    const uint32_t before = out.may(rows[r]) ? out.turned[r] : kv_heads;
    out.before += uint64_t{before} * rows[r].most;
    out.behind += uint64_t{kv_heads - before} * rows[r].most;
  }
  return out;
}

// Moves corrected heads between rows that can recall different numbers of pages, while that reduces the pages
// that cannot be placed. Returns the number that remains.
uint64_t make_room(const LayerRecall& given, std::span<const ForcedRow> rows, uint32_t kv_heads,
                   HeadAllotment* dealt) {
  uint64_t left = dealt->lacking(given, dealt->before);
  while (left > 0) {
    uint64_t best = left;
    size_t from = 0, to = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      for (size_t s = 0; s < rows.size(); ++s) {
        if (dealt->turned[r] == 0 || dealt->turned[s] == kv_heads || !dealt->may(rows[s])) continue;
        const uint64_t then = dealt->lacking(given, dealt->before - rows[r].most + rows[s].most);
        if (then < best) best = then, from = r, to = s;
      }
    }
    if (best == left) return left;
    --dealt->turned[from], ++dealt->turned[to];
    dealt->before = dealt->before - rows[from].most + rows[to].most;
    dealt->behind = dealt->behind + rows[from].most - rows[to].most;
    left = best;
  }
  return 0;
}

// Uses the rows' own trust; if the sums do not fit, all rows count as trusting.
HeadAllotment deal(const LayerRecall& given, std::span<const ForcedRow> rows, uint32_t kv_heads) {
  uint64_t trusting = 0;
  for (const ForcedRow& row : rows) trusting += row.trusts ? kv_heads : 0;
  HeadAllotment own = spread(given.corrected, false, rows, kv_heads);
  const uint64_t lacks = make_room(given, rows, kv_heads, &own);
  if (lacks == 0 && given.corrected <= trusting) return own;
  HeadAllotment all = spread(given.corrected, true, rows, kv_heads);
  return make_room(given, rows, kv_heads, &all) < lacks || given.corrected > trusting ? all : own;
}

// Divides `pages` evenly among the heads that recall before attention, or among the others.
void pour(uint64_t pages, bool before, std::span<const ForcedRow> rows, uint32_t kv_heads,
          std::span<HeadRecall> out) {
  const auto heads = static_cast<uint64_t>(std::count_if(
      out.begin(), out.end(), [&](const HeadRecall& head) { return (head.before != 0) == before; }));
  if (heads == 0) return;
  uint64_t left = 0;  // pages that earlier heads could not take
  for (uint32_t pass = 0; pass < 2; ++pass) {
    uint64_t i = 0;
    for (size_t u = 0; u < out.size(); ++u) {
      if ((out[u].before != 0) != before) continue;
      const uint64_t fraction = left + (pass == 0 ? part(pages, i++, heads) : 0);
      const uint64_t taken = std::min<uint64_t>(fraction, rows[u / kv_heads].most - out[u].missing);
      out[u].missing += static_cast<uint32_t>(taken);
      left = fraction - taken;
    }
  }
}

}  // namespace

void deal_recall(const LayerRecall& given, std::span<const ForcedRow> rows, uint32_t kv_heads, bool follows,
                 std::span<HeadRecall> out) {
  KVT_CHECK(out.size() == rows.size() * kv_heads);
  std::fill(out.begin(), out.end(), HeadRecall{0, 1, 0});
  const HeadAllotment dealt = follows ? deal(given, rows, kv_heads) : HeadAllotment{};
  for (size_t u = 0; u < out.size() && follows; ++u) {
    const size_t row = u / kv_heads;
    if (!dealt.may(rows[row])) continue;
    const bool turned = part(dealt.turned[row], u % kv_heads, kv_heads) > 0;
    out[u].before = out[u].turned = turned ? 1 : 0;
  }
  pour(given.blocking, true, rows, kv_heads, out);
  pour(given.background, false, rows, kv_heads, out);
}

std::vector<uint32_t> forced_outcome_rows(std::span<const uint64_t> live, std::span<const uint32_t> positions,
                                          std::span<const uint32_t> forced, size_t count) {
  std::vector<uint32_t> out;
  size_t next = 0;
  for (uint32_t row = 0; row < positions.size(); ++row) {
    const bool stays = next < forced.size() && forced[next] == row;
    next += stays ? 1 : 0;
    const uint32_t word = positions[row] / 64;
    if (stays || (word < live.size() && (live[word] >> positions[row] % 64 & 1) != 0)) out.push_back(row);
  }
  return out.size() == count ? out : std::vector<uint32_t>();
}

}  // namespace kvtwin::cpu
