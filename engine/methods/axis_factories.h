// The factories that registry.cc uses, one per policy.

#ifndef KVTWIN_ENGINE_METHODS_AXIS_FACTORIES_H_
#define KVTWIN_ENGINE_METHODS_AXIS_FACTORIES_H_

#include <memory>
#include <span>
#include <string_view>

#include "engine/methods/axes.h"
#include "engine/methods/scorer_spec.h"

namespace kvtwin {

struct ScorerInfo {
  std::string_view name;
  std::string_view description;
};
// All scorers. The first, "none", ranks nothing.
std::span<const ScorerInfo> all_scorer_infos();
// REQUIRES: the name is known, and validate_scorer() returns nullopt.
std::unique_ptr<Scorer> make_scorer(std::string_view name, const ScorerSpec& spec);
std::unique_ptr<Budget> make_budget(const PolicySet& set);
std::unique_ptr<Layout> make_layout(const PolicySet& set);
// Returns nullptr if the name is unknown.
std::unique_ptr<Precision> make_precision(std::string_view name, const PrecisionSpec& spec);
std::unique_ptr<Placement> make_placement_gpu();
std::unique_ptr<Placement> make_placement_host();
std::unique_ptr<Placement> make_placement_resident();
std::unique_ptr<Retrieval> make_retrieval_all();
std::unique_ptr<Retrieval> make_retrieval_quest();
std::unique_ptr<Retrieval> make_retrieval_arkvale();
std::unique_ptr<Retrieval> make_retrieval_shadowkv();
std::unique_ptr<Retrieval> make_retrieval_infinigen();
std::unique_ptr<Retrieval> make_retrieval_freekv();
std::unique_ptr<Partition> make_partition(std::string_view name);
std::unique_ptr<Identity> make_identity_shared();
std::unique_ptr<Identity> make_identity_session();
std::unique_ptr<Identity> make_identity_session_memory();
std::unique_ptr<Identity> make_identity_none();

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_AXIS_FACTORIES_H_
