#include "engine/policy/axis_factories.h"

namespace kvtwin {
namespace {

class Shared final : public Identity {
 public:
  std::optional<uint64_t> name_space(SessionId) const override { return 0; }
  bool shares_across_sessions() const override { return true; }
};

// 0 is the shared namespace, so that both kinds may stand in one index.
class Session final : public Identity {
 public:
  std::optional<uint64_t> name_space(SessionId session) const override { return uint64_t{raw(session)} + 1; }
  bool shares_across_sessions() const override { return false; }
};

class None final : public Identity {
 public:
  std::optional<uint64_t> name_space(SessionId) const override { return std::nullopt; }
  bool shares_across_sessions() const override { return false; }
};

}  // namespace

std::unique_ptr<Identity> make_identity_shared() { return std::make_unique<Shared>(); }
std::unique_ptr<Identity> make_identity_session() { return std::make_unique<Session>(); }
std::unique_ptr<Identity> make_identity_none() { return std::make_unique<None>(); }

}  // namespace kvtwin
