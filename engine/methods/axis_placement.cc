#include "engine/methods/axis_factories.h"

namespace kvtwin {
namespace {

class OnTier final : public Placement {
 public:
  OnTier(bool host, bool resident) : host_(host), offloaded_(resident) {}
  bool uses_host() const override { return host_; }
  bool uses_resident() const override { return offloaded_; }

 private:
  const bool host_, offloaded_;
};

}  // namespace

std::unique_ptr<Placement> make_placement_gpu() { return std::make_unique<OnTier>(false, false); }
std::unique_ptr<Placement> make_placement_host() { return std::make_unique<OnTier>(true, false); }
std::unique_ptr<Placement> make_placement_resident() { return std::make_unique<OnTier>(true, true); }

}  // namespace kvtwin
