// The names that scenarios use for our own enums: one table per enum.

#ifndef KVTWIN_SCENARIOS_LOAD_NAMES_H_
#define KVTWIN_SCENARIOS_LOAD_NAMES_H_

#include <array>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/base/check.h"
#include "engine/methods/config.h"
#include "engine/router/router.h"
#include "kernels/grids/partition.h"
#include "models/catalog/memory_model.h"
#include "traces/importers/formats.h"
#include "traces/replay/replay_options.h"

namespace kvtwin {

template <typename T, size_t kCount>
struct NameTable {
  std::array<std::pair<std::string_view, T>, kCount> rows;

  // REQUIRES: `name` is one of names(), which check_scenario() verifies.
  T value(std::string_view name) const {
    for (const auto& [known, value] : rows) {
      if (known == name) return value;
    }
    KVT_CHECK(!"a name that check_scenario() lets pass");
    return rows[0].second;
  }
  // REQUIRES: the table has `value`.
  std::string_view name(T value) const {
    for (const auto& [known, of] : rows) {
      if (of == value) return known;
    }
    KVT_CHECK(!"a value without a name");
    return {};
  }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& row : rows) out.emplace_back(row.first);
    return out;
  }
};

inline constexpr NameTable<BatchOrder, 3> kBatchOrders{{{{"decode_first", BatchOrder::kDecodeFirst},
                                                         {"prefill_first", BatchOrder::kPrefillFirst},
                                                         {"mixed", BatchOrder::kMixed}}}};
inline constexpr NameTable<AdmissionKind, 3> kAdmissions{
    {{{"watermark", AdmissionKind::kWatermark},
      {"full_prompt", AdmissionKind::kFullPrompt},
      {"full_reservation", AdmissionKind::kFullReservation}}}};
inline constexpr NameTable<CapacityRule, 3> kCapacityRules{{{{"vllm", CapacityRule::kVllm},
                                                             {"vllm_0.20", CapacityRule::kVllmGraphs},
                                                             {"sglang", CapacityRule::kSglang}}}};
inline constexpr NameTable<PageOrder, 2> kPageOrders{
    {{{"lowest_first", PageOrder::kLowestFirst}, {"oldest_first", PageOrder::kOldestFirst}}}};
inline constexpr NameTable<RoutingKind, 5> kRoutings{{{{"round_robin", RoutingKind::kRoundRobin},
                                                       {"least_loaded", RoutingKind::kLeastLoaded},
                                                       {"session_affine", RoutingKind::kSessionAffine},
                                                       {"prefix_aware", RoutingKind::kPrefixAware},
                                                       {"hint_aware", RoutingKind::kHintAware}}}};
inline constexpr NameTable<Ageing, 3> kAgeings{
    {{{"ignore", Ageing::kIgnore}, {"forecast", Ageing::kForecast}, {"requantise", Ageing::kRequantise}}}};
inline constexpr NameTable<AotWeight, 2> kAotWeights{
    {{{"group_max", AotWeight::kGroupMax}, {"budget_sum", AotWeight::kBudgetSum}}}};
inline constexpr NameTable<ReplayMode, 4> kReplayModes{{{{"auto", ReplayMode::kAuto},
                                                         {"closed_loop", ReplayMode::kClosedLoop},
                                                         {"open_loop", ReplayMode::kOpenLoop},
                                                         {"guarded_open", ReplayMode::kGuardedOpen}}}};
inline constexpr NameTable<ArrivalMode, 4> kArrivalModes{
    {{{"recorded", ArrivalMode::kRecorded},
      {"poisson", ArrivalMode::kPoisson},
      {"fixed_population", ArrivalMode::kFixedPopulation},
      {"all_at_once", ArrivalMode::kAllAtOnce}}}};
inline constexpr NameTable<RejectPolicy, 3> kRejectPolicies{{{{"fail_session", RejectPolicy::kFailSession},
                                                              {"skip_request", RejectPolicy::kSkipRequest},
                                                              {"retry", RejectPolicy::kRetry}}}};
inline constexpr NameTable<Clustering, 3> kClusterings{{{{"adjacent", Clustering::kAdjacent},
                                                         {"per_layer", Clustering::kPerLayer},
                                                         {"across_layers", Clustering::kAcrossLayers}}}};
inline constexpr NameTable<PrefixSharing, 3> kSharings{{{{"none", PrefixSharing::kNone},
                                                         {"equal_prefix", PrefixSharing::kEqualPrefix},
                                                         {"all", PrefixSharing::kAll}}}};

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_LOAD_NAMES_H_
