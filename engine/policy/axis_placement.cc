#include "engine/policy/axis_factories.h"

namespace kvtwin {
namespace {

class OnTier final : public Placement {
 public:
  OnTier(bool host, bool arena) : host_(host), arena_(arena) {}
  bool uses_host() const override { return host_; }
  bool uses_arena() const override { return arena_; }

 private:
  const bool host_, arena_;
};

}  // namespace

std::unique_ptr<Placement> make_placement_gpu() { return std::make_unique<OnTier>(false, false); }
std::unique_ptr<Placement> make_placement_host() { return std::make_unique<OnTier>(true, false); }
std::unique_ptr<Placement> make_placement_arena() { return std::make_unique<OnTier>(true, true); }

}  // namespace kvtwin
