#include "engine/policy/axis_factories.h"

namespace kvtwin {
namespace {

class None final : public Scorer {
 public:
  Moment moment() const override { return Moment::kAtNoTime; }
  Causality causality() const override { return Causality::kPrefixClosed; }
  uint32_t probe_rows() const override { return 0; }
  bool needs_all_layers() const override { return false; }
};

}  // namespace

std::unique_ptr<Scorer> make_scorer_none() { return std::make_unique<None>(); }

}  // namespace kvtwin
