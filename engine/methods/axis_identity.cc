// Which requests may share which state.

#include "engine/methods/axis_factories.h"
#include "engine/methods/axis_rows.h"

namespace kvtwin {
namespace {

struct IdentityRow {
  PolicyInfo info;
  IdentityTraits traits;
  bool caches;          // prefixes are cached at all
  uint32_t states_max;  // docs/design/methods/intentkv.md#objects: an LRU store of 1024 sessions
};

constexpr IdentityRow kIdentities[] = {
    {{"identity", "shared", "Equal tokens share KV, also between sessions."},
     {.shares_across_sessions = true},
     true,
     0},
    {{"identity", "session", "Only requests of one session share KV."}, {}, true, 0},
    {{"identity", "session_memory",
      "As session; besides, the backend keeps a query memory for each of the 1,024 sessions used last "
      "(IntentKV)."},
     {},
     true,
     1'024},
    {{"identity", "none", "No prefix is ever reused."}, {}, false, 0},
};

// Namespace 0 is the shared one, so that both kinds can use one index.
class TableIdentity final : public Identity {
 public:
  explicit TableIdentity(const IdentityRow& row) : row_(row) {}
  std::optional<uint64_t> name_space(SessionId session) const override {
    if (!row_.caches) return std::nullopt;
    return row_.traits.shares_across_sessions ? 0 : uint64_t{raw(session)} + 1;
  }
  uint32_t session_states_max() const override { return row_.states_max; }

 private:
  const IdentityRow& row_;
};

}  // namespace

std::unique_ptr<Identity> make_identity(std::string_view name) {
  return std::make_unique<TableIdentity>(row_of(kIdentities, name));
}

void append_identities(std::vector<PolicyInfo>* out) { append_rows(kIdentities, out); }
IdentityTraits identity_traits(std::string_view name) { return row_of(kIdentities, name).traits; }

}  // namespace kvtwin
