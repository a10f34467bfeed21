#include "engine/kv/fragmentation.h"

#include <algorithm>
#include <vector>

#include "engine/base/check.h"
#include "engine/base/units.h"

namespace kvtwin {

Fragmentation& Fragmentation::operator+=(const Fragmentation& other) {
  needed_entries += other.needed_entries;
  level_entries += other.level_entries;
  held_entries += other.held_entries;
  page_slots += other.page_slots;
  full_entries += other.full_entries;
  return *this;
}

Fragmentation fragmentation(std::span<const uint32_t> group_of, std::span<const uint32_t> needs,
                            std::span<const uint32_t> lengths, uint32_t page_tokens, uint32_t tokens) {
  KVT_CHECK(group_of.size() == needs.size() && page_tokens > 0);
  std::vector<uint64_t> heads(lengths.size(), 0), largest(lengths.size(), 0);
  Fragmentation out;
  for (size_t h = 0; h < needs.size(); ++h) {
    const uint32_t group = group_of[h];
    KVT_CHECK(group < lengths.size());
    KVT_CHECK(needs[h] <= lengths[group]);
    ++heads[group];
    largest[group] = std::max<uint64_t>(largest[group], needs[h]);
    out.needed_entries += needs[h];
  }
  for (size_t g = 0; g < lengths.size(); ++g) {
    out.level_entries += heads[g] * largest[g];
    out.held_entries += heads[g] * lengths[g];
    out.page_slots += heads[g] * page_tokens * div_ceil<uint64_t>(lengths[g], page_tokens);
  }
  out.full_entries = uint64_t{needs.size()} * tokens;
  return out;
}

}  // namespace kvtwin
