// How many bytes of KV a request keeps, and how many a decode reads of them: what the quality is paid with.

#ifndef KVTWIN_SCENARIOS_EVALUATE_KV_BYTES_H_
#define KVTWIN_SCENARIOS_EVALUATE_KV_BYTES_H_

#include "engine/metrics/metrics_summary.h"
#include "scenarios/app/compose.h"

namespace kvtwin {

struct KvBytes {
  double kept = 0;  // mean over decodes, in either tier; what is kept exact beside packed pages included
  double read = 0;  // less where pages are chosen, whose first layers may be dense
};

// Of a run that ended. Where cells lie in two formats, both count by the pages that were held.
KvBytes kv_bytes(const Scenario& scenario, const Composed& composed, const Summary& sum);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_EVALUATE_KV_BYTES_H_
