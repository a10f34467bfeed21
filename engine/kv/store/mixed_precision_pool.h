// MixedPrecisionPool manages the int2 and int4 pages of one tier, in one address space, and records which KV
// entries are in which page (TriAxialKV, docs/design/methods/triaxialkv.md#serving).
//
//   Pages [0, pages_2) are int2, [pages_2, pages_2 + pages_4) int4: the page number implies the format.
//   Both hold page_tokens KV entries. The keys of an int2 page share scales, so it is written whole.
//
// A prompt KV entry whose tag has 2 bits waits until page_tokens of them have arrived, in order of position,
// whatever their tags and gaps. At the end of the prompt the remaining ones (at most page_tokens - 1) become
// int4, and so does every decoded KV entry. 2-bit KV entries spill to int4 when no int2 page is available
// (5/3 of the memory). 4-bit KV entries become int2 only by ageing.
//
// A page can therefore hold KV entries of distant positions, and a prefix cannot share pages. It shares
// *logical pages*: logical page i of a request is its positions [i * page_tokens, (i+1) * page_tokens). The
// prefix index stores logical pages where it stores pages otherwise; a page lives as long as a logical page
// has KV entries in it. A logical page can be shared once none of its KV entries waits. Only the request that
// allocated a page adds KV entries to it, so a request that reuses a logical page starts a new int4 page.
//
// Ageing: when a prefix is reused, its int4 KV entries whose tag has 2 bits by now move to int2 pages, as far
// as they fill whole ones. Their logical pages then extend over more pages, and int4 pages are left with gaps
// that are not refilled. A page without KV entries is freed.
//
// A page is *evictable* if logical pages have KV entries in it and no request needs any of them. All
// arithmetic is on integers. An operation takes O(logical pages, groups and runs touched).
//
// With a host tier (mixed_precision_copies.cc), the copy of a cached logical page is a set of host pages,
// each a whole page of either format. Copies of other logical pages in the same page share them, unless KV
// entries were added to it since. When logical pages are loaded, so are the host pages of their copies, each
// once.
//
// Invariants, verified by check_invariants():
//   (1) a page is owned exactly while some logical page has KV entries in it (X-3, per pool);
//   (2) logical pages have at most page_tokens KV entries in a page;
//   (3) pages_evictable() = owned pages of which no logical page is held; pages_spare() = free ones and those
//       of these all whose logical pages have copies;
//   (4) a host page is owned exactly while some copy has KV entries in it; pages_host() = those that arrived.

#ifndef KVTWIN_ENGINE_KV_STORE_MIXED_PRECISION_POOL_H_
#define KVTWIN_ENGINE_KV_STORE_MIXED_PRECISION_POOL_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/base/tags.h"
#include "engine/kv/page_pool.h"
#include "engine/kv/precision_spec.h"
#include "engine/kv/store/page_tiers.h"
#include "engine/kv/store/prefix_index.h"

namespace kvtwin {

struct MixedPrecisionPoolSize {
  uint32_t pages_2 = 0;
  uint32_t pages_4 = 0;
};

// Divides `bytes` so that KV entries are n2 : n4 = (4 - B) : (B - 2), B = 2 + bits_above_two / 2^32, rounded
// down. page_bytes_*: one page of each format, in all the layers and heads that share it. REQUIRES:
// bits_above_two <= 2 * 2^32; page bytes > 0.
MixedPrecisionPoolSize split_mixed_precision_pool(uint64_t bytes, uint64_t bits_above_two,
                                                  uint64_t page_bytes_2, uint64_t page_bytes_4);

// Pages of each format.
struct MixedPrecisionDemand {
  uint32_t pages_2 = 0;
  uint32_t pages_4 = 0;
};

// The host tier, for at most `count` copies of logical pages, whose numbers begin with `first`.
struct MixedPrecisionHost {
  const PageTiers* tiers = nullptr;  // must outlive the pool
  PageId first{};
  uint32_t count = 0;
};

// Appends the bits of a prompt's KV entries, equal neighbours joined. Tokens beyond `roles` have 4 bits.
void bits_of(std::span<const RoleRun> roles, uint32_t last_turn, uint32_t prompt_tokens,
             const PrecisionSpec& spec, std::vector<BitRun>* bits);

class MixedPrecisionPool final : public HoldWatch, public GpuRoom {
  struct Link {
    PageId page{};
    uint32_t kv_entries = 0;
  };
  // A logical page has at most 7 pages when it is written: 32 two-bit KV entries are in at most 2 int2 pages;
  // KV entries that spill or are flushed join int4 pages in at most two places, one of them between the
  // logical page's own 4-bit KV entries. Each ageing adds at most two, and skips logical pages without room
  // for them.
  static constexpr uint32_t kLinks = 12;
  struct LogicalPage {
    std::array<Link, kLinks> links;
    uint32_t count = 0;
    bool held = false;
    PageId copy = kNoPage;   // its number, once it is on the host
    std::vector<PageId> at;  // the page of each of its KV entries, if ages_; kNoPage: not placed yet
  };

