// The fraction of ranked tokens that each KV head retains, and the fraction that its head group holds.

#ifndef KVTWIN_SCENARIOS_APP_HEAD_FRACTIONS_H_
#define KVTWIN_SCENARIOS_APP_HEAD_FRACTIONS_H_

#include <string>
#include <vector>

#include "engine/methods/config.h"

namespace kvtwin {

// The fraction that each head retains, by layer * kv_heads + head. Where the backend decides it, the
// profile's expectation; empty: fractions are not per head.
std::vector<Fraction> own_fractions(const PolicySet& set);

// The content of heads.json in a run's folder, for the report's heat map: {"layers", "kv_heads", "held",
// "needed"}, fractions of ranked tokens by layer * kv_heads + head. Group fragmentation is
// 1 - sum needed / sum held (docs/design/methods/tangram.md#fragmentation).
// "": the policy has no head groups of different lengths.
std::string heads_json(const PolicySet& set);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_APP_HEAD_FRACTIONS_H_
