#include "engine/kv/managers/kv_kind.h"

#include "engine/kv/managers/grouped_kv_manager.h"
#include "engine/kv/managers/mixed_precision_kv_manager.h"
#include "engine/kv/managers/paged_kv_manager.h"
#include "engine/kv/managers/resident_kv_manager.h"

namespace kvtwin {

KvKind kind_of(const PolicyAxes& axes, const Retention& retention) {
  if (axes.placement.uses_resident) return KvKind::kResident;
  if (axes.precision.by_tag) return KvKind::kMixedPrecision;
  return retention.by_group() ? KvKind::kGrouped : KvKind::kPaged;
}

std::unique_ptr<KvManager> make_kv_manager(KvContext* context) {
  switch (kind_of(context->axes, context->retention)) {
    case KvKind::kResident:
      return std::make_unique<ResidentKvManager>(context);
    case KvKind::kMixedPrecision:
      return std::make_unique<MixedPrecisionKvManager>(context);
    case KvKind::kGrouped:
      return std::make_unique<GroupedKvManager>(context);
    case KvKind::kPaged:
      break;
  }
  return std::make_unique<PagedKvManager>(context);
}

}  // namespace kvtwin