 public:
  // The KV entries that one request has written or will write.
  struct Request {
    std::vector<BitRun> bits;  // of its prompt
    uint32_t prompt = 0;
    uint32_t at = 0;                // positions before it are placed or wait
    size_t run = 0;                 // index in `bits` of the run that contains position `at`
    uint32_t used = 0;              // KV entries of that run before `at`
    std::vector<uint32_t> waiting;  // positions of 2-bit KV entries that wait, unquantised, in staging
    std::vector<PageId> pages_4;    // its own int4 pages, with entries_4 KV entries in order of arrival
    uint32_t entries_4 = 0;
    uint32_t pages_2 = 0;  // its own int2 pages, all full
    uint32_t spilled = 0;  // 2-bit KV entries in int4 pages for lack of int2 pages
    uint32_t reused_pages = 0, reused_entries_2 = 0;
    uint32_t reused_in_part = 0;  // reused int4 pages that also hold gaps or KV entries that it did not reuse

    uint32_t pages() const { return reused_pages + pages_2 + static_cast<uint32_t>(pages_4.size()); }
  };
  // Where the KV entries of a request are while it is swapped out: pages are indices in a list of copies.
  struct SwappedOut {
    std::vector<LogicalPage> logical_pages;
    std::vector<bool> four;  // by copy: whether it is of an int4 page
    uint32_t copies(bool of_four) const {
      return static_cast<uint32_t>(std::count(four.begin(), four.end(), of_four));
    }
  };
  // A request's own logical pages: logical page `first` + i is ids[i].
  struct LogicalPages {
    std::span<const PageId> ids;
    uint32_t first = 0;
  };

  // `ages`: records the page of every single KV entry, as age() requires.
  MixedPrecisionPool(MixedPrecisionPoolSize size, uint32_t page_tokens, bool ages = false,
                     const MixedPrecisionHost& host = {});

  // The request starts at position `tokens`; `reused` are the logical pages before it. Appends the pages in
  // which they have KV entries to *pages, logical page by logical page, each list ended by kNoPage
  // (PrefixHit, commands.h).
  void begin(uint32_t tokens, std::span<const PageId> reused, Request* request, std::vector<PageId>* pages);
  // Clears all but the prompt's bits. The caller releases the request's logical pages.
  static void reset(Request* request);

  // Pages for the request's next `tokens` KV entries, if pages_2 int2 pages are available.
  MixedPrecisionDemand demand(const Request& request, uint32_t tokens, uint32_t pages_2) const {
    return demand_of(request, tokens, pages_2, page_tokens_);
  }
  static MixedPrecisionDemand demand_of(const Request& request, uint32_t tokens, uint32_t pages_2,
                                        uint32_t page_tokens);
  // Places these KV entries: the first pages_2 groups in int2 pages; further groups spill. Appends pages in
  // the order in which KV entries need them, and the bits of the KV entries. REQUIRES: demand() is free.
  void append(uint32_t tokens, uint32_t pages_2, const LogicalPages& logical_pages, Request* request,
              std::vector<PageId>* taken, std::vector<BitRun>* bits);
  // Allocates the page of a decoded KV entry before it is placed.
  PageId take_ahead(Request* request);
  // Frees the request's newest int4 page and removes the decoded KV entries in it: an exact undo.
  void roll_back_page(const LogicalPages& logical_pages, Request* request);
  // Removes the decoded KV entries from position `tokens` on.
  void truncate(uint32_t tokens, const LogicalPages& logical_pages, Request* request);

  // Requantises KV entries of the prefix that the request is about to reuse: those that have 2 bits by its
  // `bits`, are in int4 pages, and belong to logical pages that no other request holds (alone[i]). Fills at
  // most pages_2 int2 pages, which must be free, and frees the int4 pages that become empty. Appends to
  // *moves. To be called before begin().
  void age(const Request& request, std::span<const PageId> prefix, std::span<const uint8_t> alone,
           uint32_t pages_2, std::vector<Requantisation>* moves);

  // The pages in which `logical_pages` have KV entries: logical page by logical page, each list ended by
  // kNoPage (PrefixHit, commands.h).
  void list_pages(std::span<const PageId> logical_pages, std::vector<PageId>* pages) const;
  // Frees the request's newest int4 page if no KV entry is in it.
  void free_unused(Request* request);
  // The request, whose logical pages these are, gives them up: appends the pages to be copied to *pages.
  // REQUIRES: none of its KV entries waits.
  void swap_out(std::span<const PageId> logical_pages, Request* request, std::vector<PageId>* pages,
                SwappedOut* out);
  // Appends new pages for the copies to *pages. REQUIRES: so many are free; the logical pages are held, and
  // have no KV entries.
  void swap_in(const SwappedOut& from, std::span<const PageId> logical_pages, Request* request,
               std::vector<PageId>* pages);

