#include "engine/methods/axis_factories.h"

namespace kvtwin {
namespace {

class Shared final : public Identity {
 public:
  std::optional<uint64_t> name_space(SessionId) const override { return 0; }
  bool shares_across_sessions() const override { return true; }
  uint32_t session_states_max() const override { return 0; }
};

// Namespace 0 is the shared one, so that both kinds can use one index.
class Session final : public Identity {
 public:
  explicit Session(uint32_t states_max) : states_max_(states_max) {}
  std::optional<uint64_t> name_space(SessionId session) const override { return uint64_t{raw(session)} + 1; }
  bool shares_across_sessions() const override { return false; }
  uint32_t session_states_max() const override { return states_max_; }

 private:
  const uint32_t states_max_;
};

class None final : public Identity {
 public:
  std::optional<uint64_t> name_space(SessionId) const override { return std::nullopt; }
  bool shares_across_sessions() const override { return false; }
  uint32_t session_states_max() const override { return 0; }
};

}  // namespace

std::unique_ptr<Identity> make_identity_shared() { return std::make_unique<Shared>(); }
std::unique_ptr<Identity> make_identity_session() { return std::make_unique<Session>(0); }
// docs/design/methods/intentkv.md#objects: an LRU store of 1024 sessions.
std::unique_ptr<Identity> make_identity_session_memory() { return std::make_unique<Session>(1'024); }
std::unique_ptr<Identity> make_identity_none() { return std::make_unique<None>(); }

}  // namespace kvtwin
