// PartitionPrice says how much longer attention of a decode step takes than if its work were shared out
// evenly: what a partition (engine/methods/partition.h) leaves to its slowest thread block, and tensor
// parallelism to its fullest GPU. For head groups of different lengths; equal heads are what the cost models'
// rates were measured on.
//
// One layer takes as long as its most loaded block, blocks being filled by list scheduling, and waits for its
// most loaded GPU (the all-reduce behind it). The answer is the sum over layers, relative to even shares.
// Blocks read at an even fraction of the full rate, however few run: alone, one is not faster
// (docs/design/kernels.md#paged-decode: a block by itself reads 11.3 GB/s where its share is 17.8).
//
//   rows       of a request with n ranked tokens and u others, head h of a layer holds u + share[h] * n KV
//   entries.
//              A request's n and u follow from its context and from what its mean head holds.
//   classes    requests are taken for the middle of their class, quarter octaves of u and of n, so that
//   answers
//              are remembered and hold for many steps. They depend on nothing else, above all not on what was
//              asked before: folding changes nothing.
//   stream_k   equal shares to a tile, in closed form.
//   others     the partition's pieces, class by class (ascending), head by head, to the least loaded block.
//
// Not modelled: merging partial results, blocks of different kernels on one SM.

#ifndef KVTWIN_SIM_CLOCK_PARTITION_PRICE_H_
#define KVTWIN_SIM_CLOCK_PARTITION_PRICE_H_

#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "engine/kv/head_groups.h"
#include "engine/methods/partition.h"

namespace kvtwin::sim {

struct PartitionPriceSpec {
  PartitionKind kind = PartitionKind::kUniform;
  PartitionSpec partition;
  Grid grid;          // of one GPU
  uint32_t gpus = 1;  // that share a layer's heads, in order; more than heads: each head on several
  LayoutSpec layout;
  // By layer * kv_heads + head: what its group keeps of ranked tokens (all members are as long as the
  // longest).
  std::vector<Fraction> held;
  // aot: what the offline part took each row's work for (docs/design/methods/tangram.md#aot), and its group;
  // empty: `held`, none.
  std::vector<Fraction> planned;
  std::vector<uint32_t> groups;
};

// A request that decodes.
struct DecodeLength {
  uint32_t context = 0;  // tokens before the new one
  uint32_t live = 0;     // of these, what a mean head reads
  bool grows = true;     // by one in each further step
};

class PartitionPrice {
 public:
  // REQUIRES: `held` has layout.heads() shares, `planned` and `groups` as many or none; a tile above 0.
  explicit PartitionPrice(const PartitionPriceSpec& spec);

  struct Answer {
    uint64_t slowdown_q16 = uint64_t{1} << 16;  // time over time of even shares
    uint32_t steps = UINT32_MAX;                // for which it holds, this one included
  };
  // `requests` as of this step; in each further one those that grow are a token longer.
  Answer ask(std::span<const DecodeLength> requests);

  // Requests of a step, by class.
  struct RequestClass {
    uint32_t whole = 0;   // KV entries that every head holds
    uint32_t ranked = 0;  // tokens of which head h holds its share
    uint32_t requests = 0;
    auto operator<=>(const RequestClass&) const = default;
  };
  // The same without remembering.
  uint64_t slowdown_q16(std::span<const RequestClass> requests) const;

 private:
  // Heads of one layer on one GPU, and how many layers have just these.
  struct Slice {
    std::vector<Fraction> held, planned;
    std::vector<uint32_t> members;  // of each head's group, here
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
