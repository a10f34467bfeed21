// What each KV head keeps of ranked tokens, and what its head group keeps for it.

#ifndef KVTWIN_SCENARIOS_APP_HEAD_FRACTIONS_H_
#define KVTWIN_SCENARIOS_APP_HEAD_FRACTIONS_H_

#include <string>
#include <vector>

#include "engine/methods/config.h"

namespace kvtwin {

// What each head keeps on its own, by layer * kv_heads + head; where the backend answers that, what a profile
// expects; empty: nothing is said by head.
std::vector<Fraction> own_fractions(const PolicySet& set);

// heads.json of a run's folder, for the report's heat map: {"layers", "kv_heads", "held", "needed"}, shares
// of ranked tokens by layer * kv_heads + head. Group fragmentation is 1 - sum needed / sum held
// (docs/design/methods/tangram.md#fragmentation). "": the policy has no head groups of different lengths.
std::string heads_json(const PolicySet& set);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_APP_HEAD_FRACTIONS_H_
