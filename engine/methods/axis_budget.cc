// All budgets. A budget whose counts follow from lengths has numbers per head group; one whose counts the
// backend determines has none.

#include <algorithm>

#include "engine/base/check.h"
#include "engine/methods/axis_factories.h"
#include "engine/methods/axis_rows.h"
#include "engine/methods/budget_groups.h"

namespace kvtwin {
namespace {

struct BudgetRow {
  PolicyInfo info;
  BudgetTraits traits;
};

constexpr BudgetRow kBudgets[] = {
    {{"budget", "all", "A head group may retain every KV entry."}, {.keeps_all = true, .heads_even = true}},
    {{"budget", "ratio", "Every head keeps the same fraction of the entries that are ranked."},
     {.heads_even = true}},
    {{"budget", "uniform", "Every head keeps the same number of entries, whatever the length."},
     {.entries = true, .heads_even = true, .fixes_ring = true}},
    {{"budget", "pyramid",
      "Lower layers keep more entries than higher ones; their sum is layers times entries."},
     {.entries = true, .table = HeadTable::kLayers}},
    {{"budget", "reserved",
      "Each head retains the fraction that calibration found for it, mean plus alpha standard deviations; "
      "admission reserves the pages of the retained entries (TANGRAM)."},
     {.reserves = true, .table = HeadTable::kCalibrated}},
    {{"budget", "head_masks",
      "Some heads keep everything, the others sinks and window only (DuoAttention, RazorAttention)."},
     {.fixes_ring = true, .table = HeadTable::kMasks}},
    {{"budget", "ada",
      "A layer's heads share layers' worth of entries by their scores, with a floor each; counted by the "
      "backend (Ada-KV)."},
     {.entries = true, .counted_by = CountedBy::kLayerShares}},
    {{"budget", "top_per_layer",
      "The best fraction of a layer's entries stays, whichever heads they are of."},
     {.counted_by = CountedBy::kLayer}},
    {{"budget", "top_across_layers",
      "The best fraction of all layers' entries stays, whichever heads they are of."},
     {.counted_by = CountedBy::kAllLayers}},
    {{"budget", "released",
      "The dynamic chunk rule of TANGRAM's released code: counts by scores, rounded up to pages, pages given "
      "back after each chunk."},
     {.counted_by = CountedBy::kChunkRule}},
};

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
  const BudgetTraits traits = budget_traits(set.budget);
  if (traits.keeps_all) return std::make_unique<All>();
  if (!traits.known_at_admission()) return std::make_unique<Dynamic>();
  const BudgetSpec& spec = set.budget_spec;
  const GroupMap map = make_groups(set);
  std::vector<Fraction> fractions(map.groups(), traits.entries ? kWhole : spec.ratio);
  std::vector<uint32_t> limits(map.groups(), traits.entries ? ranked_entries(spec) : kNoLimit);
  const bool fractions_of_heads = traits.table != HeadTable::kNone && !traits.entries;
  if (fractions_of_heads) fractions = map.largest(clustering_budgets(set));
  if (traits.table == HeadTable::kLayers) {
    const std::vector<Fraction> of_groups = map.largest(clustering_budgets(set));
    std::transform(of_groups.begin(), of_groups.end(), limits.begin(),
                   [](Fraction kv_entries) { return static_cast<uint32_t>(kv_entries); });
  }
  return std::make_unique<FixedBudget>(std::move(fractions), std::move(limits), fractions_of_heads,
                                       traits.reserves);
}

void append_budgets(std::vector<PolicyInfo>* out) { append_rows(kBudgets, out); }
BudgetTraits budget_traits(std::string_view name) { return row_of(kBudgets, name).traits; }

}  // namespace kvtwin
