// Where the pages of a request lie that keeps only some of them on the gpu
// (engine/scheduler/core_resident.cc).
//
// A request's first arena() gpu pages are slots. Page p of its context lies, in every layer and KV head,
//   while all its pages fit:  in slot p
//   beyond that:              sinks in slots [0, S); the last W pages in a ring of slots [arena - W, arena):
//                             a page that leaves the window is overwritten, and comes back only if chosen;
//                             slots [S, arena - W) hold what each layer and KV head chose, or keeps.
// Gpu pages behind the slots stand for what else stays there (resident_fraction_q32): dense layers,
// summaries, factors; this engine keeps those in memory of its own.

#ifndef KVTWIN_ENGINE_COMMON_RETRIEVAL_RESIDENT_REQUEST_H_
#define KVTWIN_ENGINE_COMMON_RETRIEVAL_RESIDENT_REQUEST_H_

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/commands.h"
#include "engine/common/retrieval/partial_keys.h"
#include "engine/common/retrieval/prefix_rows.h"
#include "engine/common/retrieval/shadow_keys.h"
#include "engine/methods/retrieval_spec.h"
#include "kernels/common/kv_pages.h"

namespace kvtwin::cpu {

// All in pages.
struct ResidentShape {
  ResidentShape(const RetrievalSpec& spec, uint32_t page_tokens)
      : sinks(spec.sink_tokens / page_tokens),
        window(spec.window_tokens / page_tokens),
        selectable(selectable_pages(spec, page_tokens)),
        extra(spec.extra_tokens / page_tokens),
        slots(resident_pages(spec, page_tokens)) {}

  // Of a page that everyone holds: a sink, one of the window, or any while all fit.
  uint32_t slot_of(uint32_t page) const {
    const uint32_t ring = slots - window;
    return page < ring ? page : ring + (page - ring) % window;
  }

  uint32_t sinks, window, selectable, extra, slots;
};

// What one layer's KV head holds in the slots between sinks and window.
struct HeadResidentPages {
  std::vector<uint32_t> slots;        // that can be overwritten
  std::vector<uint32_t> held;         // held[i]: the page in slots[i]
  std::vector<uint32_t> extra_slots;  // whose pages stay, whatever the query
  std::vector<uint32_t> extra;        // those pages, ascending
};

struct ResidentLayer {
  std::vector<float> q_before;           // [query_heads][head_dim] of the row before, rotated
  std::vector<HeadResidentPages> heads;  // empty until the request outgrows its resident pages
  bool chosen = false;                   // a step has chosen pages
  // Of methods that have them.
  std::unique_ptr<ShadowKeys> shadow;
  std::unique_ptr<PartialKeys> partial;
  std::vector<std::vector<uint32_t>> tokens;  // InfiniGen: positions that the step at hand reads, by head
};

// What a request begins with and another one computed: page i of it is at homes[i], and what is read of it
// has been copied to gpu page pages[i]. What dense layers have of it is where it was.
struct ResidentPrefix {
  std::span<const PageId> host_copies, pages;
};
// REQUIRES: the call it names has resident pages.
ResidentPrefix resident_prefix(const PrefixHit& prefix_hit, uint32_t pages_gpu);

struct ResidentRequest {
  // `resident_too`: dense layers have pages of their own.
  void begin_with(const ResidentPrefix& prefix, uint32_t pages_gpu, uint32_t page_tokens, bool resident_too);
  // Factors of layers from `layer` on, of all that is at home, in the order in which its rows came.
  void add_factors(const PrefixRows& rows, uint32_t layer, uint32_t page_tokens);

  std::vector<kernels::ReadRun> pages;     // gpu pages, whole: by position, then the resident pages'
  std::vector<kernels::ReadRun> resident;  // numbers of dense layers' pages, by position
  std::vector<uint32_t> host_copies;       // host pages, by position
  uint32_t dropped = 0;      // KV entries that each head has dropped: KV entry i is the i-th that is left
  bool in_resident = false;  // its prompt is complete
  bool preempted = false;    // nothing that lies behind this step may be written
  std::vector<ResidentLayer> layers;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_RETRIEVAL_RESIDENT_REQUEST_H_
