// The slots of a request's resident pages (engine/kv/managers/resident_kv_manager.cc).
//
// The first R = resident_pages() GPU pages of a request are slots. Page p of its context is, in every layer
// and KV head,
//   while all its pages fit:  in slot p;
//   beyond that:              sinks in slots [0, S); the last W pages in a ring of slots [R - W, R): a page
//                             that leaves the window is overwritten, and returns only if it is selected;
//                             slots [S, R - W) hold the pages that each layer and KV head selected or
//                             retains.
// GPU pages after the slots account for the other memory that stays there (resident_fraction_q32): dense
// layers, summaries, factors. This engine keeps those in separate memory.

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

// The parts of the resident pages, in pages.
struct ResidentShape {
  ResidentShape(const RetrievalSpec& spec, uint32_t page_tokens)
      : sinks(spec.sink_tokens / page_tokens),
        window(spec.window_tokens / page_tokens),
        selectable(selectable_pages(spec, page_tokens)),
        extra(spec.extra_tokens / page_tokens),
        slots(resident_pages(spec, page_tokens)) {}

  // The slot of a page that all heads hold: a sink, a page of the window, or any page while all fit.
  uint32_t slot_of(uint32_t page) const {
    const uint32_t ring = slots - window;
    return page < ring ? page : ring + (page - ring) % window;
  }

  uint32_t sinks, window, selectable, extra, slots;
};

// The pages that one layer's KV head holds in the slots between sinks and window.
struct HeadResidentPages {
  std::vector<uint32_t> slots;        // slots that can be overwritten
  std::vector<uint32_t> held;         // held[i]: the page in slots[i]
  std::vector<uint32_t> extra_slots;  // slots whose pages stay, whatever the query
  std::vector<uint32_t> extra;        // those pages, ascending
};

struct ResidentLayer {
  std::vector<float> q_before;           // [query_heads][head_dim] of the token before, rotated
  std::vector<HeadResidentPages> heads;  // empty until the request outgrows its resident pages
  bool chosen = false;                   // a step has selected pages
  // Set only for methods that use them.
  std::unique_ptr<ShadowKeys> shadow;
  std::unique_ptr<PartialKeys> partial;
  std::vector<std::vector<uint32_t>> tokens;  // InfiniGen: positions that this step reads, by head
};

// A prefix that another request computed: page i is in host page host_copies[i], and its content has been
// copied to GPU page pages[i]. The pages of dense layers are used in place.
struct ResidentPrefix {
  std::span<const PageId> host_copies, pages;
};
// REQUIRES: the request of the prefix hit has resident pages.
ResidentPrefix resident_prefix(const PrefixHit& prefix_hit, uint32_t pages_gpu);

struct ResidentRequest {
  // Starts with `prefix`. `resident_too`: dense layers have their own pages.
  void begin_with(const ResidentPrefix& prefix, uint32_t pages_gpu, uint32_t page_tokens, bool resident_too);
  // Adds the tokens of all host pages to the factors of layers from `layer` on, in the original order.
  void add_factors(const PrefixRows& rows, uint32_t layer, uint32_t page_tokens);

  // ShadowKV: factorises the keys of every layer, for the steps to come.
  void factorise();

  std::vector<kernels::ReadRun> pages;     // whole GPU pages: by position, then the resident pages
  std::vector<kernels::ReadRun> resident;  // pages of dense layers, by position
  std::vector<uint32_t> host_copies;       // host pages, by position
  uint32_t dropped = 0;      // KV entries that each head has dropped: KV entry i is the i-th retained one
  bool in_resident = false;  // its prompt is complete
  bool preempted = false;    // later steps must not write its pages
  std::vector<ResidentLayer> layers;
};

}  // namespace kvtwin::cpu

#endif  // KVTWIN_ENGINE_COMMON_RETRIEVAL_RESIDENT_REQUEST_H_
