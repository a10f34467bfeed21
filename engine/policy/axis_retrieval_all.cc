#include "engine/policy/axis_factories.h"

namespace kvtwin {
namespace {

class All final : public Retrieval {
 public:
  bool reads_everything() const override { return true; }
};

}  // namespace

std::unique_ptr<Retrieval> make_retrieval_all() { return std::make_unique<All>(); }

}  // namespace kvtwin
