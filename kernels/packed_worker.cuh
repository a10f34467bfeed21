// A warp of the packed decode kernel: its ring, what it reads next, and its walk along its share.
//
// As in attention_decode.cu a warp works alone, with a ring of shared memory that the copy engine fills and
// no barrier until all are done. Entries of the ring are keys of a block, its values, keys of the next, ...:
// so a slot is free again as soon as the keys have been multiplied. Parts of several formats follow each
// other in the same accumulators; only the powers of two that codes left in them change between formats.

#ifndef KVTWIN_KERNELS_PACKED_WORKER_CUH_
#define KVTWIN_KERNELS_PACKED_WORKER_CUH_

#include "kernels/packed_math.cuh"
#include "kernels/packed_plan.cuh"

namespace kvtwin::device {

// Shared memory of a CTA: [ring of each warp][a part of each warp][whose they are][barriers]. The part that a
// warp leaves in the middle is its last, when its ring is idle: it lies there.
template <class FormatFamily, int kHeadSlots>
struct PackedGeometry {
  using Family = FormatFamily;
  static constexpr int kDim = Family::kDim, kHeads = kHeadSlots, kWarps = kPackedWarps;
  static constexpr int kPartFloats = kHeads * (kDim + 2);
  static constexpr int kFixed = kWarps * (kPartFloats * 4 + 2 * 16);
  static constexpr int kFit = (227 * 1024 - kFixed) / (kWarps * (static_cast<int>(Family::kSlot) + 8));
  static constexpr int kSlots = kFit < 6 ? kFit : 6;
  static constexpr int kRing = kSlots * Family::kSlot;
  static constexpr int kKept = kWarps * kRing;
  static constexpr int kOwners = kKept + kWarps * kPartFloats * 4;
  static constexpr int kBarriers = kOwners + 2 * kWarps * 16;
  static constexpr int kShared = kBarriers + kWarps * kSlots * 8;
  static_assert(kSlots >= 2 && kPartFloats * 4 <= kRing && kShared <= 227 * 1024);

  static __device__ __forceinline__ uint32_t part_at(uint32_t slot) {
    return slot % 2 == 0 ? kKept + slot / 2 * kPartFloats * 4 : slot / 2 * kRing;
  }
  static __device__ __forceinline__ uint32_t channel(uint32_t tile, uint32_t row) {
    return Family::channel(tile, row);
  }
};

__device__ __forceinline__ PackedSequence load_sequence(const PackedSequence* at) {
  const uint4 a = __ldg(reinterpret_cast<const uint4*>(at)),
              b = __ldg(reinterpret_cast<const uint4*>(at) + 1);
  return {a.x, a.y, {a.z, a.w, b.x}, {b.y, b.z, b.w}};
}

// A block of the list.
template <class Family>
struct PackedPlace {
  static __device__ __forceinline__ PackedRules rules() { return {Family::kLayout, Family::kScaleGroup}; }
  uint32_t sequence, part, block;
  uint32_t blocks, tokens;  // of the part
  uint32_t q_row, column, table;
  uint32_t position;  // its first unit of cost

  // The first part from `from` on that has cells, or nothing at all. False: there is none.
  __device__ __forceinline__ bool open(const PackedSequence* sequences, uint32_t at, uint32_t from) {
    return open(load_sequence(sequences + at), at, from);
  }
  __device__ __forceinline__ bool open(const PackedSequence& s, uint32_t at, uint32_t from) {
    const bool empty = s.tokens[0] == 0 && s.tokens[1] == 0 && s.tokens[2] == 0;
    uint32_t found = kPackedParts;
#pragma unroll
    for (int i = kPackedParts - 1; i >= 0; --i) {
      if (static_cast<uint32_t>(i) >= from && s.tokens[i] > 0) found = i;
    }
    if (found == kPackedParts && !(empty && from == 0)) return false;
    sequence = at, block = 0, q_row = s.q_row, column = s.column;
    part = found == kPackedParts ? 0 : found;
    tokens = part == 0 ? s.tokens[0] : part == 1 ? s.tokens[1] : s.tokens[2];
    table = part == 0 ? s.table[0] : part == 1 ? s.table[1] : s.table[2];
    blocks = max(1u, (tokens + rules().tokens(part) - 1) / rules().tokens(part));
    return true;
  }
  __device__ __forceinline__ void start(const PackedShare& share) {
    open(share.info, share.sequence, share.part);
    block = share.block, position = share.first;
  }
  __device__ __forceinline__ uint32_t cost() const {
    return tokens == 0 ? kCostOfNothing : rules().cost(part);
  }
};

template <class Geometry>
class PackedReader {
  using Family = typename Geometry::Family;
  static constexpr int kDim = Geometry::kDim;

