#include "engine/policy/axis_factories.h"

namespace kvtwin {
namespace {

class Uniform final : public Partition {
 public:
  bool per_layer() const override { return false; }
};

}  // namespace

std::unique_ptr<Partition> make_partition_uniform() { return std::make_unique<Uniform>(); }

}  // namespace kvtwin
