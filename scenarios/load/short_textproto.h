// short_textproto(): a scenario without the fields that have their defaults, as a person would write it.

#ifndef KVTWIN_SCENARIOS_LOAD_SHORT_TEXTPROTO_H_
#define KVTWIN_SCENARIOS_LOAD_SHORT_TEXTPROTO_H_

#include <string>

#include "scenarios/load/scenario.h"

namespace kvtwin {

// Defaults are those of the scenario's preset. Fields that follow from others (policies.placement, clock) are
// left out where the scenario does not state them.
std::string short_textproto(const Scenario& scenario);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_LOAD_SHORT_TEXTPROTO_H_