 public:
  __device__ PackedReader(const PackedDecodeShape& shape, const PackedDecodeArgs& args, uint32_t ring,
                          uint32_t barriers)
      : shape_(shape), args_(args), ring_(ring), barriers_(barriers), lane_(threadIdx.x % 32) {}

  __device__ void start(const PackedShare& share) {
    at_.start(share);
    end_ = share.end;
    open_part(at_.block * at_.rules().tokens(at_.part));
  }

  // Starts to fill `slot` with the next entry, if there is one.
  __device__ __forceinline__ void fill(uint32_t slot) {
    if (at_.position >= end_) return;
    const uint32_t bar = barriers_ + 8 * slot, target = ring_ + slot * Family::kSlot;
    if (at_.tokens == 0) {
      if (lane_ == 0) barrier_arrive(bar);
    } else if (at_.part == kPartInt2) {
      copy<typename Family::Int2>(target, bar);
    } else if (at_.part == kPartInt4) {
      copy<typename Family::Int4>(target, bar);
    } else {
      copy<typename Family::Wide>(target, bar);
    }
    values_ = !values_;
    if (!values_) advance();
  }

 private:
  // What is the same for all blocks of a part: its page size, and where its head's column begins.
  __device__ void open_part(uint32_t token) {
    const uint32_t part = at_.part;
    const uint32_t page = part == 0   ? shape_.page_tokens[0]
                          : part == 1 ? shape_.page_tokens[1]
                                      : shape_.page_tokens[2];
    const void* const pool = part == 0 ? args_.pool[0] : part == 1 ? args_.pool[1] : args_.pool[2];
    shift_ = 31 - __clz(page);
    const uint32_t bytes = part == 0   ? page_bytes<typename Family::Int2>(page)
                           : part == 1 ? page_bytes<typename Family::Int4>(page)
                                       : page_bytes<typename Family::Wide>(page);
    column_ = static_cast<const char*>(pool) + uint64_t{at_.column} * bytes;
    stride_ = shape_.heads_per_page * bytes;
    load_pages(token >> shift_);
  }
  template <class Format>
  static __device__ __forceinline__ uint32_t page_bytes(uint32_t page) {
    if constexpr (Format::kRecords) {
      return 2 * Format::kRecordCodes + Format::kKeyPairs + Format::kValuePairs;
    } else {
      return Format::key_bytes(page) + Format::value_bytes(page);
    }
  }
  // By lane: pages [page_base_, page_base_ + 32) of the part.
  __device__ void load_pages(uint32_t first) {
    page_base_ = first;
    const uint32_t pages = ((at_.tokens - 1) >> shift_) + 1;  // (none: what is loaded is not used)
    page_ = at_.tokens > 0 && first + lane_ < pages ? __ldg(args_.pages + at_.table + first + lane_) : 0;
  }
  __device__ void advance() {
    at_.position += at_.cost();
    if (++at_.block < at_.blocks || at_.position >= end_) return;
    const uint32_t position = at_.position;
    if (!at_.open(args_.table, at_.sequence, at_.part + 1)) at_.open(args_.table, at_.sequence + 1, 0);
    at_.position = position;
    open_part(0);
  }

  template <class Format>
  __device__ __forceinline__ void copy(uint32_t target, uint32_t bar) {
    constexpr uint32_t kTokens = Format::kTokens;
    const uint32_t token = at_.block * kTokens, page = 1u << shift_;
    const uint32_t first = token >> shift_;
    if (!values_) {  // this lane's page, for the values too
      if (first + (kTokens >> shift_) - page_base_ >= 32) load_pages(first);
      const uint32_t number = __shfl_sync(kAllLanes, page_, first + lane_ - page_base_);
      from_ = column_ + uint64_t{number} * stride_;
    }
    if constexpr (Format::kRecords) {
      constexpr uint32_t kKeys = Format::kRecordCodes + Format::kKeyPairs;
      if (lane_ != 0) return;
      const char* const from = from_ + (values_ ? kKeys : 0);
      const uint32_t pairs = values_ ? Format::kValuePairs : Format::kKeyPairs;
      barrier_arrive_expecting(bar, Format::kCodes + pairs);
      if constexpr (Format::kBlocksPerRecord == 1) {
        copy_bulk_once(target, from, Format::kCodes + pairs, bar);
      } else {
        copy_bulk_once(target, from + at_.block % Format::kBlocksPerRecord * Format::kCodes, Format::kCodes,
                       bar);
        copy_bulk_once(target + Format::kCodes, from + Format::kRecordCodes, pairs, bar);
      }
    } else {
      const uint32_t cells = min(page, kTokens), inside = token & (page - 1);
      const uint32_t pieces = min((kTokens - 1 >> shift_) + 1, (at_.tokens - 1 >> shift_) + 1 - first);
      const uint32_t each = values_ ? Format::value_bytes(cells) : Format::key_bytes(cells);
      const uint32_t keys = Format::key_bytes(page);
      const uint32_t offset = values_ ? keys + Format::value_bytes(inside) : Format::key_bytes(inside);
      if (lane_ == 0) barrier_arrive_expecting(bar, pieces * each);
      __syncwarp();
      if (lane_ < pieces) {
        copy_bulk_once(target + lane_ * each, from_ + offset, each, bar);
      }
    }
  }

