// DroppedSlots are the KV entries that requests drop in place: the others keep their slots, and a page is
// freed when all of its entries are dropped (docs/design/methods/intentkv.md#freeing).
//
// The number to drop follows from lengths, the choice is the backend's: pages are freed when it has answered.
// The next drop counts them from the step that requested it (`soon`), so its time does not depend on the
// number of steps in flight.
//
// Dropped entries of a cached prefix are also counted in the prefix index, where the requests that reuse it
// find it. This is the one place where dropping and sharing meet.

#ifndef KVTWIN_ENGINE_KV_MANAGERS_DROPPED_SLOTS_H_
#define KVTWIN_ENGINE_KV_MANAGERS_DROPPED_SLOTS_H_

#include <span>
#include <vector>

#include "engine/kv/managers/compressions.h"
#include "engine/kv/managers/paged_request.h"
#include "engine/kv/store/page_supply.h"

namespace kvtwin {

class DroppedSlots {
 public:
  // All must outlive it. `requests` by RequestIndex.
  DroppedSlots(KvContext* context, PrefixIndex* index, PageSupply* supply, HeldKv* held,
               std::vector<PagedRequest>* requests)
      : context_(*context),
        compressions_(&context->retention),
        index_(*index),
        supply_(*supply),
        held_(*held),
        requests_(*requests) {}

  void open(RequestIndex request, const RequestReady& event);
  // The request holds a cached prefix: takes over what earlier requests have dropped of it.
  void begin(RequestIndex request);
  void end(RequestIndex request);
  // The request is swapped out: removes the positions without a page from its pages; swap_in() restores them.
  // REQUIRES: it does not await an outcome, and shares no prefix.
  void swap_out(RequestIndex request);
  void swap_in(RequestIndex request);
  bool awaits(RequestIndex request) const { return rows_[request].compression.answers > 0; }

  uint32_t tokens(RequestIndex request) const { return rows_[request].tokens; }  // dropped
  uint32_t slots(RequestIndex request) const { return rows_[request].slots; }    // positions without a page
  std::span<const uint16_t> by_page(RequestIndex request) const { return rows_[request].by_page; }

  // KvManager.
  void write_entry(RequestIndex request, uint32_t entry, Launch* launch);
  uint32_t coalescible_steps(const Launch& launch) const;
  HeldEntries held_by(const Launch& launch) const;
  void answered(const StepDone& event, const Launch& launch);
  void check_invariants(RequestIndex request) const;

 private:
  struct Row {
    CompressionState compression;
    bool holds = false;             // the request runs
    uint32_t tokens = 0;            // dropped tokens
    uint32_t soon = 0;              // the same after the backend's answer
    uint32_t slots = 0;             // page positions that no longer have a page
    std::vector<uint16_t> by_page;  // dropped tokens by page position; may be shorter
  };
  uint32_t longest(const Row& row, uint32_t tokens) const;
  void apply(RequestIndex request, const Compression& compression, const CompressionOutcome& retained);
  void drop_page(RequestIndex request, uint32_t position);

  KvContext& context_;
  const Compressions compressions_;
  PrefixIndex& index_;
  PageSupply& supply_;
  HeldKv& held_;
  std::vector<PagedRequest>& requests_;
  std::vector<Row> rows_;  // by RequestIndex
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_MANAGERS_DROPPED_SLOTS_H_
