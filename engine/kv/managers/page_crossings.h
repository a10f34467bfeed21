// PageCrossings are the steps of a coalesced run in which its requests need another page, where each needs
// one every page_tokens steps. They are sorted once for all pages.

#ifndef KVTWIN_ENGINE_KV_MANAGERS_PAGE_CROSSINGS_H_
#define KVTWIN_ENGINE_KV_MANAGERS_PAGE_CROSSINGS_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvtwin {

class PageCrossings {
 public:
  explicit PageCrossings(uint32_t page_tokens) : page_tokens_(page_tokens) {}

  void clear() { first_.clear(); }
  // After the run's first step, `free_slots` of the last page of `entry` are free.
  void add(uint32_t entry, uint32_t free_slots) { first_.push_back({free_slots + 1, entry}); }
  // Calls take(entry, offset) for every page of the steps before `steps`, in step-major order, until it
  // returns false. Returns the number of steps that have all their pages.
  template <typename Take>
  uint32_t visit(uint32_t steps, Take take) {
    std::sort(first_.begin(), first_.end());
    for (uint32_t window = 0; window < steps; window += page_tokens_) {
      for (const auto& [first, entry] : first_) {
        const uint32_t offset = first + window;
        if (offset >= steps) break;
        if (!take(entry, offset)) return offset;
      }
    }
    return steps;
  }

 private:
  const uint32_t page_tokens_;
  std::vector<std::pair<uint32_t, uint32_t>> first_;  // step, entry
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_MANAGERS_PAGE_CROSSINGS_H_
