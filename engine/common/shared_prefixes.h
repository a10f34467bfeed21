// SharedPrefixes is what an engine that drops KV entries remembers of the prefixes that its requests share
// (PrefixHit and PrefixCheckpoint, commands.h).
//
//   kInPlace  pages by position: which of a page's slots were dropped. A request that reuses the page
//             inherits them.
//   kMove     prefix checkpoints: the request table when each was taken. A request that continues from one
//             reads its leading pages, and its own first pages become copies of the others.

#ifndef KVTWIN_ENGINE_COMMON_SHARED_PREFIXES_H_
#define KVTWIN_ENGINE_COMMON_SHARED_PREFIXES_H_

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "engine/common/request_table.h"

namespace kvtwin::cpu {

class SharedPrefixes {
 public:
  // `shape` must outlive it.
  SharedPrefixes(const RequestTableShape* shape, uint32_t page_tokens)
      : shape_(*shape), page_tokens_(page_tokens) {}

  // The request's table becomes that of the prefix that it begins with or continues from. A request that was
  // swapped in has the table that it had, on the pages of the hit.
  void begin(const LaunchStep& launch, const PrefixHit& prefix_hit, RequestTable* table);
  // `page` was allocated to the request. Returns the page that it must be a copy of; nullopt: none.
  std::optional<PageId> allocated(RequestId request, uint32_t group, PageId page);
  // REQUIRES: all pages that a step allocates were passed to allocated().
  void check_copied();

  // kInPlace: the KV entry in this slot was dropped.
  void drop(Place place);
  // kInPlace: `target` is a copy of `source`.
  void copied(PageId source, PageId target);
  // kMove: `table` is what is left of the prefix.
  void take(uint32_t prefix_checkpoint, const RequestTable& table) {
    prefix_checkpoints_.insert_or_assign(prefix_checkpoint, table);
  }

 private:
  void reuse(const PrefixHit& prefix_hit, RequestTable* table) const;
  void continue_from(const PrefixHit& prefix_hit, RequestTable* table);

  const RequestTableShape& shape_;
  const uint32_t page_tokens_;
  std::map<PageId, std::vector<bool>> dropped_;          // slots of a page
  std::map<uint32_t, RequestTable> prefix_checkpoints_;  // by number
  // Pages yet to be copied, the next one last, by request and group.
  std::map<std::pair<RequestId, uint32_t>, std::vector<PageId>> to_copy_;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_SHARED_PREFIXES_H_
