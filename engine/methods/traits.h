// What the other parts may know of a policy: plain traits by axis, found from the policy's name. The rows,
// each with name, description and traits, are in axis_<name>.cc; no code outside engine/methods compares
// names.
//
// A name that no row has gets the traits of the axis's identity: registry.h reports it.

#ifndef KVTWIN_ENGINE_METHODS_TRAITS_H_
#define KVTWIN_ENGINE_METHODS_TRAITS_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "engine/base/kv_format.h"
#include "engine/base/partition_kind.h"
#include "engine/base/recall_copies.h"
#include "engine/kv/precision_spec.h"
#include "engine/methods/retrieval_spec.h"

namespace kvtwin {

struct PolicyInfo {
  std::string_view axis;  // "scorer", ..., "identity", "prefix_eviction"
  std::string_view name;
  std::string_view description;
};

// What scores decide of the counts of head groups. kNothing: the counts follow from lengths.
enum class CountedBy : uint8_t {
  kNothing,
  kLayerShares,  // the heads of a layer share its entries, with a floor each
  kLayer,        // a fraction of a layer's entries, whichever heads they are of
  kAllLayers,    // a fraction of all entries
  kChunkRule,    // of each chunk, rounded up to pages; released pages are given back
};

// The table that gives heads budgets of their own.
enum class HeadTable : uint8_t { kNone, kCalibrated, kMasks, kLayers };

struct BudgetTraits {
  bool keeps_all = false;
  bool entries = false;     // a number of KV entries; otherwise a fraction
  bool heads_even = false;  // all heads retain equally many KV entries
  bool fixes_ring = false;  // says how many entries a ring holds
  bool reserves = false;    // admission reserves the pages of the retained KV entries
  CountedBy counted_by = CountedBy::kNothing;
  HeadTable table = HeadTable::kNone;

  bool known_at_admission() const { return counted_by == CountedBy::kNothing; }
};

// How are retained KV entries placed in pages?
enum class SlotRetention : uint8_t {
  kAll,      // nothing is dropped: one table, by position
  kRing,     // a fixed number of pages per request and group, whose content the backend chooses
  kMove,     // retained KV entries are compacted: each group has as many pages as they need
  kInPlace,  // retained KV entries keep their slots: a page is freed when all of its entries are dropped
};

struct LayoutTraits {
  SlotRetention slot_retention = SlotRetention::kAll;
  bool keeps_slots = true;  // a cached prefix keeps its slots and so can be reused
  bool keeps_phase = true;  // keys keep the rotation of their original position
  bool needs_page_1 = false;
  bool has_groups = false;  // a page table per head group
};

// The newest tokens of a request that are bf16 outside its pages.
enum class ExactTokens : uint8_t { kNone, kResidual, kGroup };

struct PrecisionTraits {
  Format prompt_format = Format::kBf16;  // by_tag: the smallest format of a prompt KV entry
  Format decode_format = Format::kBf16;
  bool by_tag = false;       // the format of a prompt KV entry depends on its role: two pools
  bool reads_group = false;  // reads PrecisionSpec::group
  ExactTokens exact = ExactTokens::kNone;

  bool packed() const { return decode_format != Format::kBf16; }
};

struct PlacementTraits {
  bool uses_host = false;      // the host tier has pages
  bool uses_resident = false;  // every page is on the host, and the GPU holds resident pages
};

struct RetrievalTraits {
  RetrievalKind kind = RetrievalKind::kReadsAll;
  bool may_speculate = false;  // has the option speculation: select for the next step, in the background

  bool reads_everything() const { return kind == RetrievalKind::kReadsAll; }
  // Recalls pages: placement must be resident.
  bool needs_resident() const { return recalls(kind); }
  // Keys of a token are factorised in all heads together.
  bool joins_heads() const { return kind == RetrievalKind::kRecallsValues; }
  // Learns its key columns from all tokens of a prompt.
  bool learns_columns() const { return kind == RetrievalKind::kRecallsTokens; }
};

struct IdentityTraits {
  bool shares_across_sessions = false;
};

struct EvictionTraits {
  bool by_age = false;        // follows the order in which pages were let go
  bool reads_hints = false;   // clients' hints about sessions
  bool reads_length = false;  // the work of recomputing a token, which grows with its context
  bool reads_refill = false;  // the time of recomputing all pages
};

BudgetTraits budget_traits(std::string_view name);
LayoutTraits layout_traits(std::string_view name);
PrecisionTraits precision_traits(std::string_view name);
// The largest number of newest tokens of a request that are stored as bf16 outside its pages.
uint32_t exact_tokens_max(const PrecisionTraits& traits, const PrecisionSpec& spec);
PlacementTraits placement_traits(std::string_view name);
RetrievalTraits retrieval_traits(std::string_view name);
// The parameters that the method's authors use (docs/design/methods/freekv.md#defaults, #timelines); budgets
// are for page_tokens 32.
RetrievalSpec retrieval_defaults(std::string_view name);
// How the method's authors copy pages: the defaults of engines and prices. The policy does not use it.
RecallCopies recall_copies(std::string_view name);
// The methods of a kind, for messages: "arkvale or freekv".
std::string retrievals_of(RetrievalKind kind);
PartitionKind partition_kind(std::string_view name);
IdentityTraits identity_traits(std::string_view name);
EvictionTraits eviction_traits(std::string_view name);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_METHODS_TRAITS_H_
