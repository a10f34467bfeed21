// PartitionPrice computes how much longer attention of a decode step takes than with equally divided work. A
// partition (kernels/grids/partition.h) leaves unequal work to thread blocks, and tensor parallelism to
// GPUs. It is for head groups of different lengths; the rates of the cost models were measured with equal
// heads.
//
// The time of a layer is that of its most loaded block on its most loaded GPU, because the all-reduce
// follows. List scheduling assigns splits to blocks. The answer is the sum over layers relative to equal
// division. Every block reads at an equal fraction of the full rate, even when fewer blocks run
// (docs/design/kernels.md#paged-decode: a block alone reads 11.3 GB/s, and its fraction
// of the full rate is 17.8 GB/s).
//
// * Rows: head h of a request with n ranked and u other tokens has u + held[h] * n KV entries. n and u follow
//   from the request's context and from the entries of its mean head.
// * Classes: each request counts as the middle of its class, a quarter octave of u and of n. Answers are
//   memoised by class and hold for many steps. They depend on nothing else, in particular not on earlier
//   questions, so coalescing steps changes nothing.
// * stream_k: equal splits up to a tile, in closed form.
// * Other partitions: their splits, class by class (ascending) and head by head, each to the least loaded
//   block.
//
// Not modelled: merging partial results, and blocks of different kernels on one SM.

#ifndef KVTWIN_SIM_CLOCK_PARTITION_PRICE_H_
#define KVTWIN_SIM_CLOCK_PARTITION_PRICE_H_

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/kv/head_groups.h"
#include "kernels/grids/partition.h"

namespace kvtwin::sim {

struct PartitionPriceSpec {
  PartitionKind kind = PartitionKind::kUniform;
  PartitionSpec partition;
  Grid grid;  // of one GPU
  // GPUs that divide a layer's heads, in order. With more GPUs than heads, several hold the same head.
  uint32_t gpus = 1;
  LayoutSpec layout;
  // By layer * kv_heads + head: fraction of the ranked tokens that its head group retains. All members of a
  // group are as long as the longest.
  std::vector<Fraction> held;
  // aot: the work of each row in the offline plan (docs/design/methods/tangram.md#aot), and its head group.
  // Empty: `held`, and no groups.
  std::vector<Fraction> planned;
  std::vector<uint32_t> groups;
};

// A request that decodes.
struct DecodeLength {
  uint32_t context = 0;  // tokens before the new one
  uint32_t live = 0;     // of these, tokens that a mean head reads
  bool grows = true;     // by one token in each further step
};

class PartitionPrice {
 public:
  // REQUIRES: `held` has layout.heads() entries, `planned` and `groups` have as many or none; tile > 0.
  explicit PartitionPrice(const PartitionPriceSpec& spec);

  struct Answer {
    uint64_t slowdown_q16 = uint64_t{1} << 16;  // time over that of equally divided work, Q16
    uint32_t steps = UINT32_MAX;                // number of steps for which it holds, this one included
  };
  // `requests` are as of this step; in each further step those that grow are one token longer.
  Answer ask(std::span<const DecodeLength> requests);

  // The number of requests in a class.
  struct RequestClass {
    uint32_t whole = 0;   // KV entries that every head holds
    uint32_t ranked = 0;  // tokens of which head h holds the fraction held[h]
    uint32_t requests = 0;
    auto operator<=>(const RequestClass&) const = default;
  };
  // The same without memoisation.
  uint64_t slowdown_q16(std::span<const RequestClass> requests) const;

 private:
  // Heads of one layer on one GPU.
  struct Slice {
    std::vector<Fraction> held, planned;
    std::vector<uint32_t> members;  // per head: members of its group in this slice
    auto operator<=>(const Slice&) const = default;
  };
  struct Layer {
    std::vector<Slice> gpus;
    uint32_t times = 1;
  };
  struct Rows;
  std::vector<Rows> rows_of(const Slice& slice, std::span<const RequestClass> requests) const;
  std::vector<uint32_t> pieces_of(const std::vector<Rows>& rows) const;
  uint64_t slowest_block(const Slice& slice, std::span<const RequestClass> requests,
                         uint64_t* kv_entries) const;

  const PartitionPriceSpec spec_;
  Fraction held_mean_ = 0;
  std::vector<Layer> layers_;
  std::map<std::vector<RequestClass>, uint64_t> known_;
  std::vector<RequestClass> asked_;
};

}  // namespace kvtwin::sim

#endif  // KVTWIN_SIM_CLOCK_PARTITION_PRICE_H_
