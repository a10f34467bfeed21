// GroupMap defines which KV heads share one page table.
//
// A *head group* is a set of (layer, KV head) pairs with one length and one page table. A page holds
// page_tokens KV entries of every member; a member's *column* is its index within such a page. Without groups
// (heads_per_group 0) all heads of all layers form one group: a plain paged engine.
//
// The groups are fixed once, from calibrated budgets (docs/design/methods/tangram.md#ragged-pages,
// #clustering): heads are sorted by budget, descending, ties by (layer, head), and cut into runs of
// heads_per_group. For groups of equal size this minimises the sum of the groups' maxima. Columns are ordered
// by (layer, head).

#ifndef KVTWIN_ENGINE_KV_HEAD_GROUPS_H_
#define KVTWIN_ENGINE_KV_HEAD_GROUPS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace kvtwin {

// A fraction as Q0.32: kWhole is 1.
using Fraction = uint64_t;
constexpr Fraction kWhole = uint64_t{1} << 32;

enum class Clustering : uint8_t {
  kAdjacent,     // neighbours in (layer, head) order
  kPerLayer,     // sorted by budget within each layer
  kAcrossLayers  // sorted by budget over all layers
};

struct LayoutSpec {
  uint32_t layers = 1;           // layers of one engine whose KV is in the pool
  uint32_t kv_heads = 1;         // of one layer, on all GPUs of the engine
  uint32_t heads_per_group = 0;  // 0: all heads of all layers in one group
  Clustering clustering = Clustering::kAdjacent;

  uint32_t heads() const { return layers * kv_heads; }
  uint32_t groups() const { return heads_per_group == 0 ? 1 : heads() / heads_per_group; }
  uint32_t heads_per_page() const { return heads_per_group == 0 ? heads() : heads_per_group; }
};

// Returns one sentence that describes the error in `spec`; nullopt: valid.
std::optional<std::string> validate_layout_spec(const LayoutSpec& spec);

class GroupMap {
 public:
  // One group of all heads.
  GroupMap() : GroupMap(LayoutSpec{}, {}) {}
  // `budgets` by layer * kv_heads + head; only the clustered kinds use them. Empty: equal budgets.
  // REQUIRES: validate_layout_spec() returns nullopt; `budgets` is empty or has spec.heads() elements.
  GroupMap(const LayoutSpec& spec, std::span<const Fraction> budgets);

  uint32_t groups() const { return groups_; }
  uint32_t heads() const { return static_cast<uint32_t>(group_of_.size()); }
  uint32_t heads_per_group() const { return heads() / groups_; }
  // Heads, as layer * kv_heads + head, by column.
  std::span<const uint32_t> members(uint32_t group) const {
    return {members_.data() + size_t{group} * heads_per_group(), heads_per_group()};
  }
  uint32_t group_of(uint32_t head) const { return group_of_[head]; }
  uint32_t column_of(uint32_t head) const { return column_of_[head]; }

  // The largest value of each group's members.
  std::vector<Fraction> largest(std::span<const Fraction> of_heads) const;

 private:
  uint32_t groups_;
  std::vector<uint32_t> members_;
  std::vector<uint32_t> group_of_, column_of_;  // by head
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_HEAD_GROUPS_H_
