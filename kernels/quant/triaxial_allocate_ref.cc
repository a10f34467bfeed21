#include <algorithm>
#include <vector>

#include "engine/base/check.h"
#include "kernels/quant/triaxial_allocate.h"

namespace kvtwin::kernels {
namespace {

struct Upgrade {
  uint32_t tag = 0;
  uint64_t cost = 0;  // bits
  double gain = 0;
};

struct Problem {
  std::vector<Upgrade> upgrades;  // descending gain per bit, ties by tag
  uint64_t capacity = 0;          // bits above 2 per value
};

Problem problem_of(const TagTable& table, uint32_t bits_milli) {
  KVT_CHECK(bits_milli >= 2000 && bits_milli <= 4000);
  Problem problem;
  uint64_t count = 0;
  for (uint32_t tag = 0; tag < kTagCodes; ++tag) {
    const TagTable::Entry& entry = table.tags[tag];
    count += entry.count;
    if (entry.count == 0 || entry.two_bits <= entry.four_bits) continue;
    problem.upgrades.push_back({tag, 2 * entry.count, entry.two_bits - entry.four_bits});
  }
  problem.capacity = count * (bits_milli - 2000) / 1000;
  std::stable_sort(problem.upgrades.begin(), problem.upgrades.end(), [](const Upgrade& a, const Upgrade& b) {
    return a.gain * static_cast<double>(b.cost) > b.gain * static_cast<double>(a.cost);
  });
  return problem;
}

TagBits bits_from(const TagTable& table, uint64_t upgraded) {
  TagBits out;
  for (uint32_t tag = 0; tag < kTagCodes; ++tag) {
    const TagTable::Entry& entry = table.tags[tag];
    const bool four = entry.count == 0 || ((upgraded >> tag) & 1) != 0;
    if (four) out.four_bit_tags |= uint64_t{1} << tag;
    if (entry.count > 0) out.loss += four ? entry.four_bits : entry.two_bits;
  }
  return out;
}

uint64_t greedy(const Problem& problem) {
  uint64_t taken = 0, left = problem.capacity;
  for (const Upgrade& upgrade : problem.upgrades) {
    if (upgrade.cost > left) continue;
    left -= upgrade.cost;
    taken |= uint64_t{1} << upgrade.tag;
  }
  return taken;
}

// Depth-first search that tries taking before leaving, so that among equal optima the first one is returned.
class Search {
 public:
  explicit Search(const Problem& problem) : problem_(problem), best_(greedy(problem)) {
    for (const Upgrade& upgrade : problem.upgrades) {
      if ((best_ >> upgrade.tag) & 1) best_gain_ += upgrade.gain;
    }
  }
  uint64_t run() {
    visit(0, problem_.capacity, 0, 0);
    return best_;
  }

 private:
  // Upper bound of the remaining gain: that of divisible upgrades, slightly raised so that rounding cannot
  // cut off the optimum.
  double bound(size_t at, uint64_t left) const {
    double gain = 0;
    for (; at < problem_.upgrades.size(); ++at) {
      const Upgrade& upgrade = problem_.upgrades[at];
      if (upgrade.cost > left)
        return gain + upgrade.gain * static_cast<double>(left) / static_cast<double>(upgrade.cost);
      left -= upgrade.cost;
      gain += upgrade.gain;
    }
    return gain;
  }
  void visit(size_t at, uint64_t left, double gain, uint64_t taken) {
    if (gain > best_gain_) {
      best_gain_ = gain;
      best_ = taken;
    }
    if (at == problem_.upgrades.size() || gain + bound(at, left) * (1 + 1e-12) <= best_gain_) return;
    const Upgrade& upgrade = problem_.upgrades[at];
    if (upgrade.cost <= left)
      visit(at + 1, left - upgrade.cost, gain + upgrade.gain, taken | uint64_t{1} << upgrade.tag);
    visit(at + 1, left, gain, taken);
  }

  const Problem& problem_;
  uint64_t best_;
  double best_gain_ = 0;
};

}  // namespace

TagBits allocate_exact(const TagTable& table, uint32_t bits_milli) {
  const Problem problem = problem_of(table, bits_milli);
  return bits_from(table, Search(problem).run());
}

TagBits allocate_greedy(const TagTable& table, uint32_t bits_milli) {
  return bits_from(table, greedy(problem_of(table, bits_milli)));
}

}  // namespace kvtwin::kernels
