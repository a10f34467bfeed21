// All layouts (docs/design/methods/composition.md#layouts).

#include "engine/methods/axis_factories.h"
#include "engine/methods/axis_rows.h"

namespace kvtwin {
namespace {

struct LayoutRow {
  PolicyInfo info;
  LayoutTraits traits;
};

constexpr LayoutRow kLayouts[] = {
    {{"layout", "paged", "Entries fill pages in order of position; a cached prefix keeps its slots."}, {}},
    {{"layout", "ring",
      "A fixed number of pages per request and head group; the backend chooses what they hold "
      "(StreamingLLM's and RaaS's rings)."},
     {.slot_retention = SlotRetention::kRing, .keeps_slots = false, .has_groups = true}},
    {{"layout", "compact",
      "Retained entries are compacted and keep their rotation; pages after them are freed."},
     {.slot_retention = SlotRetention::kMove, .keeps_slots = false}},
    {{"layout", "compact_rerotate", "As compact, with keys rotated to their new places: never shared."},
     {.slot_retention = SlotRetention::kMove, .keeps_slots = false, .keeps_phase = false}},
    {{"layout", "slot_mask",
      "Dropped entries leave empty slots; pages of one token are freed one by one (IntentKV)."},
     {.slot_retention = SlotRetention::kInPlace, .needs_page_1 = true}},
    {{"layout", "page_mask", "Dropped entries are masked; a page is freed when nothing in it is left."},
     {.slot_retention = SlotRetention::kInPlace}},
    {{"layout", "ragged",
      "Groups of KV heads have page tables of their own, each as long as its heads need (TANGRAM)."},
     {.slot_retention = SlotRetention::kMove, .keeps_slots = false, .has_groups = true}},
};

}  // namespace

void append_layouts(std::vector<PolicyInfo>* out) { append_rows(kLayouts, out); }
LayoutTraits layout_traits(std::string_view name) { return row_of(kLayouts, name).traits; }

}  // namespace kvtwin
