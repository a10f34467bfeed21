#include "scenarios/evaluate/paired.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace kvtwin {
namespace {

// P(X <= k) of a binomial with n trials of probability 1/2.
double binomial_tail(uint64_t k, uint64_t n) {
  const auto log_choose = [&](uint64_t i) {
    return std::lgamma(static_cast<double>(n + 1)) - std::lgamma(static_cast<double>(i + 1)) -
           std::lgamma(static_cast<double>(n - i + 1));
  };
  double sum = 0;
  for (uint64_t i = 0; i <= k; ++i) sum += std::exp(log_choose(i) - static_cast<double>(n) * std::log(2.0));
  return sum;
}

bool comparable(const QualityRow& base, const QualityRow& row) {
  return row.policy != base.policy && row.refused.empty() && row.task == base.task &&
         row.model == base.model && row.asked == base.asked && !row.answers.marks.empty() &&
         row.answers.marks.size() == base.answers.marks.size() &&
         (base.budget == 0 || row.budget == base.budget);
}

}  // namespace

Paired paired(const std::string& base, const std::string& other) {
  Paired out;
  for (size_t i = 0; i < base.size(); ++i) {
    out.gained += other[i] == '1' && base[i] == '0';
    out.lost += other[i] == '0' && base[i] == '1';
  }
  const uint64_t differ = out.gained + out.lost;
  if (differ > 0) out.p = std::min(1.0, 2 * binomial_tail(std::min(out.gained, out.lost), differ));
  return out;
}

Result<std::string> paired_table(const std::vector<QualityRow>& rows, const std::string& base) {
  std::string out = fmt::format("\npaired with {}:\n  {:<18} {:>6} {:<18} {:>7} {:>6} {:>9}\n", base,
                                "policy set", "budget", "task", "gained", "lost", "p");
  bool found = false;
  for (const QualityRow& from : rows) {
    if (from.policy != base || !from.refused.empty() || from.answers.marks.empty()) continue;
    found = true;
    for (const QualityRow& row : rows) {
      if (!comparable(from, row)) continue;
      const Paired of = paired(from.answers.marks, row.answers.marks);
      fmt::format_to(std::back_inserter(out), "  {:<18} {:>6} {:<18} {:>7} {:>6} {:>9.2g}\n", row.policy,
                     row.budget == 0 ? "-" : fmt::format("{}", row.budget), row.task, of.gained, of.lost,
                     of.p);
    }
  }
  if (found) return out;
  return make_error("--paired", fmt::format("no row of \"{}\" has answers by question", base.substr(0, 40)),
                    "the name of an evaluated policy set; results of earlier versions have totals only");
}

}  // namespace kvtwin
