// KvKind names the KV manager that a set of policies needs; make_kv_manager() creates it. No other code tests
// the kind.

#ifndef KVTWIN_ENGINE_KV_MANAGERS_KV_KIND_H_
#define KVTWIN_ENGINE_KV_MANAGERS_KV_KIND_H_

#include <memory>

#include "engine/methods/axes.h"
#include "engine/methods/retention.h"

namespace kvtwin {

class KvManager;
struct KvContext;

enum class KvKind : uint8_t { kPaged, kGrouped, kMixedPrecision, kResident };

KvKind kind_of(const PolicyAxes& axes, const Retention& retention);
// *context must outlive the manager.
std::unique_ptr<KvManager> make_kv_manager(KvContext* context);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_MANAGERS_KV_KIND_H_
