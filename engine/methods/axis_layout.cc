// All layouts (docs/design/methods/composition.md#layouts).

#include "engine/base/check.h"
#include "engine/methods/axis_factories.h"
#include "engine/methods/budget_groups.h"

namespace kvtwin {
namespace {

struct Kind {
  const char* name;
  SlotRetention slot_retention;
  bool keeps_slots, keeps_phase, needs_page_1;
};

constexpr Kind kKinds[] = {
    {"paged", SlotRetention::kAll, true, true, false},
    {"ring", SlotRetention::kRing, false, true, false},
    {"compact", SlotRetention::kMove, false, true, false},
    {"compact_rerotate", SlotRetention::kMove, false, false, false},
    {"slot_mask", SlotRetention::kInPlace, true, true, true},
    {"page_mask", SlotRetention::kInPlace, true, true, false},
    {"ragged", SlotRetention::kMove, false, true, false},
};

class TableLayout final : public Layout {
 public:
  explicit TableLayout(const Kind& kind) : kind_(kind) {}
  SlotRetention slot_retention() const override { return kind_.slot_retention; }
  bool has_groups() const override { return layout_has_groups(kind_.name); }
  bool keeps_slots() const override { return kind_.keeps_slots; }
  bool keeps_phase() const override { return kind_.keeps_phase; }
  bool needs_page_1() const override { return kind_.needs_page_1; }

 private:
  const Kind& kind_;
};

}  // namespace

std::unique_ptr<Layout> make_layout(const PolicySet& set) {
  for (const Kind& kind : kKinds) {
    if (set.layout == kind.name) return std::make_unique<TableLayout>(kind);
  }
  KVT_CHECK(!"a layout that validate_policy_set() lets pass and no table knows");
  return nullptr;
}

}  // namespace kvtwin
