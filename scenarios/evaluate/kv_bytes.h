// The bytes of KV that a request retains and that a decode reads: the cost of an answer's quality.

#ifndef KVTWIN_SCENARIOS_EVALUATE_KV_BYTES_H_
#define KVTWIN_SCENARIOS_EVALUATE_KV_BYTES_H_

#include "engine/metrics/metrics_summary.h"
#include "scenarios/app/compose.h"

namespace kvtwin {

struct KvBytes {
  double kept = 0;  // mean over decodes, all tiers, including exact entries outside packed pages
  double read = 0;  // less where pages are chosen; first layers may be dense
};

// For a run that ended. With two formats, both are weighted by the pages that were held.
KvBytes kv_bytes(const Scenario& scenario, const Composed& composed, const Summary& sum);

}  // namespace kvtwin

#endif  // KVTWIN_SCENARIOS_EVALUATE_KV_BYTES_H_
