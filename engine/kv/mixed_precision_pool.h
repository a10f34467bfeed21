// MixedPrecisionPool: int2 and int4 pages of one tier in one address space, and which of them hold the KV
// entries of which positions (TriAxialKV, docs/design/methods/triaxialkv.md#serving).
//
//   pages [0, pages_2) are int2, [pages_2, pages_2 + pages_4) int4: a page's format is its number.
//   Both hold page_tokens KV entries; keys of an int2 page share scales, so it is written whole.
//
// A prompt KV entry whose tag has 2 bits waits until page_tokens of them have come together, in order of
// position, whatever their tags and gaps. At the end of the prompt the ones still waiting (at most
// page_tokens - 1) become int4, and so does every decoded cell. 2-bit KV entries spill to int4 when no int2
// page is to be had (5/3 of the memory); 4-bit KV entries never become int2.
//
// So a page holds KV entries of positions far apart, and what a prefix shares is not pages. *Frames* are:
// frame i of a request is its positions [i * page_tokens, (i+1) * page_tokens). The prefix index keeps frames
// as it keeps pages elsewhere; a page lives as long as a frame has KV entries in it. A frame can be shared
// once none of its KV entries waits. Only the request that took a page adds KV entries to it, so who reuses a
// frame starts a fresh int4 page.
//
// Ageing: when a prefix is reused again, its int4 KV entries that would get 2 bits by now move to int2 pages
// of their own, as far as they fill some. Frames then lie in more pages, and int4 pages are left with gaps,
// which nobody fills; a page that has nothing left is free.
//
// A page is *loose* when frames have KV entries in it and no request needs any of them: it can be had by
// evicting. Integers only; O(frames, groups and runs touched) per operation.
//
// Invariants, verified by check_invariants():
//   (1) a page is owned exactly while some frame has KV entries in it (X-3, per pool);
//   (2) frames' KV entries in a page are at most page_tokens;
//   (3) pages_evictable() = owned pages none of whose frames is held.

#ifndef KVTWIN_ENGINE_KV_MIXED_PRECISION_POOL_H_
#define KVTWIN_ENGINE_KV_MIXED_PRECISION_POOL_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/base/tags.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/precision_spec.h"
#include "engine/kv/prefix_index.h"

namespace kvtwin {

struct MixedPrecisionPoolSize {
  uint32_t pages_2 = 0;
  uint32_t pages_4 = 0;
};

// Cuts `bytes` so that KV entries are n2 : n4 = (4 - B) : (B - 2), B = 2 + bits_above_two / 2^32, rounded
// down. page_bytes_*: one page of each format in all the layers and heads that share it. REQUIRES:
// bits_above_two <= 2 * 2^32; page bytes > 0.
MixedPrecisionPoolSize split_mixed_precision_pool(uint64_t bytes, uint64_t bits_above_two,
                                                  uint64_t page_bytes_2, uint64_t page_bytes_4);

// Pages of each format.
struct MixedPrecisionDemand {
  uint32_t pages_2 = 0;
  uint32_t pages_4 = 0;
};
// For `entries_2` and `entries_4` prompt KV entries once all are written, with int2 pages for all that fill
// one.
MixedPrecisionDemand mixed_precision_demand(uint32_t entries_2, uint32_t entries_4, uint32_t page_tokens);

// The bits of a prompt's KV entries, neighbours joined; what `roles` leave out of prompt_tokens has 4.
void bits_of(std::span<const RoleRun> roles, uint32_t last_turn, uint32_t prompt_tokens,
             const PrecisionSpec& spec, std::vector<BitRun>* bits);

class MixedPrecisionPool final : public HoldWatch {
 public:
  // What one request has written or will have.
  struct Request {
    std::vector<BitRun> bits;  // of its prompt
    uint32_t prompt = 0;
    uint32_t at = 0;                // positions before this have a place, or wait
    size_t run = 0;                 // of `bits`: where position `at` is
    uint32_t used = 0;              // KV entries of that run before it
    std::vector<uint32_t> waiting;  // positions of 2-bit KV entries, exact in staging
    std::vector<PageId> pages_4;    // its own; entries_4 KV entries, in order of arrival
    uint32_t entries_4 = 0;
    uint32_t pages_2 = 0;  // its own, full
    uint32_t spilled = 0;  // 2-bit KV entries in int4 pages for want of int2 ones
    uint32_t reused_pages = 0, reused_entries_2 = 0;
    uint32_t reused_in_part = 0;  // int4 pages that also hold what it did not reuse, or nothing any more

    uint32_t pages() const { return reused_pages + pages_2 + static_cast<uint32_t>(pages_4.size()); }
  };
  // A request's own frames: frame `first` + i is ids[i].
  struct LogicalPages {
    std::span<const PageId> ids;
    uint32_t first = 0;
  };

  // `ages`: where single KV entries lie is known, so that age() can be asked for.
  MixedPrecisionPool(MixedPrecisionPoolSize size, uint32_t page_tokens, bool ages = false);

