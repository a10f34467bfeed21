// The tiers that a page may be in.

#include "engine/methods/axis_factories.h"
#include "engine/methods/axis_rows.h"

namespace kvtwin {
namespace {

struct PlacementRow {
  PolicyInfo info;
  PlacementTraits traits;
};

constexpr PlacementRow kPlacements[] = {
    {{"placement", "gpu", "KV lives on the gpu only; what is evicted is computed again."}, {}},
    {{"placement", "host",
      "Cached prefixes that are about to be evicted are copied to the host; a hit there is recalled by a "
      "transfer that the request waits for."},
     {.uses_host = true}},
    {{"placement", "resident",
      "Every page of a request is on the host. The prompt is computed on the gpu; at its end the gpu keeps a "
      "fixed number of resident pages per request, whose content the retrieval chooses step by step."},
     {.uses_host = true, .uses_resident = true}},
};

}  // namespace

void append_placements(std::vector<PolicyInfo>* out) { append_rows(kPlacements, out); }
PlacementTraits placement_traits(std::string_view name) { return row_of(kPlacements, name).traits; }

}  // namespace kvtwin
