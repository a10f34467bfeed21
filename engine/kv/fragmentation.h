// Fragmentation counts the memory lost between the KV entries that are needed and the pages that hold them
// (docs/design/methods/tangram.md#fragmentation). Its quotients are exact fractions of integers. It describes
// one request, or a sum over requests: numerators and denominators add up.

#ifndef KVTWIN_ENGINE_KV_FRAGMENTATION_H_
#define KVTWIN_ENGINE_KV_FRAGMENTATION_H_

#include <cstdint>
#include <span>

namespace kvtwin {

// numerator / denominator; 0 / 0 if there is nothing to count.
struct Quotient {
  uint64_t numerator = 0;
  uint64_t denominator = 0;
};

struct Fragmentation {
  uint64_t needed_entries = 0;  // sum over heads of the KV entries that the head needs
  uint64_t level_entries = 0;   // sum over groups of heads * the largest need in the group
  uint64_t held_entries = 0;    // sum over groups of heads * length
  uint64_t page_slots = 0;      // sum over groups of heads * slots of its pages
  uint64_t full_entries = 0;    // all heads * all tokens

  Fragmentation& operator+=(const Fragmentation& other);
  // Lost because the heads of a group share one length. The paper calls it page fragmentation.
  Quotient group() const { return {level_entries - needed_entries, level_entries}; }
  // Lost in partly filled last pages.
  Quotient tail() const { return {page_slots - held_entries, page_slots}; }
  // The fraction of the full cache that is free. 0 if the pages hold more than the full cache would.
  Quotient reclaimed() const {
    return {full_entries > page_slots ? full_entries - page_slots : 0, full_entries};
  }
};

// group_of [heads]: the group of each head, below lengths.size(); needs [heads]: KV entries that each head
// needs; lengths [groups]: KV entries that each group holds per head, at least the largest need of its heads.
Fragmentation fragmentation(std::span<const uint32_t> group_of, std::span<const uint32_t> needs,
                            std::span<const uint32_t> lengths, uint32_t page_tokens, uint32_t tokens);

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_FRAGMENTATION_H_
