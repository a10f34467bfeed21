#include "engine/policy/axis_factories.h"

namespace kvtwin {
namespace {

class Bf16 final : public Precision {
 public:
  Format prompt_format() const override { return Format::kBf16; }
  Format decode_format() const override { return Format::kBf16; }
};

}  // namespace

std::unique_ptr<Precision> make_precision_bf16() { return std::make_unique<Bf16>(); }

}  // namespace kvtwin
