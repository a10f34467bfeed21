#include "engine/policy/axis_factories.h"

namespace kvtwin {
namespace {

class Paged final : public Layout {
 public:
  uint32_t pages_for(uint32_t cells, uint32_t page_tokens) const override {
    return div_ceil(cells, page_tokens);
  }
  bool keeps_slots() const override { return true; }
  bool needs_page_1() const override { return false; }
};

}  // namespace

std::unique_ptr<Layout> make_layout_paged() { return std::make_unique<Paged>(); }

}  // namespace kvtwin
