// DualPool: int2 and int4 pages of one tier in one address space, and which of them hold the cells of which
// positions (TriAxialKV, METHODS 4.6).
//
//   pages [0, pages_2) are int2, [pages_2, pages_2 + pages_4) int4: a page's format is its number.
//   Both hold page_tokens cells; keys of an int2 page share scales, so it is written whole.
//
// A prompt cell whose tag has 2 bits waits until page_tokens of them have come together, in order of
// position, whatever their tags and gaps. At the end of the prompt the ones still waiting (at most
// page_tokens - 1) become int4, and so does every decoded cell. 2-bit cells spill to int4 when no int2 page
// is to be had (5/3 of the memory); 4-bit cells never become int2.
//
// So a page holds cells of positions far apart, and what a prefix shares is not pages. *Frames* are: frame i
// of a call is its positions [i * page_tokens, (i+1) * page_tokens). The prefix index keeps frames as it
// keeps pages elsewhere; a page lives as long as a frame has cells in it. A frame can be shared once none of
// its cells waits. Only the call that took a page adds cells to it, so who adopts a frame starts a fresh int4
// page.
//
// Ageing: when a prefix is adopted again, its int4 cells that would get 2 bits by now move to int2 pages of
// their own, as far as they fill some. Frames then lie in more pages, and int4 pages are left with gaps,
// which nobody fills; a page that has nothing left is free.
//
// A page is *loose* when frames have cells in it and no call needs any of them: it can be had by evicting.
// Integers only; O(frames, groups and runs touched) per operation.
//
// Invariants, verified by check_invariants():
//   (1) a page is owned exactly while some frame has cells in it (X-3, per pool);
//   (2) frames' cells in a page are at most page_tokens;
//   (3) pages_loose() = owned pages none of whose frames is held.

#ifndef KVTWIN_ENGINE_POLICY_DUAL_POOL_H_
#define KVTWIN_ENGINE_POLICY_DUAL_POOL_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/policy/page_pool.h"
#include "engine/policy/precision_spec.h"
#include "engine/policy/prefix_index.h"
#include "engine/policy/tags.h"

namespace kvtwin {

struct DualPoolSize {
  uint32_t pages_2 = 0;
  uint32_t pages_4 = 0;
};

// Cuts `bytes` so that cells are n2 : n4 = (4 - B) : (B - 2), B = 2 + bits_above_two / 2^32, rounded down.
// page_bytes_*: one page of each format in all the layers and heads that share it.
// REQUIRES: bits_above_two <= 2 * 2^32; page bytes > 0.
DualPoolSize split_dual_pool(uint64_t bytes, uint64_t bits_above_two, uint64_t page_bytes_2,
                             uint64_t page_bytes_4);

// Pages of each format.
struct DualDemand {
  uint32_t pages_2 = 0;
  uint32_t pages_4 = 0;
};
// For `cells_2` and `cells_4` prompt cells once all are written, with int2 pages for all that fill one.
DualDemand dual_demand(uint32_t cells_2, uint32_t cells_4, uint32_t page_tokens);

// The bits of a prompt's cells, neighbours joined; what `roles` leave out of prompt_tokens has 4.
void bits_of(std::span<const RoleRun> roles, uint32_t last_turn, uint32_t prompt_tokens,
             const PrecisionSpec& spec, std::vector<BitRun>* bits);

class DualPool final : public HoldWatch {
 public:
  // What one call has written or will have.
  struct Call {
    std::vector<BitRun> bits;  // of its prompt
    uint32_t prompt = 0;
    uint32_t at = 0;                // positions before this have a place, or wait
    size_t run = 0;                 // of `bits`: where position `at` is
    uint32_t used = 0;              // cells of that run before it
    std::vector<uint32_t> waiting;  // positions of 2-bit cells, exact in staging
    std::vector<PageId> pages_4;    // its own; cells_4 cells, in order of arrival
    uint32_t cells_4 = 0;
    uint32_t pages_2 = 0;  // its own, full
    uint32_t spilled = 0;  // 2-bit cells in int4 pages for want of int2 ones
    uint32_t adopted_pages = 0, adopted_cells_2 = 0;
    uint32_t adopted_in_part = 0;  // int4 pages that also hold what it did not adopt, or nothing any more

    uint32_t pages() const { return adopted_pages + pages_2 + static_cast<uint32_t>(pages_4.size()); }
  };
  // A call's own frames: frame `first` + i is ids[i].
  struct Frames {
    std::span<const PageId> ids;
    uint32_t first = 0;
  };

  // `ages`: where single cells lie is known, so that age() can be asked for.
  DualPool(DualPoolSize size, uint32_t page_tokens, bool ages = false);

