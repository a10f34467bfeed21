// The capability table: which choices cannot be combined, where, and why. One row for each reason; every
// check of a combination, in the policy, in the engines and in the scenarios, reads these rows, and so does
// `kvtwin list combinations`.
//
// A row is a condition on traits of two or three axes, the backends that it holds for, its verdict, the
// sentence that explains it, and a remedy. Rows are tried in order, and the first that applies is reported.
// What depends on numbers (page sizes, budgets, the model's shape) is checked by those who know the numbers.

#ifndef KVTWIN_ENGINE_METHODS_COMBINATIONS_H_
#define KVTWIN_ENGINE_METHODS_COMBINATIONS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "engine/methods/axes.h"
#include "engine/methods/config.h"
#include "engine/methods/scorer_traits.h"
#include "engine/methods/traits.h"

namespace kvtwin {

enum class Computes : uint8_t { kSim, kCpu, kCuda };  // backends, as far as combinations differ among them
inline constexpr Computes kAllComputes[] = {Computes::kSim, Computes::kCpu, Computes::kCuda};

enum class Support : uint8_t {
  kWorks,
  kNotBuilt,  // could be built
  kRefused,   // on principle: the choices contradict one another
};

// The fields that a row speaks of, as scenarios name them.
enum class Choice : uint8_t {
  kAbsent,
  kScorer,
  kBudget,
  kLayout,
  kPrecision,
  kPlacement,
  kRetrieval,
  kPartition,
  kIdentity,
  kPrefixCache,
  kPreemption,
  kPageOrder,
  kDisk,
};
std::string_view name_of(Choice choice);  // "scorer", ..., "prefix_cache"

// What rows look at.
struct Combination {
  ScorerTraits scorer;
  CompressionTrigger trigger = CompressionTrigger::kAtNoTime;
  Causality causality = Causality::kPrefixClosed;
  BudgetTraits budget;
  LayoutTraits layout;
  PrecisionTraits precision;
  PlacementTraits placement;
  RetrievalTraits retrieval;
  PartitionKind partition = PartitionKind::kUniform;
  IdentityTraits identity;
  bool requantises = false, bits_by_age = false;
  bool prefix_cache = true, swaps = false, oldest_first = false, has_disk = false;

  bool ring() const { return layout.slot_retention == SlotRetention::kRing; }
  bool in_place() const { return layout.slot_retention == SlotRetention::kInPlace; }
  bool moves() const { return layout.slot_retention == SlotRetention::kMove; }
  // KV entries are ranked and dropped; rings drop by position.
  bool ranks() const { return !budget.keeps_all && !ring(); }
  // KV entries are dropped, or stored elsewhere than by position.
  bool drops() const { return !budget.keeps_all || layout.slot_retention != SlotRetention::kAll; }
  bool chooses() const { return !retrieval.reads_everything(); }
  // Engines store the KV entries of each head in a list of their own.
  bool entry_lists() const {
    return drops() || (chooses() && precision.packed() && !retrieval.needs_resident());
  }
};

struct Choices {
  Choice first;  // an error is reported there
  Choice second = Choice::kAbsent, third = Choice::kAbsent;
};

struct CombinationRow {
  uint8_t computes;  // bits 1 << Computes
  Support verdict;
  Choices of;
  bool (*applies)(const Combination& all);
  std::string_view why;  // {scorer}, {budget}, ...: the chosen names
  std::string_view remedy;
};
std::span<const CombinationRow> combination_rows();

Combination combination_of(const PolicyAxes& axes, const PolicySet& set, const CoreConfig& config);

// Whether the row speaks of this backend.
bool holds_for(const CombinationRow& row, Computes where);
// The first row that applies; nullptr: the combination works.
const CombinationRow* find_problem(const Combination& all, Computes where);
// "why; remedy", with the names of `set`.
std::string sentence(const CombinationRow& row, const PolicySet& set, const CoreConfig& config);

// Returns one sentence that explains why the choices cannot be combined, and a remedy; nullopt: they can.
std::optional<std::string> cannot_combine(const CoreConfig& config, Computes where);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_COMBINATIONS_H_
