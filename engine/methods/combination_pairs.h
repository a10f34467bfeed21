// What the capability table (combinations.h) says of two policies: whether any choice of the other axes makes
// them work together. For the documentation, and for tests.

#ifndef KVTWIN_ENGINE_METHODS_COMBINATION_PAIRS_H_
#define KVTWIN_ENGINE_METHODS_COMBINATION_PAIRS_H_

#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "engine/methods/combinations.h"

namespace kvtwin {

// The axes that pairs are made of, in the registry's order.
inline constexpr std::array kPairAxes = {Choice::kScorer,    Choice::kBudget,    Choice::kLayout,
                                         Choice::kPrecision, Choice::kPlacement, Choice::kRetrieval,
                                         Choice::kPartition, Choice::kIdentity};

struct PairVerdict {
  Support verdict = Support::kWorks;
  // kWorks: choices of all axes that work together. Otherwise choices that the fewest rows forbid.
  PolicySet set;
  bool prefix_cache = false;
  // A row that forbids every choice of the other axes, if there is one.
  const CombinationRow* reason = nullptr;
};

// Searches over all other axes, every trigger of the scorers, and with and without a prefix cache.
class CombinationPairs {
 public:
  CombinationPairs();
  std::vector<std::string> names(Choice axis) const;
  // REQUIRES: two axes of kPairAxes, and known names.
  PairVerdict verdict(Choice a, std::string_view of_a, Choice b, std::string_view of_b, Computes where) const;

 private:
  struct Option {
    std::string name;
    ScorerSpec scorer_spec;
    CompressionTrigger trigger{};
    Causality causality{};
    bool repeats = false;  // has the traits of an option before it
  };
  struct Search;
  static constexpr size_t kAxes = kPairAxes.size();

  void add_scorer(const std::string& name);
  static void choose(Choice axis, const Option& option, PolicySet* set, Combination* all);
  void search(size_t axis, Search* search) const;

  std::array<std::vector<Option>, kAxes> options_;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_COMBINATION_PAIRS_H_
