// All budgets. A budget whose counts follow from lengths has numbers per head group; one whose counts the
// backend determines has none.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/methods/axis_factories.h"
#include "engine/methods/budget_groups.h"

namespace kvtwin {
namespace {

class All final : public Budget {
 public:
  bool keeps_all() const override { return true; }
  bool known_at_admission() const override { return true; }
  bool reserves() const override { return false; }
  uint32_t quota(uint32_t, uint32_t ranked) const override { return ranked; }
};

// Retains a fraction of the `ranked` KV entries, up to a limit; both by group.
class FixedBudget final : public Budget {
 public:
  FixedBudget(std::vector<Fraction> fractions, std::vector<uint32_t> limits, bool up, bool reserves)
      : fractions_(std::move(fractions)), limits_(std::move(limits)), up_(up), reserves_(reserves) {}
  bool keeps_all() const override { return false; }
  bool known_at_admission() const override { return true; }
  bool reserves() const override { return reserves_; }
  uint32_t quota(uint32_t group, uint32_t ranked) const override {
    const uint64_t part = up_ ? part_up(fractions_[group], ranked) : part_down(fractions_[group], ranked);
    return static_cast<uint32_t>(std::min<uint64_t>(part, limits_[group]));
  }

 private:
  const std::vector<Fraction> fractions_;
  const std::vector<uint32_t> limits_;
  const bool up_, reserves_;
};

// The backend ranks across heads and reports how many KV entries each group retains
// (docs/design/methods/tangram.md#levels, #released-chunks).
class Dynamic final : public Budget {
 public:
  bool keeps_all() const override { return false; }
  bool known_at_admission() const override { return false; }
  bool reserves() const override { return false; }
  uint32_t quota(uint32_t, uint32_t ranked) const override { return ranked; }
};

}  // namespace

std::unique_ptr<Budget> make_budget(const PolicySet& set) {
  constexpr uint32_t kNoLimit = UINT32_MAX;
  const BudgetSpec& spec = set.budget_spec;
  const GroupMap map = make_groups(set);
  std::vector<Fraction> fractions(map.groups(), kWhole);
  std::vector<uint32_t> limits(map.groups(), kNoLimit);
  if (set.budget == "all") return std::make_unique<All>();
  if (set.budget == "ratio") {
    fractions.assign(map.groups(), spec.ratio);
    return std::make_unique<FixedBudget>(std::move(fractions), std::move(limits), false, false);
  }
  if (set.budget == "uniform") {
    limits.assign(map.groups(), ranked_entries(spec));
    return std::make_unique<FixedBudget>(std::move(fractions), std::move(limits), false, false);
  }
  if (set.budget == "pyramid") {
    const std::vector<Fraction> of_groups = map.largest(clustering_budgets(set));
    std::transform(of_groups.begin(), of_groups.end(), limits.begin(),
                   [](Fraction kv_entries) { return static_cast<uint32_t>(kv_entries); });
    return std::make_unique<FixedBudget>(std::move(fractions), std::move(limits), false, false);
  }
  if (set.budget == "reserved" || set.budget == "head_masks") {
    const bool reserved = set.budget == "reserved";
    return std::make_unique<FixedBudget>(map.largest(clustering_budgets(set)), std::move(limits), true,
                                         reserved);
  }
  return std::make_unique<Dynamic>();
}

}  // namespace kvtwin
