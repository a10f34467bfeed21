// What there is to choose from: every policy's name, its description in a paragraph, and how to make it.
//
// `kvtwin list policies` prints this; there is no second copy in the docs.

#ifndef KVTWIN_ENGINE_METHODS_REGISTRY_H_
#define KVTWIN_ENGINE_METHODS_REGISTRY_H_

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/kv/prefix_eviction.h"
#include "engine/methods/axes.h"
#include "engine/methods/config.h"

namespace kvtwin {

struct PolicyInfo {
  std::string_view axis;  // "scorer", ..., "identity", "prefix_eviction"
  std::string_view name;
  std::string_view description;
};

// All of them, by axis; the first of an axis is its identity.
std::span<const PolicyInfo> all_policies();

// A sentence that says which name of the set no policy has; nullopt: all are known.
std::optional<std::string> unknown_policy(const PolicySet& set);

// A sentence that says why these choices cannot work together, and the way out; nullopt: they can.
std::optional<std::string> validate_policy_set(const PolicySet& set, const CoreConfig& config);

// The part of it that asks the policies and not their names: for policies that are not in the registry.
std::optional<std::string> validate_axes(const PolicyAxes& axes, const PolicySet& set,
                                         const CoreConfig& config);
// Numbers that make no sense whatever the policies.
std::optional<std::string> validate_limits(const CoreConfig& config);

// Everything that can be wrong with a configuration: validate_limits and validate_policy_set.
std::optional<std::string> validate_core_config(const CoreConfig& config);

// REQUIRES: the names are known (validate_policy_set).
PolicyAxes make_axes(const PolicySet& set);
// Of an index whose places hold place_tokens tokens each.
std::unique_ptr<PrefixEviction> make_prefix_eviction(const CoreConfig& config, uint32_t place_tokens);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_REGISTRY_H_
