// A retention profile for people: how much is kept, and what reserving it would take.

#ifndef KVTWIN_MODELS_PROFILES_RETENTION_TABLE_H_
#define KVTWIN_MODELS_PROFILES_RETENTION_TABLE_H_

#include <cstdint>
#include <string>

#include "models/profiles/retention_profile.h"

namespace kvtwin {

// Budgets mu + alpha sigma; `group`: heads that share pages. REQUIRES: profile.samples are there; group >= 1.
std::string retention_table(const RetentionProfile& profile, double alpha, uint32_t group);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_PROFILES_RETENTION_TABLE_H_
