// The orders in which cached prefixes lose their pages: prefix_eviction.h.

#include <algorithm>

#include "engine/methods/axis_factories.h"
#include "engine/methods/axis_rows.h"
#include "engine/methods/registry.h"

namespace kvtwin {
namespace {

struct EvictionRow {
  PolicyInfo info;
  EvictionTraits traits;
  std::unique_ptr<PrefixEviction> (*make)(const EvictionSpec& spec);
};

constexpr EvictionRow kEvictions[] = {
    {{"prefix_eviction", "lru", "The prefix that was let go longest ago loses its pages first."},
     {.by_age = true},
     make_lru_eviction},
    {{"prefix_eviction", "lfu", "The prefix that was used least often loses its pages first; ties by age."},
     {},
     make_lfu_eviction},
    {{"prefix_eviction", "session_aware",
      "First what belongs to sessions that have ended or are long overdue, then to those that their clients "
      "say will come back, then to those with a request in the queue; each by age."},
     {.reads_hints = true},
     make_session_aware_eviction},
    {{"prefix_eviction", "cost_aware",
      "Greedy-Dual-Size-Frequency: uses times the work of computing a token again, on top of the highest "
      "rank that was evicted before the last use."},
     {.reads_length = true},
     make_cost_aware_eviction},
    {{"prefix_eviction", "tool_ttl",
      "Prefixes of a waiting session stay for a time to live, which the pauses of the tool that it runs "
      "decide "
      "(Continuum's order alone); then by age."},
     {.reads_hints = true, .reads_refill = true},
     make_tool_ttl_eviction},
};

}  // namespace

std::unique_ptr<PrefixEviction> make_prefix_eviction(const CoreConfig& config, uint32_t place_tokens) {
  const uint32_t doubling = config.eviction_doubling_tokens;
  return row_of(kEvictions, config.prefix_eviction)
      .make({.doubling_pages = doubling == 0 ? 0 : std::max(1u, doubling / place_tokens),
             .refill = config.eviction_refill});
}

void append_evictions(std::vector<PolicyInfo>* out) { append_rows(kEvictions, out); }
EvictionTraits eviction_traits(std::string_view name) { return row_of(kEvictions, name).traits; }

}  // namespace kvtwin
