// What lies where in the shared memory of a prefill CTA, and what its warps tell each other.

#ifndef KVTWIN_KERNELS_PREFILL_SHARED_CUH_
#define KVTWIN_KERNELS_PREFILL_SHARED_CUH_

#include "kernels/cuda_primitives.cuh"
#include "kernels/prefill_plan.cuh"
#include "kernels/tensor_map.h"

namespace kvtwin::device {

// From an address aligned to 1024 on: the query tile, rings of key and value tiles, barriers, tickets, the
// job.
//
// A tile of rows beside the queries is [halves of a row][128][64], one of pages [16][halves][8][64], because
// then a page is one box of adjacent bytes: two boxes a page, of 64 columns each, cost an eighth of the
// speed.
template <int kDim>
struct PrefillGeometry {
  static constexpr uint32_t kHalves = kDim / 64;
  static constexpr uint32_t kHalf = 128 * 128;  // bytes of 128 rows of 64
  static constexpr uint32_t kTile = kHalves * kHalf;
  static constexpr uint32_t kEight = 8 * 128;  // bytes of eight rows of 64
  static constexpr uint32_t kStages = kDim == 128 ? 2 : 4;
  static constexpr uint32_t kTickets = 8;  // more than kStages: prefill_producer.cuh says why
  static constexpr uint32_t kKeys = kTile;
  static constexpr uint32_t kValues = kKeys + kStages * kTile;
  static constexpr uint32_t kQueryFull = kValues + kStages * kTile;
  static constexpr uint32_t kQueryEmpty = kQueryFull + 8;
  static constexpr uint32_t kKeysFull = kQueryEmpty + 8;
  static constexpr uint32_t kKeysEmpty = kKeysFull + 8 * kStages;
  static constexpr uint32_t kValuesFull = kKeysEmpty + 8 * kStages;
  static constexpr uint32_t kValuesEmpty = kValuesFull + 8 * kStages;
  static constexpr uint32_t kTail = kValuesEmpty + 8 * kStages;  // values that are there but for the clearing
  static constexpr uint32_t kTicketFull = kTail + 8 * kStages;
  static constexpr uint32_t kTicket = kTicketFull + 8 * kTickets;
  static constexpr uint32_t kJob = kTicket + 4 * kTickets;
  static constexpr uint32_t kShared = kJob + 64 + 1024;  // 1024: to align it
};

// A tile of work, as the computing warpgroups are told of it. rows = 0: there is no more.
struct PrefillJob {
  PrefillSequence sequence;
  uint32_t first = 0;  // token of the chunk, of the whole cluster's tile
};

struct PrefillMaps {
  CUtensorMap q;          // [halves][rows][query heads][64]
  CUtensorMap k, v;       // [halves][heads][rows][64]
  CUtensorMap pool;       // [eights of rows of all pages][halves][8][64]
  uint32_t page_box = 0;  // rows of a box of `pool`
};

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_PREFILL_SHARED_CUH_
