// The registry of policies: the name, description (one paragraph) and factory of each.
//
// `kvtwin list policies` prints it; the docs have no second copy.

#ifndef KVTWIN_ENGINE_METHODS_REGISTRY_H_
#define KVTWIN_ENGINE_METHODS_REGISTRY_H_

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/kv/store/prefix_eviction.h"
#include "engine/methods/axes.h"
#include "engine/methods/config.h"
#include "engine/methods/traits.h"

namespace kvtwin {

// All policies, by axis. The first of an axis is its identity.
std::span<const PolicyInfo> all_policies();

// The name of a policy set in device files: "snapkv/uniform/compact", "freekv"; its precision ("triaxial")
// where everything is retained and read.
std::string method_name(const PolicySet& set);

// Returns one sentence about a name of the set that no policy has; nullopt: all are known.
std::optional<std::string> unknown_policy(const PolicySet& set);

// Returns one sentence that explains why these choices cannot be combined, and a remedy; nullopt: they can.
std::optional<std::string> validate_policy_set(const PolicySet& set, const CoreConfig& config);

// The part of validate_policy_set() that does not use names: for policies that are not in the registry.
std::optional<std::string> validate_axes(const PolicyAxes& axes, const PolicySet& set,
                                         const CoreConfig& config);
// Rejects values that are invalid whatever the policies.
std::optional<std::string> validate_limits(const CoreConfig& config);

// All checks of a configuration: validate_limits() and validate_policy_set().
std::optional<std::string> validate_core_config(const CoreConfig& config);

// REQUIRES: the names are known (validate_policy_set).
PolicyAxes make_axes(const PolicySet& set);
// For an index of places that hold place_tokens tokens each.
std::unique_ptr<PrefixEviction> make_prefix_eviction(const CoreConfig& config, uint32_t place_tokens);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_REGISTRY_H_
