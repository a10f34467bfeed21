#include "engine/policy/axis_factories.h"

namespace kvtwin {
namespace {

class All final : public Budget {
 public:
  bool keeps_all() const override { return true; }
  bool known_at_admission() const override { return true; }
  uint32_t kept_max(uint32_t tokens) const override { return tokens; }
};

}  // namespace

std::unique_ptr<Budget> make_budget_all() { return std::make_unique<All>(); }

}  // namespace kvtwin
