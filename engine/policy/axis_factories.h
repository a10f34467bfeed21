// The factories behind registry.cc, one per policy.

#ifndef KVTWIN_ENGINE_POLICY_AXIS_FACTORIES_H_
#define KVTWIN_ENGINE_POLICY_AXIS_FACTORIES_H_

#include <memory>

#include "engine/policy/axes.h"

namespace kvtwin {

std::unique_ptr<Scorer> make_scorer_none();
std::unique_ptr<Budget> make_budget(const PolicySet& set);
std::unique_ptr<Layout> make_layout(const PolicySet& set);
std::unique_ptr<Precision> make_precision_bf16();
std::unique_ptr<Placement> make_placement_gpu();
std::unique_ptr<Placement> make_placement_host();
std::unique_ptr<Retrieval> make_retrieval_all();
std::unique_ptr<Partition> make_partition_uniform();
std::unique_ptr<Identity> make_identity_shared();
std::unique_ptr<Identity> make_identity_session();
std::unique_ptr<Identity> make_identity_session_memory();
std::unique_ptr<Identity> make_identity_none();

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_POLICY_AXIS_FACTORIES_H_