  // The request starts at position `tokens`; `reused` are the frames before it. Appends the pages in which
  // they have KV entries to *pages: frame after frame, each closed by kNoPage (PrefixHit, commands.h).
  void begin(uint32_t tokens, std::span<const PageId> reused, Request* request, std::vector<PageId>* pages);
  // Forgets everything but the prompt's bits: the request's frames are let go elsewhere.
  static void reset(Request* request);

  // Pages that the request's next `tokens` KV entries take, where pages_2 int2 pages are to be had.
  MixedPrecisionDemand demand(const Request& request, uint32_t tokens, uint32_t pages_2) const {
    return demand_of(request, tokens, pages_2, page_tokens_);
  }
  static MixedPrecisionDemand demand_of(const Request& request, uint32_t tokens, uint32_t pages_2,
                                        uint32_t page_tokens);
  // Gives them their places: the first pages_2 groups in int2 pages, others spill. Appends pages in the order
  // in which KV entries need them, and what the KV entries are. REQUIRES: demand() is free.
  void append(uint32_t tokens, uint32_t pages_2, const LogicalPages& logical_pages, Request* request,
              std::vector<PageId>* taken, std::vector<BitRun>* bits);
  // The page that a decoded KV entry will need, ahead of it.
  PageId take_ahead(Request* request);
  // Takes the request's newest int4 page back, with the decoded KV entries in it, as if it had never been.
  void roll_back_page(const LogicalPages& logical_pages, Request* request);
  // Takes decoded KV entries from position `tokens` on back.
  void truncate(uint32_t tokens, const LogicalPages& logical_pages, Request* request);

  // Requantises KV entries of the prefix that the request is about to reuse: those that get 2 bits by its
  // `bits`, lie in int4 pages, and in frames that nobody else holds (alone[i]). At most pages_2 int2 pages,
  // which must be free, are taken, and filled; the int4 pages of which nothing is left go. Appends to *moves.
  // Before begin().
  void age(const Request& request, std::span<const PageId> prefix, std::span<const uint8_t> alone,
           uint32_t pages_2, std::vector<Requantisation>* moves);

  // A request or a pin needs the frames, or none does any more.
  void hold(std::span<const PageId> logical_pages, bool held) override;
  // The frame is gone.
  void release(PageId logical_page);

  bool is_int4(PageId page) const { return raw(page) >= size_.pages_2; }
  uint32_t page_tokens() const { return page_tokens_; }
  uint32_t pages_total(bool four) const { return pool(four).pages_total(); }
  uint32_t pages_free(bool four) const { return pool(four).pages_free(); }
  uint32_t pages_evictable(bool four) const { return evictable_[four]; }
  void check_invariants(uint64_t logical_pages_held) const;

 private:
  struct Link {
    PageId page{};
    uint32_t kv_entries = 0;
  };
  // No more than 7 pages when written: 32 two-bit KV entries lie in at most 2 int2 pages; KV entries that
  // spill or are flushed join int4 in at most two pieces, one of them between the frame's own 4-bit KV
  // entries. Each ageing adds two at most, and leaves alone what has no room for them.
  static constexpr uint32_t kLinks = 12;
  struct LogicalPage {
    std::array<Link, kLinks> links;
    uint32_t count = 0;
    bool held = false;
    std::vector<PageId> at;  // where its KV entries are, if ages_; kNoPage: nowhere yet
  };
  struct Page {
    uint32_t logical_pages = 0;  // that have KV entries here
    uint32_t held = 0;           // of them
  };

  const PagePool& pool(bool four) const { return four ? pool_4_ : pool_2_; }
  bool evictable(PageId page) const {
    return pages_[raw(page)].logical_pages > 0 && pages_[raw(page)].held == 0;
  }
  void link(PageId logical_page, PageId page, uint32_t kv_entries);
  void unlink(PageId logical_page, PageId page, uint32_t kv_entries);
  void drop_link(PageId logical_page, uint32_t index);
  void place(PageId logical_page, uint32_t offset, uint32_t count, PageId page);
  bool ages_now(const LogicalPage& logical_page, uint32_t offset) const {
    return logical_page.count + 2 <= kLinks && !logical_page.at.empty() &&
           logical_page.at[offset] != kNoPage && is_int4(logical_page.at[offset]);
  }
  void put_4(uint32_t position, uint32_t count, const LogicalPages& logical_pages, Request* request,
             std::vector<PageId>* taken);
  PageId logical_page_of(uint32_t position, const LogicalPages& logical_pages) const;
  template <typename KvEntries, typename Flush>
  static void walk(const Request& request, uint32_t tokens, KvEntries kv_entries, Flush flush);

  const MixedPrecisionPoolSize size_;
  const uint32_t page_tokens_;
  const bool ages_;
  PagePool pool_2_, pool_4_;
  std::vector<LogicalPage> logical_pages_;  // as many as there ever were
  std::vector<Page> pages_;
  uint32_t evictable_[2] = {0, 0};
  std::vector<uint64_t> seen_;          // by page: the begin() that saw it last
  std::vector<uint32_t> seen_entries_;  // by page: what that begin() reused of it
  uint64_t begun_ = 0;
  std::vector<uint32_t> due_;  // scratch
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_MIXED_PRECISION_POOL_H_
