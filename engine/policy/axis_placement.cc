#include "engine/policy/axis_factories.h"

namespace kvtwin {
namespace {

class OnTier final : public Placement {
 public:
  explicit OnTier(bool host) : host_(host) {}
  bool uses_host() const override { return host_; }

 private:
  const bool host_;
};

}  // namespace

std::unique_ptr<Placement> make_placement_gpu() { return std::make_unique<OnTier>(false); }
std::unique_ptr<Placement> make_placement_host() { return std::make_unique<OnTier>(true); }

}  // namespace kvtwin