  // The call starts at position `tokens`; `adopted` are the frames before it. Appends the pages in which
  // they have cells to *pages: frame after frame, each closed by kNoPage (Adoption, commands.h).
  void begin(uint32_t tokens, std::span<const PageId> adopted, Call* call, std::vector<PageId>* pages);
  // Forgets everything but the prompt's bits: the call's frames are let go elsewhere.
  static void reset(Call* call);

  // Pages that the call's next `tokens` cells take, where pages_2 int2 pages are to be had.
  DualDemand demand(const Call& call, uint32_t tokens, uint32_t pages_2) const {
    return demand_of(call, tokens, pages_2, page_tokens_);
  }
  static DualDemand demand_of(const Call& call, uint32_t tokens, uint32_t pages_2, uint32_t page_tokens);
  // Gives them their places: the first pages_2 groups in int2 pages, others spill. Appends pages in the order
  // in which cells need them, and what the cells are. REQUIRES: demand() is free.
  void append(uint32_t tokens, uint32_t pages_2, const Frames& frames, Call* call, std::vector<PageId>* taken,
              std::vector<BitRun>* bits);
  // The page that a decoded cell will need, ahead of it.
  PageId take_ahead(Call* call);
  // Takes the call's newest int4 page back, with the decoded cells in it, as if it had never been.
  void give_back_page(const Frames& frames, Call* call);
  // Takes decoded cells from position `tokens` on back.
  void truncate(uint32_t tokens, const Frames& frames, Call* call);

  // Requantises cells of the prefix that the call is about to adopt: those that get 2 bits by its `bits`, lie
  // in int4 pages, and in frames that nobody else holds (alone[i]). At most pages_2 int2 pages, which must be
  // free, are taken, and filled; the int4 pages of which nothing is left go. Appends to *moves. Before
  // begin().
  void age(const Call& call, std::span<const PageId> prefix, std::span<const uint8_t> alone, uint32_t pages_2,
           std::vector<CellAgeing>* moves);

  // A call or a lease needs the frames, or none does any more.
  void hold(std::span<const PageId> frames, bool held) override;
  // The frame is gone.
  void release(PageId frame);

  bool is_int4(PageId page) const { return raw(page) >= size_.pages_2; }
  uint32_t page_tokens() const { return page_tokens_; }
  uint32_t pages_total(bool four) const { return pool(four).pages_total(); }
  uint32_t pages_free(bool four) const { return pool(four).pages_free(); }
  uint32_t pages_loose(bool four) const { return loose_[four]; }
  void check_invariants(uint64_t frames_held) const;

 private:
  struct Link {
    PageId page{};
    uint32_t cells = 0;
  };
  // No more than 7 pages when written: 32 two-bit cells lie in at most 2 int2 pages; cells that spill or are
  // flushed join int4 in at most two pieces, one of them between the frame's own 4-bit cells. Each ageing
  // adds two at most, and leaves alone what has no room for them.
  static constexpr uint32_t kLinks = 12;
  struct Frame {
    std::array<Link, kLinks> links;
    uint32_t count = 0;
    bool held = false;
    std::vector<PageId> at;  // where its cells are, if ages_; kNoPage: nowhere yet
  };
  struct Page {
    uint32_t frames = 0;  // that have cells here
    uint32_t held = 0;    // of them
  };

  const PagePool& pool(bool four) const { return four ? pool_4_ : pool_2_; }
  bool loose(PageId page) const { return pages_[raw(page)].frames > 0 && pages_[raw(page)].held == 0; }
  void link(PageId frame, PageId page, uint32_t cells);
  void unlink(PageId frame, PageId page, uint32_t cells);
  void drop_link(PageId frame, uint32_t index);
  void place(PageId frame, uint32_t offset, uint32_t count, PageId page);
  bool ages_now(const Frame& frame, uint32_t offset) const {
    return frame.count + 2 <= kLinks && !frame.at.empty() && frame.at[offset] != kNoPage &&
           is_int4(frame.at[offset]);
  }
  void put_4(uint32_t position, uint32_t count, const Frames& frames, Call* call, std::vector<PageId>* taken);
  PageId frame_of(uint32_t position, const Frames& frames) const;
  template <typename Cells, typename Flush>
  static void walk(const Call& call, uint32_t tokens, Cells cells, Flush flush);

  const DualPoolSize size_;
  const uint32_t page_tokens_;
  const bool ages_;
  PagePool pool_2_, pool_4_;
  std::vector<Frame> frames_;  // as many as there ever were
  std::vector<Page> pages_;
  uint32_t loose_[2] = {0, 0};
  std::vector<uint64_t> seen_;        // by page: the begin() that saw it last
  std::vector<uint32_t> seen_cells_;  // by page: what that begin() adopted of it
  uint64_t begun_ = 0;
  std::vector<uint32_t> due_;  // scratch
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_POLICY_DUAL_POOL_H_