  // The logical pages are now needed by a request or a pin (held), or no longer.
  void hold(std::span<const PageId> logical_pages, bool held) override;
  // The logical page no longer exists.
  void freed(PageId logical_page) override;

  // Copies on the host.
  PagePool* copies() const { return copies_.get(); }  // their numbers; null: there is no host tier
  bool has_room(PageId logical_page) const override;
  void copying(PageId logical_page, PageId copy) override;
  void copy_freed(PageId copy) override;
  void resolve(std::vector<PageId>* source, std::vector<PageId>* target) override;
  void arrived(std::span<const PageId> numbers, std::span<const PageId> pages) override;
  // Pages that a load of these copies takes, and the load: the logical pages, which are held and have no KV
  // entries, get new ones. Appends what is to be copied. REQUIRES: so many are free.
  MixedPrecisionDemand demand_of_load(std::span<const PageId> copies);
  void load(std::span<const PageId> copies, std::span<const PageId> logical_pages,
            std::vector<PageId>* source, std::vector<PageId>* target);
  uint32_t pages_host() const { return pages_host_; }
  uint32_t pages_spare() const override {
    return pool_2_.pages_free() + pool_4_.pages_free() + evictable_copied_;
  }
  bool covers(std::span<const uint64_t> reserved) const override {
    return reserved[0] <= uint64_t{pool_2_.pages_free()} + evictable_[0] &&
           reserved[1] <= uint64_t{pool_4_.pages_free()} + evictable_[1];
  }

  bool is_int4(PageId page) const { return raw(page) >= size_.pages_2; }
  uint32_t page_tokens() const { return page_tokens_; }
  uint32_t pages_total(bool four) const { return pool(four).pages_total(); }
  uint32_t pages_free(bool four) const { return pool(four).pages_free(); }
  uint32_t pages_evictable(bool four) const { return evictable_[four]; }
  void check_invariants(uint64_t logical_pages_held) const;

 private:
  struct Page {
    uint32_t logical_pages = 0;     // logical pages that have KV entries here
    uint32_t held = 0, copied = 0;  // of these, held ones and those with a copy
    uint64_t version = 0;           // changes when KV entries are added
    PageId host = kNoPage;          // the newest host page that it was copied to
  };
  struct HostPage {
    uint32_t copies = 0;  // that have KV entries here
    PageId source{};      // the page that it was copied from, of that version
    uint64_t version = 0;
    bool fresh = false;  // the offload that copies it is about to start
    bool there = false;
    uint64_t seen = 0;  // the last load that used it
    PageId loaded{};    // by that load
  };

  const PagePool& pool(bool four) const { return four ? pool_4_ : pool_2_; }
  bool evictable(PageId page) const {
    return pages_[raw(page)].logical_pages > 0 && pages_[raw(page)].held == 0;
  }
  template <typename Change>
  void change(PageId page, Change change);
  HostPage& host_page(PageId page) { return host_pages_[raw(page) - pages_.size()]; }
  LogicalPage& copy_at(PageId copy) { return copied_[raw(copy) - raw(host_.first)]; }
  // The host page that has all of a page; kNoPage: there is none.
  PageId current_copy(PageId page) const;
  PageId take_copy(PageId page);
  PageId take_loaded(PageId host_page, std::vector<PageId>* source, std::vector<PageId>* target);
  void set_copy(PageId logical_page, PageId copy);
  void check_copies() const;
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
  std::vector<LogicalPage> logical_pages_;  // by number
  std::vector<Page> pages_;
  uint32_t evictable_[2] = {0, 0}, evictable_copied_ = 0;
  uint64_t versions_ = 0;
  std::vector<uint64_t> seen_;          // by page: the last begin() that used it
  std::vector<uint32_t> seen_entries_;  // by page: KV entries of it that this begin() reused
  uint64_t begun_ = 0;
  std::vector<uint32_t> due_;  // scratch

  const MixedPrecisionHost host_;
  std::unique_ptr<PagePool> copies_;
  std::vector<LogicalPage> copied_;   // by copy: its KV entries are in host pages; `copy` is the logical page
  std::vector<HostPage> host_pages_;  // by page, from the first on the host
  std::vector<PageId> fresh_;
  uint32_t pages_host_ = 0;
};

// Changes the counts of a page, and those that depend on them.
template <typename Change>
void MixedPrecisionPool::change(PageId page, Change change) {
  Page& p = pages_[raw(page)];
  const auto copied = [&] { return evictable(page) && p.copied == p.logical_pages ? 1u : 0u; };
  evictable_[is_int4(page)] -= evictable(page) ? 1 : 0;
  evictable_copied_ -= copied();
  change(&p);
  evictable_[is_int4(page)] += evictable(page) ? 1 : 0;
  evictable_copied_ += copied();
}

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_KV_STORE_MIXED_PRECISION_POOL_H_