  const PackedDecodeShape& shape_;
  const PackedDecodeArgs& args_;
  const uint32_t ring_, barriers_, lane_;
  PackedPlace<Family> at_;
  uint32_t end_ = 0, page_base_ = 0, page_ = 0, shift_ = 0, stride_ = 0;
  const char *column_ = nullptr, *from_ = nullptr;
  bool values_ = false;
};

template <class Geometry>
class PackedWorker {
  using Family = typename Geometry::Family;
  using Int2 = typename Family::Int2;
  using Int4 = typename Family::Int4;
  using Wide = typename Family::Wide;
  static constexpr int kDim = Geometry::kDim;

 public:
  __device__ PackedWorker(const PackedDecodeShape& shape, const PackedDecodeArgs& args, uint32_t ring,
                          uint32_t barriers)
      : shape_(shape),
        args_(args),
        ring_(ring),
        barriers_(barriers),
        lane_(threadIdx.x % 32),
        reader_(shape, args, ring, barriers) {}

  __device__ void work(const PackedShare& share, Merger<Geometry>& merger) {
    reader_.start(share);
    here_.start(share);
    for (uint32_t i = 0; i < Geometry::kSlots; ++i) reader_.fill(i);
    uint32_t begin = share.begin;
    bool inside = share.first > share.begin;
    open_part();
    for (;;) {
      if (here_.tokens == 0) {
        consume_nothing();
      } else if (here_.part == kPartInt2) {
        attend<Int2>();
      } else if (here_.part == kPartInt4) {
        attend<Int4>();
      } else {
        attend<Wide>();
      }
      here_.position += here_.cost();
      const bool more = here_.position < share.end;
      if (++here_.block < here_.blocks && more) continue;
      close_part();
      const uint32_t sequence = here_.sequence, position = here_.position;
      const Owner owner = owner_of(begin);
      const bool goes_on = here_.block < here_.blocks || here_.open(args_.table, sequence, here_.part + 1);
      if (!more || !goes_on) {
        Partial<kDim> found = part_.result();
        merger.take(owner, inside, !goes_on, &found);
      }
      if (!more) return;
      if (!goes_on) {
        here_.open(args_.table, sequence + 1, 0);
        begin = position, inside = false;
        part_ = {};
      }
      here_.position = position;
      open_part();
    }
  }

 private:
  __device__ __forceinline__ Owner owner_of(uint32_t begin) const {
    const PackedSequence s = load_sequence(args_.table + here_.sequence);
    const uint32_t last = s.tokens[2] > 0   ? here_.rules().cost(2)
                          : s.tokens[1] > 0 ? here_.rules().cost(1)
                          : s.tokens[0] > 0 ? here_.rules().cost(0)
                                            : kCostOfNothing;
    return {here_.sequence, s.q_row, begin, begin + here_.rules().cost(s) - last + 1};
  }

  // Waits for the next entry of the ring; its shared address.
  __device__ __forceinline__ uint32_t wait() const {
    barrier_wait(barriers_ + 8 * slot_, parity_);
    return ring_ + slot_ * Family::kSlot;
  }
  __device__ __forceinline__ void release() {
    __syncwarp();
    reader_.fill(slot_);
    if (++slot_ == Geometry::kSlots) slot_ = 0, parity_ ^= 1;
  }
  __device__ void consume_nothing() {
    wait(), release();
    wait(), release();
  }

