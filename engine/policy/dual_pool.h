// DualPool: int2 and int4 pages of one tier in one address space, and how the cells of a call fill them
// (TriAxialKV, METHODS 4.6).
//
//   pages [first, first + pages_2) are int2, [first + pages_2, ...) int4: a page's format is its number.
//   Both hold page_tokens cells (32: keys of a group share scales, so an int2 page is written whole).
//
// A prompt cell whose tag has 2 bits waits until page_tokens of them have come together, in order of
// position, whatever their tags and gaps. At the end of the prompt the ones still waiting (at most
// page_tokens - 1) become int4, and so does every decoded cell.
//
// Imbalance: 2-bit cells spill to int4 when no int2 page is free (5/3 of the memory). 4-bit cells never
// become int2 silently: append_*() refuses, and the caller takes the next of these ways out:
// evict cached prefixes, reclaim_int4() (requantise by the calibrated order), preempt.
//
// Integers only; O(pages touched + role runs) per operation.
//
// Invariants, verified by check_invariants():
//   (1) every page is free or owned by one call;
//   (2) a call's pages_2 are full; its pages_4 hold exactly cells_4 = the cells of its runs_4;
//   (3) fewer than page_tokens cells wait.

#ifndef KVTWIN_ENGINE_POLICY_DUAL_POOL_H_
#define KVTWIN_ENGINE_POLICY_DUAL_POOL_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/policy/page_pool.h"
#include "engine/policy/precision_spec.h"
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

// Pages for `cells_2` and `cells_4` prompt cells once all are written: what admission must find free.
struct DualDemand {
  uint32_t pages_2 = 0;
  uint32_t pages_4 = 0;
};
DualDemand dual_demand(uint32_t cells_2, uint32_t cells_4, uint32_t page_tokens);

// Cells of `runs` by the bits they would get.
DualDemand dual_demand(std::span<const RoleRun> runs, uint32_t last_turn, const PrecisionSpec& spec,
                       uint32_t page_tokens);

class DualPool {
 public:
  // What a call holds. The policy's part of a page table: the world knows what the cells contain.
  struct Call {
    std::vector<PageId> pages_2;  // full ones
    std::vector<PageId> pages_4;  // cells_4 cells, in order of arrival
    uint32_t cells_4 = 0;
    uint32_t spilled = 0;          // 2-bit cells among them for want of int2 pages
    std::vector<RoleRun> waiting;  // 2-bit cells of an unfinished prompt, exact in staging
    struct Run4 {
      RoleRun run;
      bool decoded = false;  // stays int4 for good
    };
    std::vector<Run4> runs_4;

    uint32_t waiting_cells() const;
  };
  // What requantising asks of the world: the cells of int4 page `source` go to int2 page `target`.
  struct Requantised {
    PageId source{};
    PageId target{};
  };

  DualPool(PageId first, DualPoolSize size, uint32_t page_tokens, PageOrder order);

  // Adds prompt cells in order of position. All or nothing: false means that int4 pages are missing.
  bool append_prompt(std::span<const RoleRun> runs, uint32_t last_turn, const PrecisionSpec& spec,
                     Call* call);
  // The prompt has ended: cells that wait become int4. False: int4 pages are missing, nothing happened.
  bool flush(Call* call);
  // One decoded cell. False: an int4 page is missing, nothing happened.
  bool append_decoded(const TokenRole& role, Call* call);

  // Turns whole int4 pages whose cells all have a tag in `tags` now, and were not decoded, into int2,
  // oldest first, at most pages_max and as long as int2 pages are free; appends what was done to `done`.
  void requantise(uint64_t tags, uint32_t last_turn, uint32_t pages_max, uint64_t stamp, Call* call,
                  std::vector<Requantised>* done);
  // At turn start with Ageing::kRequantise: all pages whose cells would get 2 bits now.
  void age(const PrecisionSpec& spec, uint32_t last_turn, uint64_t stamp, Call* call,
           std::vector<Requantised>* done);
  // Frees up to `pages` int4 pages, giving up tags in the spec's demote_order one after the other.
  void reclaim_int4(uint32_t pages, const PrecisionSpec& spec, uint32_t last_turn, uint64_t stamp, Call* call,
                    std::vector<Requantised>* done);

  void release(uint64_t stamp, Call* call);

  // int2 pages first, then int4: the page table that decode reads (METHODS 4.6).
  static void table(const Call& call, std::vector<PageId>* pages);
  bool is_int4(PageId page) const { return raw(page) >= first_4_; }

  uint32_t pages_free_2() const { return pool_2_.pages_free(); }
  uint32_t pages_free_4() const { return pool_4_.pages_free(); }
  // `calls` are all that own pages here.
  void check_invariants(std::span<const Call* const> calls) const;

 private:
  void add_int4(const TokenRole& role, uint32_t count, bool decoded, Call* call);
  bool room_for_int4(const Call& call, uint64_t cells) const;
  bool page_ages(const Call& call, uint32_t page, uint64_t tags, uint32_t last_turn) const;
  void forget_page(uint32_t page, Call* call) const;

  const uint32_t first_, first_4_, page_tokens_;
  PagePool pool_2_, pool_4_;
};

}  // namespace kvtwin

#endif  // KVTWIN_ENGINE_POLICY_DUAL_POOL_H_
