// MixedPrecisionEntries tracks the slot of each KV entry of a request, where KV is in int2 and int4 pages by
// tag (TriAxialKV, docs/design/methods/triaxialkv.md#serving). The policy decides the bits of KV entries and
// the pages (engine/kv/store/mixed_precision_pool.h); the slots follow and are computed here, for every
// engine that computes. It holds no values.
//
//   * 2-bit KV entries wait until they fill an int2 page, or until the prompt ends.
//   * Tokens of a chunk are placed after its attention; a decoded token before it, in an int4 page.
//   * KV entries that age move from int4 pages to an int2 page, before all other work of a step.
//   * Pages are copied whole between tiers. A request that was swapped in fills its int4 page further.

#ifndef KVTWIN_ENGINE_COMMON_MIXED_PRECISION_ENTRIES_H_
#define KVTWIN_ENGINE_COMMON_MIXED_PRECISION_ENTRIES_H_

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/base/commands.h"

namespace kvtwin::cpu {

class MixedPrecisionEntries {
 public:
  // The slot of a KV entry. Pages from `pages_gpu` on are waiting pages, one per request (waiting_page), in
  // which KV entries wait.
  struct Place {
    uint32_t page = 0;
    uint32_t slot = 0;
  };
  // What a step does with one KV entry, or with a waiting page. Actions are in order.
  struct Action {
    enum class Kind : uint8_t {
      kStage,  // row -> slot of the waiting page
      kPut,    // row -> int4
      kMove,   // slot `row` of the waiting page -> int4
      kPack,   // the whole waiting page -> an int2 page
    } kind{};
    uint32_t row = 0;   // row of the step; kMove: slot of the waiting page
    PageId page{};      // the target; not set for kStage
    uint32_t slot = 0;  // of the target page; kStage: of the waiting page
    // Of the KV entry, in its request; kPack: index of its KV entries' positions in RequestPart::packed.
    uint32_t position = 0;
  };
  // The placements of one entry of a step.
  struct RequestPart {
    bool chunk = false;
    uint32_t row = 0, tokens = 0, context = 0;
    uint32_t waiting_page = 0;
    std::vector<Place> history;  // by position: KV entries to read; a decode's own KV entry is the last
    std::vector<Action> actions;
    std::vector<uint32_t> packed;  // positions of packed KV entries, page after page, by slot
  };
  // One int2 page that is filled from int4 pages.
  struct Aged {
    PageId target{};
    std::vector<Place> from;  // by slot of `target`
  };

  // Pages [0, pages_int2) are int2, those up to pages_gpu int4; pages on the host are copies of either.
  MixedPrecisionEntries(uint32_t page_tokens, uint32_t pages_int2, uint32_t pages_gpu)
      : page_tokens_(page_tokens), pages_int2_(pages_int2), pages_gpu_(pages_gpu), pages_(pages_gpu) {}

  // To be called at the start of a step, before place().
  std::vector<Aged> age(std::span<const Requantisation> requantisations);
  // Places the entries of single step launch.step + offset. *taken: pages that receive their first KV entry.
  void place(const LaunchStep& launch, uint32_t offset, std::span<const PlanEntry> entries,
             std::vector<RequestPart>* request_parts, std::vector<PageId>* taken);
  void notify(const Command& command);

  bool is_int2(uint32_t page) const { return page < pages_int2_; }
  // Number of waiting pages so far; they are numbered from pages_gpu on.
  uint32_t waiting_pages() const { return waiting_made_; }
  // By position.
  std::span<const Place> places(RequestId request) const { return requests_.at(request).places; }
  // Positions of waiting KV entries, by slot of the request's waiting page.
  std::span<const uint32_t> waiting(RequestId request) const { return requests_.at(request).waiting; }

 private:
  struct Request {
    std::vector<Place> places;
    std::vector<uint32_t> waiting;
    uint32_t waiting_page = 0;
    PageId tail{};         // the int4 page being filled
    uint32_t in_tail = 0;  // KV entries in it; 0: there is none, or it is full
  };
  // The pages allocated to an entry in this step, taken one by one.
  struct Allocations {
    std::vector<PageId> pages;
    size_t next = 0;
    std::vector<PageId>* taken = nullptr;
  };

  void reuse(const PlanEntry& entry, std::span<const PageId> pages);
  std::vector<uint32_t>& slots_of(PageId page);
  uint32_t take_waiting_page();
  void place_rows(const LaunchStep& launch, uint32_t index, const PlanEntry& entry, Allocations* allocations,
                  Request* request, RequestPart* request_part);
  void put_4(uint32_t position, Allocations* allocations, Request* request, Action action,
             RequestPart* request_part);
  void place_waiting(Allocations* allocations, Request* request, RequestPart* request_part);
  PageId take(Allocations* allocations);

  const uint32_t page_tokens_, pages_int2_, pages_gpu_;
  std::map<RequestId, Request> requests_;
  std::vector<std::vector<uint32_t>> pages_;  // by page, on the host too: positions, by slot
  std::vector<uint32_t> waiting_free_;
  uint32_t waiting_made_ = 0;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_MIXED_PRECISION_ENTRIES_H_