  template <class Format>
  __device__ __forceinline__ void attend() {
    constexpr int kAdds = Format::kTiles / Format::kTilesPerAdd;
    float s[Format::kTiles][4] = {}, add[kAdds][2];
    const float factor = Format::scores(wait(), lane_, q_, args_.scale * kLog2E, s, add);
    release();
    const uint32_t at = wait(), valid = here_.tokens - here_.block * Format::kTokens;
    if (valid < Format::kTokens) {
      Format::clear(at, lane_, here_.block, valid);
      fence_before_bulk();
      __syncwarp();
#pragma unroll
      for (int mt = 0; mt < Format::kTiles; ++mt) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (Format::token(mt, i / 2, lane_) >= valid) s[mt][i] = -INFINITY;
        }
      }
#pragma unroll
      for (int a = 0; a < kAdds; ++a) {  // a group of keys that is not there
        if (a * Format::kTilesPerAdd * 16u >= valid) add[a][0] = add[a][1] = 0;
      }
    }
    uint32_t p[2 * Format::kTiles];
    soften<Format>(s, add, factor, Format::reserve(at, lane_, here_.block), &part_, p);
    Format::values(at, lane_, here_.block, p, &part_);
    release();
  }

  template <class Format>
  __device__ __forceinline__ void scale_out(bool up) {
#pragma unroll
    for (int mt = 0; mt < kDim / 16; ++mt) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float by = Format::value_factor(mt % 2, i / 2);
        part_.out[mt][i] *= up ? by : 1 / by;
      }
    }
  }
  template <class Format>
  __device__ __forceinline__ void load_query() {
    const uint32_t head = lane_ / 4;
    const bool is_head = head < shape_.group;
    const size_t row = size_t{here_.q_row} + (is_head ? head : 0);
    Format::load_query(reinterpret_cast<const uint32_t*>(args_.q) + row * (kDim / 2), is_head, lane_, q_);
    scale_out<Format>(false);
  }
  __device__ void open_part() {
    if (here_.part == kPartInt2) {
      load_query<Int2>();
    } else if (here_.part == kPartInt4) {
      load_query<Int4>();
    } else {
      load_query<Wide>();
    }
  }
  // Puts the powers of two and the zeros of values where they belong.
  __device__ void close_part() {
    if (here_.part == kPartInt2) {
      scale_out<Int2>(true);
    } else if (here_.part == kPartInt4) {
      scale_out<Int4>(true);
    } else {
      scale_out<Wide>(true);
    }
#pragma unroll
    for (int mt = 0; mt < kDim / 16; ++mt) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float zero = Family::zero_of(part_.more, mt, h, lane_);
        part_.out[mt][h] += zero, part_.out[mt][h + 2] += zero;
      }
    }
    part_.more[0] = part_.more[1] = 0;
  }

  const PackedDecodeShape& shape_;
  const PackedDecodeArgs& args_;
  const uint32_t ring_, barriers_, lane_;
  PackedReader<Geometry> reader_;
  PackedPlace<Family> here_;
  PackedPartial<kDim> part_;
  uint32_t q_[kDim / 8 + 2];
  uint32_t slot_ = 0, parity_ = 0;
};

template <class Geometry>
__global__ void __launch_bounds__(Geometry::kWarps * 32, 1)
    packed_kernel(const __grid_constant__ PackedDecodeShape shape,
                  const __grid_constant__ PackedDecodeArgs args) {
  extern __shared__ __align__(128) char shared[];
  const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  auto* const planned = static_cast<DecodePlan*>(args.plan);
  const PackedShare share = packed_shares_of(planned)[blockIdx.x * Geometry::kWarps + warp];
  const DecodePlan plan = *planned;
  const uint32_t barriers = shared_address(shared) + Geometry::kBarriers + warp * Geometry::kSlots * 8;
  if (lane == 0) {
    for (int i = 0; i < Geometry::kSlots; ++i) barrier_init(barriers + 8 * i, 1);
    barrier_init_done();
  }
  __syncwarp();
  Merger<Geometry> merger({args.out, args.workspace, shape.sequences, shape.group}, plan, shared);
  merger.forget();
  if (share.first < share.end) {
    PackedWorker<Geometry> worker(shape, args, shared_address(shared) + warp * Geometry::kRing, barriers);
    worker.work(share, merger);
  }
  __syncthreads();
  merger.merge();
}

template <class Geometry>
cudaError_t launch_packed(const PackedDecodeShape& shape, const PackedDecodeArgs& args, cudaStream_t stream) {
  static const cudaError_t allowed = cudaFuncSetAttribute(
      packed_kernel<Geometry>, cudaFuncAttributeMaxDynamicSharedMemorySize, Geometry::kShared);
  if (allowed != cudaSuccess) return allowed;
  packed_kernel<Geometry><<<shape.ctas, Geometry::kWarps * 32, Geometry::kShared, stream>>>(shape, args);
  return cudaGetLastError();
}
template <class Family>
cudaError_t launch_family(const PackedDecodeShape& shape, const PackedDecodeArgs& args, cudaStream_t stream) {
  return shape.group <= 4 ? launch_packed<PackedGeometry<Family, 4>>(shape, args, stream)
                          : launch_packed<PackedGeometry<Family, 8>>(shape, args, stream);
}

}  // namespace kvtwin::device

#endif  // KVTWIN_KERNELS_PACKED_WORKER_CUH_
