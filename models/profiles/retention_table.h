// Prints a retention profile: how much is retained, and what reserving it would take.

#ifndef KVTWIN_MODELS_PROFILES_RETENTION_TABLE_H_
#define KVTWIN_MODELS_PROFILES_RETENTION_TABLE_H_

#include <cstdint>
#include <string>

#include "models/profiles/retention_profile.h"

namespace kvtwin {

// Budgets are mu + alpha sigma; `group` heads share pages. REQUIRES: profile.samples exist; group >= 1.
std::string retention_table(const RetentionProfile& profile, double alpha, uint32_t group);

}  // namespace kvtwin

#endif  // KVTWIN_MODELS_PROFILES_RETENTION_TABLE_H_
